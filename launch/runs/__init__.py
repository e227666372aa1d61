"""Runs that are in a folder: what they have, and how they are evaluated, played and drawn."""
