"""What makes any off-policy update count as a long one, during which the learner goes on."""

from typing import Any, TypeVar

from distrl.agents import compiling
from distrl.learning.finite_params import FiniteParams

T = TypeVar("T")
_append = FiniteParams.append


def _append_late(self: FiniteParams, *made: Any) -> None:
    assert self.is_late, "the learner waits for its updates"
    _append(self, *made)


def with_long_updates(made: T) -> T:
    """Returns the experiment; in the processes that are forked from now on its updates are long."""
    compiling._LONG = 0
    FiniteParams.append = _append_late  # type: ignore[method-assign]
    return made
