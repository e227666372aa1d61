"""Several machines: how daemons are started on hosts, and their connections."""
