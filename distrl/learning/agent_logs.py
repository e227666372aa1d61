"""Turns an agent's logs into columns of `metrics.csv`."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from distrl.errors import SpecError

COLUMNS = frozenset({
    "seconds", "env_steps", "env_steps_unreported", "trained_steps", "learner_steps", "episodes",
    "mean_return", "std_return", "min_return", "max_return", "mean_length", "success_rate",
    "failure_rate", "time_out_rate", "env_restarts", "unrolls", "seconds_waiting",
    "unrolls_too_old", "updates_skipped", "table_size", "rounds", "unrolls_in_time",
    "unrolls_late_kept", "unrolls_late_dropped", "evaluations",
})  # fmt: skip
_TAKEN = COLUMNS | {"bottleneck", "spent", "time", "batches", "metrics"}  # parts of reports
_FAMILIES = ("mean_return_", "evaluation_", "time_", "policy_lag")


def is_taken(name: str) -> bool:
    """Returns whether a column has a fixed meaning, so that no agent's log may use its name."""
    return name in _TAKEN or name.startswith(_FAMILIES)


def scalars(logs: Mapping[str, Any], taken: Collection[str]) -> dict[str, float]:
    """Returns an agent's logs as numbers.

    Args:
      logs: what `Agent.learner_step` returned, without priorities.
      taken: names that the learner itself reports, besides those of `is_taken`.

    Raises:
      SpecError: a name is taken, or a log is not one number.
    """
    for name, value in logs.items():
        if is_taken(name) or name in taken:
            raise SpecError(f"the agent's log {name!r} has a name of distrl's own; take another")
        if value is None or isinstance(value, (Mapping, list, tuple)):
            raise SpecError(
                f"the agent's log {name!r} must be one number, got {type(value).__name__}: give "
                "each number a name of its own"
            )
        if np.shape(value) != ():
            raise SpecError(
                f"the agent's log {name!r} must be one number, got an array of shape "
                f"{list(np.shape(value))}"
            )
    return {name: float(value) for name, value in logs.items()}
