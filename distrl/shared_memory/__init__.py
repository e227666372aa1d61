"""Files in shared memory, their owners, locks and waits."""
