"""Priorities of new unrolls that follow from their contents."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns
from distrl.types import Trajectory

PriorityOf = Callable[[Trajectory], Any]
"""A function from unrolls `[T + 1, n, ...]`, NumPy arrays, to priorities `[n]`, 0 or more."""

MAX_EXPONENT = 4.0
MAX_PRIORITY = float(np.finfo(np.float32).max)
"""Largest priority: a float64 holds the sum of a table's `priority ** priority_exponent`, and no
term of a priority that is a float32 above 0 becomes 0."""


def are_priorities(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Returns which of `numbers` `[n]` a table takes as priorities: bool `[n]`."""
    return (numbers >= 0) & (numbers <= MAX_PRIORITY)  # NaN is neither


def with_priorities(block: Block, columns: Columns, priority_of: PriorityOf | None) -> Block:
    """Returns a block with the priorities to insert its unrolls with.

    Args:
      block: the unrolls.
      columns: their columns.
      priority_of: see `ReplayConfig`; None: the block is returned as it is.

    Raises:
      SpecError: the function returned something else than priorities.
    """
    if priority_of is None:
        return block
    unrolls = columns.trajectory(block, np.ones(block.size, np.float32))
    priorities = np.asarray(priority_of(unrolls))
    if priorities.shape != (block.size,) or priorities.dtype.kind not in "fiub":
        raise SpecError(
            f"replay.priority_of must return one number for each of {block.size} unrolls, got "
            f"{priorities.dtype}{list(priorities.shape)}"
        )
    priorities = priorities.astype(np.float64)
    wrong = ~are_priorities(priorities)
    if wrong.any():
        raise SpecError(
            "replay.priority_of must return, as float32, finite numbers of 0 or more, got "
            f"{priorities[wrong][0]}"
        )
    return block._replace(priorities=priorities)
