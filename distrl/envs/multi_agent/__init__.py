"""Environments with several agents, as pools of one stream per agent and environment."""
