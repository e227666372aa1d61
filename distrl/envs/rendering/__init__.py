"""Takes pictures of environments while they are stepped."""
