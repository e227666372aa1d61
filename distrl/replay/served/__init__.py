"""A table in shared memory, served to clients on other machines."""
