"""Inference as a service: its messages, its servers and their clients."""
