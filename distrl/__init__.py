"""Distributed actor-learner reinforcement learning."""

from typing import Any

from distrl.version import __version__

__all__ = ["__version__", "load_policy"]


def load_policy(path: Any, which: str = "latest", **options: Any) -> Any:
    """Returns the policy that a run has learned: see `distrl.policy.load_policy`."""
    from distrl.runtime.jax_import import import_jax

    import_jax()  # takes a second
    from distrl import policy

    return policy.load_policy(path, which, **options)
