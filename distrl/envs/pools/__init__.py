"""The pools: several environments stepped together."""
