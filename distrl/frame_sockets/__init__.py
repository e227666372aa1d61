"""Connections that carry messages and arrays, for the calls that have to be fast."""
