"""The version of distrl: this is the only place that has it."""

__version__ = "0.1.0"
