"""Pictures of environments while they are stepped."""
