"""The curves of a report: of learning, of throughput, and of the learner's own figures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distrl.launch.runs.charts import ChartLine, Numbers, chart
from distrl.launch.runs.rows import thinned_rows
from distrl.launch.runs.run import Run
from distrl.metrics.sinks import METRICS

_X = "env_steps"
_COUNTERS = {
    "seconds", "env_steps", "env_steps_unreported", "trained_steps", "learner_steps", "episodes",
    "unrolls", "env_restarts", "min_return", "max_return", "std_return", "seconds_waiting",
}  # fmt: skip
_TIMES, _LAG = "time_", "policy_lag_"
_ROWS = 10_000  # rows of a run, at most: those of weeks do not fit into memory
_RATE_POINTS = 60  # rates between rows that are two seconds apart jump about

Rows = list[dict[str, float]]


class Curves(NamedTuple):
    """Charts, as HTML.

    Attributes:
      learning: returns, lengths, rates of success.
      throughput: rates, the age of data, and what nodes spend their time on.
      learner: the agent's own figures.
    """

    learning: list[str]
    throughput: list[str]
    learner: list[str]


def curves(run: Run) -> Curves:
    """Returns the charts of a run, each with a line for each policy."""
    parts = [(part.task or "", rows) for part in run.parts if (rows := _rows(part))]
    names = list(dict.fromkeys(name for _, rows in parts for name in rows[-1]))
    learning = [chart("return", _returns(parts), "env steps")]
    for name, title in (
        ("mean_length", "episode length"),
        ("success_rate", "success rate"),
        ("time_out_rate", "share of episodes cut off by a time limit"),
        ("evaluation_success_rate", "success rate of evaluations"),
    ):
        learning.append(_of_column(parts, name, title))
    throughput = [chart("env steps a second", [_rate(*part) for part in parts], "env steps")]
    throughput.append(_lag(parts))
    throughput += [_states(task, rows) for task, rows in parts]
    known = {"mean_return", "evaluation_return", "mean_length", "success_rate", "time_out_rate"}
    known |= {"evaluations", "evaluation_success_rate", "failure_rate", *_COUNTERS}
    known |= {name for name in names if name.startswith(_LAG) or _is_state(name)}
    others = [name for name in names if name not in known]
    varying = [name for name in others if _varies(parts, name)]
    return Curves(
        learning, throughput, [_of_column(parts, n, n.replace("_", " ")) for n in varying]
    )


def _rows(part: Run) -> Rows:
    return thinned_rows(part.path / METRICS, _ROWS)


def _is_state(name: str) -> bool:
    return name.startswith(_TIMES) and name != "time_out_rate"


def _column(rows: Rows, name: str) -> Numbers:
    return np.array([row.get(name, np.nan) for row in rows], np.float64)


def _varies(parts: Sequence[tuple[str, Rows]], name: str) -> bool:
    values = np.concatenate([_column(rows, name) for _, rows in parts])
    values = values[np.isfinite(values)]
    return bool(len(values) and values.min() < values.max())


def _of_column(parts: Sequence[tuple[str, Rows]], name: str, title: str) -> str:
    lines = [
        ChartLine(task or title, _column(rows, _X), _column(rows, name)) for task, rows in parts
    ]
    return chart(title, lines, "env steps")


def _returns(parts: Sequence[tuple[str, Rows]]) -> list[ChartLine]:
    """Returns lines of the mean return, with its standard deviation, and of evaluations."""
    lines = []
    for task, rows in parts:
        x, mean, spread = (_column(rows, name) for name in (_X, "mean_return", "std_return"))
        lines.append(
            ChartLine(
                f"{task} mean of actors' episodes".strip(), x, mean, mean - spread, mean + spread
            )
            if np.isfinite(spread).any()
            else ChartLine(f"{task} mean of actors' episodes".strip(), x, mean)
        )
        evaluated = _column(rows, "evaluation_return")
        if np.isfinite(evaluated).any():
            lines.append(ChartLine(f"{task} evaluation".strip(), x, evaluated))
    return lines


def _rate(task: str, rows: Rows) -> ChartLine:
    """Returns environment steps per second, between some of the rows."""
    x, seconds = _column(rows, _X), _column(rows, "seconds")
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _RATE_POINTS)).astype(int))
    x, seconds = x[chosen], seconds[chosen]
    passed = np.diff(seconds)
    rate = np.where(passed > 0, np.diff(x) / np.where(passed > 0, passed, 1.0), np.nan)
    return ChartLine(task or "env steps a second", x[1:], rate)


def _lag(parts: Sequence[tuple[str, Rows]]) -> str:
    lines = [
        ChartLine(f"{task} {what}".strip(), _column(rows, _X), _column(rows, f"{_LAG}{name}"))
        for task, rows in parts
        for name, what in (("p50", "median"), ("p95", "95 %"), ("max", "maximum"))
    ]
    if not any(np.isfinite(line.y).any() and np.nanmax(line.y) > 0 for line in lines):
        return ""
    return chart("policy lag, in learner steps", lines, "env steps")


def _states(task: str, rows: Rows) -> str:
    """Returns what nodes spent their time on, where the metrics have it.

    Lines, not a stack: the states of actors and those of learners each add up to a whole.
    """
    names = list(filter(_is_state, rows[-1]))
    x = _column(rows, _X)
    lines = [
        ChartLine(name[len(_TIMES) :].replace("_", " "), x, _column(rows, name)) for name in names
    ]
    lines = [line for line in lines if np.isfinite(line.y).any() and np.nanmax(line.y) > 0.005]
    return chart(f"{task} share of time by state".strip(), lines, "env steps")
