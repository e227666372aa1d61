"""Where a run's metrics go: sinks, which all take the same rows."""

import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from distrl.config import MetricsConfig
from distrl.episodes import EpisodeOutcome, Record
from distrl.errors import ConfigError
from distrl.metrics.appended_file import AppendedFile
from distrl.metrics.csv_file import CsvFile, cut_lines
from distrl.metrics.tensorboard import TensorBoard
from distrl.metrics.wandb_run import WandbRun

METRICS, LINES, EPISODES = "metrics.csv", "metrics.jsonl", "episodes.csv"
TENSORBOARD = "tensorboard"  # a folder
_EPISODES_BYTES = 100_000_000
_ROWS = 200  # fewest rows of a run with a budget
_LEAST_STEPS = 500  # fewest steps between rows that do not wait for their time
_EPISODE = ("seconds", "env_steps", "node", "return", "length", "outcome")  # names of columns
_OUTCOMES = {
    EpisodeOutcome.END: "end",
    EpisodeOutcome.TIME_OUT: "time_out",
    EpisodeOutcome.FAILURE: "failure",
    EpisodeOutcome.SUCCESS: "success",
}


class Sink(Protocol):
    """Takes rows of metrics, which are on disk, or with the service, within seconds."""

    def resume(self, env_steps: int) -> None:
        """Removes rows beyond this number of steps: an earlier program has lost them."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Takes a row: numbers by name, None for what is not known."""

    def close(self) -> None:
        """Writes what is left."""


class MetricsCsv:
    """`metrics.csv`."""

    def __init__(self, path: Path, printer: Callable[[str], None]):
        self._file = CsvFile(path, printer)

    @property
    def _is_old(self) -> bool:
        return bool(self._file.header) and "trained_steps" not in self._file.header

    def resume(self, env_steps: int) -> None:
        """See `Sink`."""
        self._file.resume("env_steps_acted" if self._is_old else "env_steps", env_steps)

    def append(self, row: Mapping[str, Any]) -> None:
        """See `Sink`. In an old file, `env_steps` are the transitions trained on."""
        if self._is_old:
            row = {**row, "env_steps_acted": row["env_steps"], "env_steps": row["trained_steps"]}
            del row["trained_steps"]
        self._file.append(row)

    def close(self) -> None:
        """See `Sink`."""
        self._file.close()


class JsonLines:
    """`metrics.jsonl`: a JSON object a line."""

    def __init__(self, path: Path, printer: Callable[[str], None]):
        self._file = AppendedFile(path, printer)
        self._cut(lambda line: False)  # a line in which the previous program was killed

    def resume(self, env_steps: int) -> None:
        """See `Sink`."""
        self._cut(lambda line: json.loads(line)["env_steps"] > env_steps)

    def _cut(self, is_beyond: Callable[[bytes], bool]) -> None:
        if self._file.path.exists():
            with self._file.errors.reporting():
                cut_lines(self._file.path, is_beyond)

    def append(self, row: Mapping[str, Any]) -> None:
        """See `Sink`. What is not known, or not a number, is null."""
        known = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in row.items()
        }
        self._file.append(f"{json.dumps(known)}\n".encode())

    def close(self) -> None:
        """See `Sink`."""
        self._file.close()


def check_sinks(config: MetricsConfig) -> None:
    """Raises ConfigError if a package is missing."""
    for setting, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        if getattr(config, setting) and importlib.util.find_spec(package) is None:
            raise ConfigError(f"metrics.{setting} needs {package}: pip install {package}")


class MetricsWriter:
    """Writes rows of metrics to all sinks, and a row for each episode."""

    def __init__(
        self, sinks: Sequence[Sink], episodes: CsvFile | None = None, budget: int | None = None
    ):
        """Args:
        sinks: take rows of metrics.
        episodes: takes a row for each episode; None: there is no such file.
        budget: environment steps that the run may take; None: no limit.
        """
        self._sinks, self._episodes, self._budget = sinks, episodes, budget
        self._last = 0  # environment steps at the last row
        self._early: Mapping[str, Any] | None = None  # the last row before the first update
        self._components = 0  # number of a vector reward's components
        self._unwritten: list[str] = []  # lines of episodes, not yet written

    def is_due(self, env_steps: int) -> bool:
        """Returns whether enough steps were taken for a row, however fast they came."""
        budget = self._budget or 50 * env_steps
        return env_steps - self._last >= max(_LEAST_STEPS, budget / _ROWS)

    def resume(self, env_steps: int) -> None:
        """Continues from this number of steps; removes what earlier programs wrote beyond it."""
        self._last = env_steps
        for sink in self._sinks:
            sink.resume(env_steps)
        if self._episodes is not None:
            self._episodes.resume("env_steps", env_steps)

    def add_episodes(
        self, seconds: float, env_steps: int, node: str, records: Sequence[Record]
    ) -> None:
        """Takes a node's episodes, whose rows are written with the next row of metrics.

        There may be 100,000 per second, so each is made a line of text at once.
        """
        if self._episodes is None or self._episodes.is_full or not records:
            return
        begin = f"{round(seconds, 2)},{env_steps},{node}"
        if not (components := len(records[0]) - 3):
            lines = [
                f"{begin},{total},{length},{_OUTCOMES[outcome]}\r\n"
                for total, length, outcome in records
            ]
        else:
            lines = [
                f"{begin},{total},{length},{_OUTCOMES[outcome]},{','.join(map(str, parts))}\r\n"
                for total, length, outcome, *parts in records
            ]
        self._components = components
        self._unwritten += lines

    def write(self, row: Mapping[str, Any]) -> None:
        """Writes a row of metrics and the episodes before it.

        Before the first update, when the learner's columns are missing, only the last row is
        written, by `close`.
        """
        self._last = int(row["env_steps"])
        if row["learner_steps"] > 0:
            self._early = None
            self._append(row)
        elif self._last > 0:
            self._early = row
        if self._episodes is not None:
            names = [*_EPISODE, *(f"return_{i}" for i in range(self._components))]
            self._episodes.extend(names, "".join(self._unwritten))
            self._unwritten.clear()

    def _append(self, row: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.append(row)

    def close(self) -> None:
        """Writes what is left and closes all sinks."""
        if self._early is not None:
            self._append(self._early)
        for sink in self._sinks:
            sink.close()
        if self._episodes is not None:
            self._episodes.close()
        self._sinks, self._episodes = (), None


def make_writer(
    config: MetricsConfig,
    run_dir: Path | None,
    printer: Callable[[str], None],
    settings: Mapping[str, Any],
    budget: int | None,
) -> MetricsWriter:
    """Returns the writer of a task's metrics.

    Args:
      config: the sinks.
      run_dir: the run folder, or a task's folder; None: nothing is written.
      printer: takes a line about what cannot be written.
      settings: what describes the run.
      budget: see `MetricsWriter`.
    """
    if run_dir is None:
        return MetricsWriter(())
    sinks: list[Sink] = [MetricsCsv(run_dir / METRICS, printer)]
    if config.json_lines:
        sinks.append(JsonLines(run_dir / LINES, printer))
    if config.tensorboard:
        sinks.append(TensorBoard(run_dir / TENSORBOARD, printer))
    if config.wandb:
        sinks.append(WandbRun(run_dir, settings, printer))
    episodes = CsvFile(run_dir / EPISODES, printer, _EPISODES_BYTES) if config.episodes else None
    return MetricsWriter(sinks, episodes, budget)
