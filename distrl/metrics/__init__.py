"""Metrics: what nodes report, the monitor that adds it up, and the files that it goes to."""
