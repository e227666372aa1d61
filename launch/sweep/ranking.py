"""The table of a sweep: its settings, ranked by the mean over seeds."""

import csv
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distrl.errors import ConfigError
from distrl.launch.runs.rows import last_row as newest_row
from distrl.launch.runs.run import Run
from distrl.launch.runs.text_table import number
from distrl.launch.supervision.launcher_process import is_running
from distrl.launch.sweep.folder import SweepFolder, Trial
from distrl.launch.sweep.search import Key, key
from distrl.metrics.sinks import METRICS
from distrl.runtime.files import replacing

TABLE = "trials.csv"
_FIGURES = ("env_steps", "seconds")


class TrialStanding(NamedTuple):
    """What the trials of one combination of settings have reached.

    Attributes:
      settings: words by flag.
      trials: one for each seed.
      values: the figure to rank by, of those trials that are done and have it; of the others where
        none is.
      figures: means of others by column over the same trials, NaN where nothing is known.
      running: number of trials in progress.
      ranked: whether the values are of trials that are done.
    """

    settings: dict[str, str]
    trials: list[Trial]
    values: list[float]
    figures: dict[str, float]
    running: int
    ranked: bool

    @property
    def mean(self) -> float:
        """Over the seeds; NaN: not known yet."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """The sample standard deviation over the seeds; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


def standings(folder: SweepFolder, by: str) -> list[TrialStanding]:
    """Returns the standing of each combination of settings, the best first, the unknown last.

    Those of which no trial is done come after the others.

    Args:
      folder: the sweep.
      by: the name of a figure of `last_row`; with a "-" before it, less is better.

    Raises:
      ConfigError: no run has such a column.
    """
    column, sign = by.lstrip("-"), -1.0 if by.startswith("-") else 1.0
    groups: dict[Key, list[Trial]] = {}
    for trial in folder.trials:
        if trial.wanted or trial.is_done:
            groups.setdefault(key(trial.settings), []).append(trial)
    last = {trial.name: last_row(folder, trial) for trial in folder.trials}
    known = dict.fromkeys(name for row in last.values() for name in row)
    if known and column not in known:
        policies = {part.task for t in folder.trials for part in Run(folder.run_dir(t)).parts}
        of_policies = [name for name in known if name.partition("/")[0] in policies]
        of_one = f"; of one policy, as in {of_policies[0]}" if of_policies else ""
        names = ", ".join(name for name in known if name not in of_policies)
        raise ConfigError(f"--by={by}: the runs have no column {column!r}; they have "
                          f"{names}{of_one}")  # fmt: skip
    table = []
    for trials in groups.values():
        done = [trial for trial in trials if trial.is_done]
        ranked = bool(_known(last, done, column))
        counted = done if ranked else trials
        table.append(
            TrialStanding(
                trials[0].settings,
                trials,
                _known(last, counted, column),
                {name: _mean(_known(last, counted, name)) for name in _FIGURES if name != column},
                sum(is_running(folder.run_dir(trial)) for trial in trials),
                ranked,
            )
        )
    return sorted(
        table, key=lambda s: (not s.ranked, not s.values, -sign * s.mean if s.values else 0.0)
    )


def last_row(folder: SweepFolder, trial: Trial) -> dict[str, float]:
    """Returns the newest row of a trial's metrics; empty: there is none, or none to be read.

    Of a run with several policies it has each one's columns, as in "prey/mean_return", and before
    them the mean over the policies that have a column.
    """
    parts = Run(folder.run_dir(trial)).parts
    newest = {part.task: _newest_row(part) for part in parts}
    names = dict.fromkeys(name for row in newest.values() for name in row)
    means = {
        name: _mean([r[name] for r in newest.values() if not math.isnan(r.get(name, math.nan))])
        for name in names
    }
    of_each = {
        f"{task}/{name}": value
        for task, row in newest.items()
        if task is not None
        for name, value in row.items()
    }
    return {**means, **of_each}


def damage(folder: SweepFolder) -> list[str]:
    """Returns a line for each policy whose metrics cannot be read, and which so has no figures."""
    lines: list[str] = []
    for trial in folder.trials:
        for part in Run(folder.run_dir(trial)).parts:
            _newest_row(part, lines.append)
    return lines


def _newest_row(part: Run, say: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """Returns a policy's newest row; empty: there is none. Args: say: takes why none is read."""
    try:
        return newest_row(part.path / METRICS) or {}
    except ConfigError as error:  # the other trials have a table all the same
        say(str(error))
        return {}


def _known(last: dict[str, dict[str, float]], trials: Sequence[Trial], column: str) -> list[float]:
    values = [last[trial.name].get(column, math.nan) for trial in trials]
    return [value for value in values if not math.isnan(value)]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def rows(table: Sequence[TrialStanding], by: str) -> list[tuple[str, ...]]:
    """Returns the table's cells as text, with a head."""
    names = list(dict.fromkeys(name for each in table for name in each.settings))
    figures = table[0].figures if table else ()
    head = ("", *short_names(names), by.lstrip("-"), "seeds", *figures, "")
    lines = [head]
    for rank, each in enumerate(table, 1):
        mean = "-" if not each.values else number(each.mean)
        if not math.isnan(each.std):
            mean += f" ± {number(each.std, 3)}"
        lines.append(
            (
                f"{rank}" if each.ranked else "-",
                *(each.settings.get(name, "-") for name in names),
                mean,
                f"{sum(t.is_done for t in each.trials)}/{len(each.trials)}",
                *("-" if math.isnan(x) else f"{x:,.0f}" for x in each.figures.values()),
                _state(each),
            )
        )
    return lines


def _state(standing: TrialStanding) -> str:
    counts = {"running": standing.running}
    for trial in standing.trials:
        if trial.status in ("failed", "missed", "stopped"):
            counts[trial.status] = counts.get(trial.status, 0) + 1
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def short_names(names: Sequence[str]) -> list[str]:
    """Returns the ends of dotted names, as long as they must be to differ."""
    short = []
    for name in names:
        parts = name.split(".")
        lengths = range(1, len(parts) + 1)
        ends = [".".join(parts[-length:]) for length in lengths]
        others = [other for other in names if other != name]
        unique = (e for e in ends if not any(f".{other}".endswith(f".{e}") for other in others))
        short.append(next(unique, name))
    return short


def write_table(folder: SweepFolder) -> None:
    """Writes a row for each trial to `trials.csv`: settings, status, and its newest metrics."""
    lasts = [last_row(folder, trial) for trial in folder.trials]
    settings = list(dict.fromkeys(name for t in folder.trials for name in t.settings))
    metrics = list(dict.fromkeys(name for row in lasts for name in row))
    path = folder.path / TABLE
    part = path.with_name(f".{TABLE}.new")
    with replacing(path, part), open(part, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", *settings, "seed", "status", *metrics])
        for trial, row in zip(folder.trials, lasts, strict=True):
            cells = (row.get(name, math.nan) for name in metrics)
            writer.writerow(
                [
                    trial.name,
                    *(trial.settings.get(name, "") for name in settings),
                    trial.seed,
                    trial.status,
                    *("" if math.isnan(x) else repr(x) for x in cells),
                ]
            )
