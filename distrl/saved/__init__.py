"""Writes and reads the files that describe the agent of a checkpoint."""
