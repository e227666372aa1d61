"""The version of distrl; no other file has it."""

__version__ = "0.1.0"
