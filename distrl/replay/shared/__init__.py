"""A table in shared memory, written and read by the processes of one machine."""
