"""Checkpoints of a whole program: writing, choosing and reading them."""
