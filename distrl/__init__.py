"""Reinforcement learning with many actors: the parts."""

from typing import Any


def load_policy(path: Any, which: str = "latest", **options: Any) -> Any:
    """The policy that a run has learned: see `distrl.policy.load_policy`."""
    from distrl.runtime.jax_import import import_jax

    import_jax()  # takes a second
    from distrl import policy

    return policy.load_policy(path, which, **options)
