"""`distrl plot RUN...`: learning curves, with the spread over seeds."""

import array
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.launch.commands.compare import differences
from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.rows import last_row, reporting_damage, texts
from distrl.launch.runs.run import Run, load_run
from distrl.launch.supervision.launcher_process import is_running
from distrl.metrics.sinks import METRICS
from distrl.runtime.files import as_utf8

_COUNTERS = ("env_steps", "seconds", "learner_steps", "episodes", "trained_steps")
_POINTS = 200  # at which the runs of a curve are averaged
_LONGEST_VALUE = 40  # characters of a setting in a label


class Curve(NamedTuple):
    """The mean of runs that differ in their seed only.

    Attributes:
      label: what their settings have that those of other curves have not.
      x: float `[n]`.
      mean, least, most: float `[n]`, over the runs.
      num_runs: number of runs.
      num_seeds: number of their distinct seeds.
    """

    label: str
    x: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    least: npt.NDArray[np.float64]
    most: npt.NDArray[np.float64]
    num_runs: int
    num_seeds: int


class _Member(NamedTuple):
    """A run of a curve. Attributes: points: float `[n, 2]`, x and y."""

    run: Run
    points: npt.NDArray[np.float64]

    @property
    def begin(self) -> float:
        """The first x."""
        return float(self.points[0, 0])

    @property
    def end(self) -> float:
        """The last x."""
        return float(self.points[-1, 0])


def plot(arguments: list[str]) -> int:
    """Draws the curves of runs into a file.

    Args:
      arguments: the command, the run folders, and flags; see the help.

    Returns:
      The exit status.

    Raises:
      ConfigError: a folder is no run's, has no such column, x falls, or matplotlib is missing.
    """
    values = (
        Parser("plot")
        .add("runs", nargs="+")
        .add("--out", default="curves.png")
        .add("--x", default="env_steps")
        .add("--y", default="mean_return")
        .parse_args(arguments[1:])
    )
    curves = make_curves(
        [load_run(path, command="plot") for path in values.runs], values.x, values.y
    )
    _draw(curves, values.x, values.y, Path(values.out))
    print(f"{values.out}: {len(curves)} curves of {sum(each.num_runs for each in curves)} runs")
    return 0


def _warn(line: str) -> None:
    print(f"distrl: {line}", file=sys.stderr)


def make_curves(
    runs: Sequence[Run], x: str, y: str, say: Callable[[str], None] = _warn
) -> list[Curve]:
    """Returns a curve for each group of runs whose settings are the same but for the seed.

    A run of several policies counts as one for each. A curve begins where all its runs have, and
    ends where the shortest does.

    Args:
      runs: the runs; those with fewer than two rows are left out.
      x, y: columns of `metrics.csv`.
      say: takes a line for the user.

    Raises:
      ConfigError: a run has no such column, x falls, or all have fewer than two rows of it.
    """
    groups: dict[str, list[_Member]] = {}
    for run in itertools.chain.from_iterable(each.parts for each in runs):
        points = _points(run, x, y)
        if len(points) < 2:
            say(f"{run.path} is left out: it has fewer than two rows with {x} and {y}")
            continue
        key = json.dumps([run.task, {**run.flat_settings, "seed": None}], sort_keys=True)
        groups.setdefault(key, []).append(_Member(run, points))
    if not groups:
        raise ConfigError(f"plot: no run has two rows with {x} and {y}")
    labels = _labels([members[0].run for members in groups.values()])
    curves = []
    for label, group in zip(labels, groups.values(), strict=True):
        members = _overlapping(label, group, x, say)
        _check_ends(label, members, x, say)
        seeds = _seeds(label, members, say)
        tables = [member.points for member in members]
        grid = np.linspace(*_common(members), _POINTS)
        each = np.stack([np.interp(grid, table[:, 0], table[:, 1]) for table in tables])
        spread = each.mean(0), each.min(0), each.max(0)
        curves.append(Curve(label, grid, *spread, len(tables), len(seeds)))
    return curves


def _common(members: Sequence[_Member]) -> tuple[float, float]:
    """Returns the x that all have begun at, and that none ends before."""
    return max(member.begin for member in members), min(member.end for member in members)


def _overlapping(
    label: str, members: Sequence[_Member], x: str, say: Callable[[str], None]
) -> list[_Member]:
    """Returns the runs that have an x in common, and reports those that are left out.

    These are the runs that are too short, or those that begin too late, whichever are fewer.
    """
    left = list(members)
    while (common := _common(left))[0] > common[1]:
        begin, end = common
        short = [member for member in left if member.end < begin]
        late = [member for member in left if member.begin > end]
        out = short if len(short) <= len(late) else late
        for member in out:
            left.remove(member)
            say(
                f"{label}: {member.run.run_dir} is left out: its {x}, {member.begin:,.10g} to "
                f"{member.end:,.10g}, does not overlap with that of other runs"
            )
    return left


