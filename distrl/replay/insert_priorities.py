"""Priorities of new unrolls that follow from their contents."""

from collections.abc import Callable
from typing import Any

import numpy as np

from distrl.errors import SpecError
from distrl.replay.columns import Block, Columns
from distrl.types import Trajectory

PriorityOf = Callable[[Trajectory], Any]
"""From unrolls `[T + 1, n, ...]`, NumPy arrays, to their priorities `[n]`, finite and 0 or more."""


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
    wrong = ~(np.isfinite(priorities) & (priorities >= 0))
    if wrong.any():
        raise SpecError(
            "replay.priority_of must return finite numbers of 0 or more, got "
            f"{priorities[wrong][0]}"
        )
    return block._replace(priorities=priorities)
