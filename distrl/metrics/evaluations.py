"""A task's evaluations, as the monitor keeps them: their count, and the last scores."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrl.metrics.reports import Report

_MOST_KEPT = 10_000  # evaluations, of a kilobyte each


class Evaluations:
    """Counts evaluations, and keeps the last scores and those that callbacks wait for.

    Attributes:
      last: report of the last evaluation; {} before the first.
      count: evaluations in this program.
    """

    def __init__(self, printer: Callable[[str], None]) -> None:
        """Args: printer: takes a line if too many wait for callbacks."""
        self._printer, self._reported = printer, False
        self._kept: collections.deque[tuple[int, Report]] | None = None
        self.last: dict[str, Any] = {}
        self.count = 0

    def keep(self) -> None:
        """Keeps evaluations from now on, for `after`."""
        self._kept = collections.deque(maxlen=_MOST_KEPT)

    def add(self, report: Mapping[str, Any]) -> None:
        """Takes an evaluator's report."""
        in_all_programs = self.last.get("evaluations", 0) + 1
        self.last = {**report, "evaluations": in_all_programs}
        self.count += 1
        if self._kept is not None:
            if len(self._kept) == self._kept.maxlen and not self._reported:
                self._reported = True
                self._printer(
                    f"{_MOST_KEPT:,} evaluations wait for the callbacks; the oldest are left out"
                )
            self._kept.append((self.count, self.last))

    def after(self, number: int) -> list[tuple[int, Report]]:
        """Returns numbers and reports of the evaluations after this one, and forgets the others.

        Args:
          number: number of the last evaluation in this program that was passed to the callbacks.
        """
        assert self._kept is not None
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()
        return list(self._kept)

    def columns(self, components: int, agents: Sequence[str]) -> dict[str, Any]:
        """Returns a row's columns.

        Args:
          components: number of a vector reward's components; 0: it is a scalar.
          agents: agents whose mean returns the evaluator reports.
        """
        last = self.last
        parts = last.get("evaluation_returns", [None] * components)
        by_agent = last.get("evaluation_agents", {})
        return {
            "evaluations": last.get("evaluations"),
            "evaluation_episodes": last.get("evaluation_episodes"),
            "evaluation_return": last.get("evaluation_return"),
            **{f"evaluation_return_{i}": parts[i] for i in range(components)},
            **{f"evaluation_return_{agent}": by_agent.get(agent) for agent in agents},
            "evaluation_success_rate": last.get("evaluation_success_rate"),
        }
