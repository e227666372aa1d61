"""One machine: nodes as forked processes or as threads, and debugging."""
