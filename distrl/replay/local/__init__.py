"""A table in the process that uses it."""
