"""Algorithms, a file each, and what they are made of."""

from distrl.runtime.late_import import imported_late

# Haiku imports Flax and absl's tests for two of its modules, which few use.
with imported_late("haiku.experimental.flax"), imported_late("haiku.testing"):
    import haiku as _haiku  # noqa: F401
