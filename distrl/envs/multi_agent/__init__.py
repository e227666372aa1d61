"""Environments with several agents, and pools with one stream per agent and environment."""