def _points(run: Run, x: str, y: str) -> npt.NDArray[np.float64]:
    path = run.path / METRICS
    last = last_row(path)
    for name in (x, y):
        if last is not None and name not in last:
            known = ", ".join(last)
            raise ConfigError(f"plot: {run.path} has no column {name!r}; it has {known}")
    # A buffer of floats: a row as a tuple takes several times as much.
    with reporting_damage(path):
        cells = (text for row in texts(path, (x, y)) for text in row)
        flat = array.array("d", (float(text or "nan") for text in cells))
    points = np.array(flat).reshape(-1, 2)
    return _rising(points[np.isfinite(points).all(1)], run, x)


def _rising(points: npt.NDArray[np.float64], run: Run, x: str) -> npt.NDArray[np.float64]:
    """Returns the points whose x no later one is below; raises if x falls and is no counter.

    A counter falls where a run resumed from what it had done before.
    """
    (falls,) = np.nonzero(np.diff(points[:, 0]) < 0)
    if len(falls) and x not in _COUNTERS:
        was, now = points[falls[0] : falls[0] + 2, 0]
        raise ConfigError(
            f"plot: --x={x}: it falls in {run.path}, from {was:g} to {now:g}; name a column that "
            f"only rises: {', '.join(_COUNTERS)}"
        )
    least_later = np.minimum.accumulate(points[::-1, 0])[::-1]
    return points[points[:, 0] <= least_later]


def _check_ends(label: str, members: Sequence[_Member], x: str, say: Callable[[str], None]) -> None:
    """Reports where a curve is cut because a run has not finished."""
    shortest = min(members, key=lambda member: member.end)
    longest = max(member.end for member in members)
    if shortest.end < longest:
        run_dir = shortest.run.run_dir
        status = "running" if is_running(run_dir) else shortest.run.status
        if status != "finished":
            say(
                f"{label}: the curve ends at {x} {shortest.end:,.0f} of {longest:,.0f}, where "
                f"{run_dir} does, which is {status}"
            )


def _seeds(label: str, members: Sequence[_Member], say: Callable[[str], None]) -> list[Any]:
    """Returns the distinct seeds of a curve's runs, and reports those that occur several times."""
    folders: dict[Any, list[str]] = {}
    for member in members:
        folders.setdefault(member.run.flat_settings.get("seed"), []).append(str(member.run.run_dir))
    for seed, names in folders.items():
        if len(names) > 1:
            say(f"{label}: {len(names)} runs have the seed {seed}: {', '.join(names)}")
    return list(folders)


def _labels(runs: Sequence[Run]) -> list[str]:
    """Returns for each run what distinguishes it from the others, in a few words.

    These are the algorithm and the environment, then settings where labels are equal without.
    """
    labels = [[] if run.task is None else [run.task] for run in runs]
    settings = [run.flat_settings for run in runs]
    agents = [
        each.get(f"policies.{run.task}.agent", each.get("agent"))
        for run, each in zip(runs, settings, strict=True)
    ]
    environments = [each.get("environment.name") for each in settings]
    for names in (agents, environments):
        if len(set(names)) > 1:
            for label, name in zip(labels, names, strict=True):
                label += [] if name is None else [str(name)]
    for name, *values in differences(runs):
        short = name.rpartition(".")[2]
        if name != "seed" and short != "agent" and name != "environment.name":
            _separate(labels, values, f"{short}=")
    _separate(labels, [run.run_dir.name for run in runs], limit=None)
    _separate(labels, [str(run.run_dir) for run in runs], limit=None)
    return [", ".join(label) or run.path.name for label, run in zip(labels, runs, strict=True)]


def _separate(
    labels: Sequence[list[str]],
    values: Sequence[str],
    prefix: str = "",
    limit: int | None = _LONGEST_VALUE,
) -> None:
    """Adds values to those labels that are equal, where the values differ and are not too long."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(tuple(label), []).append(index)
    for group in groups.values():
        of_group = {values[index] for index in group}
        if len(of_group) > 1 and (limit is None or max(map(len, of_group)) <= limit):
            for index in group:
                labels[index].append(f"{prefix}{values[index]}")


def _draw(curves: Sequence[Curve], x: str, y: str, out: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    if out.suffix.lstrip(".") not in ("png", "svg", "pdf"):
        raise ConfigError(f"plot: --out={out}: name a .png, .svg or .pdf file")
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for curve in curves:
        label = as_utf8(curve.label)
        if curve.num_seeds < curve.num_runs:
            label += f" ({curve.num_runs} runs, distinct seeds: {curve.num_seeds})"
        elif curve.num_runs > 1:
            label += f" ({curve.num_runs} seeds)"
        (line,) = axes.plot(curve.x, curve.mean, label=label)
        if curve.num_runs > 1:
            axes.fill_between(
                curve.x, curve.least, curve.most, color=line.get_color(), alpha=0.2, lw=0
            )
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend()
    options: dict[str, Any] = {"dpi": 150} if out.suffix == ".png" else {}
    try:
        figure.savefig(out, **options)
    except OSError as error:
        raise ConfigError(f"plot: --out={out}: {error.strerror}") from error
    pyplot.close(figure)
