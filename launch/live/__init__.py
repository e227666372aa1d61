"""The live status of a running program in a terminal."""
