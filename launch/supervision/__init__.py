"""Supervision of nodes: restarts, hangs, the order of a stop, logs and the result."""
