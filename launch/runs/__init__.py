"""Runs that are in a folder: what they have, and the commands about them."""
