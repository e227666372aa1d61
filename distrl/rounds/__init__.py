"""Synchronous collection: rounds of actors, and their clients."""
