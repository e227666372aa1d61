"""A learner's reports, as the monitor keeps them: the newest totals, and a row's policy lags."""

from collections.abc import Mapping
from typing import Any

from distrl.metrics.lag_counts import REPORTED, LagCounts
from distrl.metrics.reports import SPENT, Report


class LearnerTotals:
    """Adds up a learner's reports."""

    def __init__(self) -> None:
        self._newest: dict[str, Any] = {}
        self._lags = LagCounts()  # since the previous row

    def add(self, report: Report) -> None:
        """Takes a report of the learner."""
        report = dict(report)
        lags = report.pop(REPORTED, None)
        if lags is not None:
            self._lags.merge(lags)
        self._newest.update(report)

    def state(self) -> dict[str, Any]:
        """Returns everything known, except the row in progress, as plain data for JSON."""
        return dict(self._newest)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` returned."""
        self._newest = dict(state)
        steps = self._newest.pop("env_steps", 0)  # the name of `trained_steps` in older checkpoints
        self._newest.setdefault("trained_steps", steps)

    @property
    def learner_steps(self) -> int:
        """Updates; 0 before the first report."""
        return int(self._newest.get("learner_steps", 0))

    @property
    def trained_steps(self) -> int:
        """Transitions trained on; 0 before the first report."""
        return int(self._newest.get("trained_steps", 0))

    @property
    def spent(self) -> tuple[int | None, ...]:
        """The actors' budgets that the learner has used up; () while it has not."""
        return tuple(self._newest.get(SPENT, ()))

    @spent.setter
    def spent(self, budget: tuple[int | None, ...]) -> None:
        self._newest[SPENT] = budget

    def columns(self) -> dict[str, Any]:
        """Returns a row's columns, besides `learner_steps` and `trained_steps`.

        A row has the lags since the previous row, or that row's if nothing was learned since.
        """
        known = {**self._newest, **self._lags.columns()}
        return {
            name: value
            for name, value in sorted(known.items())
            if name not in ("trained_steps", "learner_steps", SPENT)
        }

    def row_written(self) -> None:
        """Begins the next row."""
        self._newest.update(self._lags.columns())
        self._lags = LagCounts()
