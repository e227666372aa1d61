"""Connections that carry messages and arrays, for calls that have to be fast."""
