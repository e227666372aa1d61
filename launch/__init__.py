"""Runs programs: the command line, the launcher, and its nodes on one machine or several."""
