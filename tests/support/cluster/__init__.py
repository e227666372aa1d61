"""Virtual hosts and a Slurm on them, made of Linux namespaces."""
