"""The run folder, and the settings in it."""
