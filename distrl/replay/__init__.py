"""Replay: unrolls are cut from steps, stored in tables, and sampled."""
