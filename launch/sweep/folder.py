"""The folder of a sweep: its command, and its trials, each with a run folder."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.cli.train_flags import BUDGETS
from distrl.launch.run_dir.folder import lock, make_folder
from distrl.launch.supervision.launcher_process import LOCK
from distrl.launch.sweep.search import key
from distrl.runtime.files import read_json, write_json
from distrl.runtime.working_folder import shown

_FILE = "sweep.json"
_LOGS = "logs"
_GOAL = "config.goal."


@dataclasses.dataclass
class Trial:
    """One run of a sweep.

    Attributes:
      name: its run folder's name.
      settings: words of the command line by flag, beside those that all trials share.
      seed: root of its seeds.
      status: how it ended: "finished", "missed" (its budget ended before its goal was reached),
        "failed" or "stopped"; "": it has not.
      reason: why it ended, in a line.
      wanted: whether the last command asked for it.
    """

    name: str
    settings: dict[str, str]
    seed: int
    status: str = ""
    reason: str = ""
    wanted: bool = True

    @property
    def is_done(self) -> bool:
        """Whether it is not to be run again."""
        return self.status in ("finished", "missed")

    @property
    def words(self) -> list[str]:
        """Its own flags, as on a command line."""
        return [f"--{name}={value}" for name, value in self.settings.items()]

    def __str__(self) -> str:
        return " ".join([*self.words, f"--seed={self.seed}"])


@dataclasses.dataclass
class SweepFolder:
    """A sweep's folder.

    Attributes:
      path: the folder.
      command: flags of the sweep itself, by name, to repeat it.
      words: flags of `distrl train` that all trials share.
      trials: the trials, in the order in which they run.
    """

    path: Path
    command: dict[str, Any]
    words: list[str]
    trials: list[Trial]

    @classmethod
    def read(cls, path: Path) -> "SweepFolder | None":
        """Returns the sweep in a folder; None if there is none.

        Raises:
          ConfigError: the file is damaged.
        """
        try:
            data = read_json(path / _FILE)
        except ValueError as error:
            raise ConfigError(f"sweep: {path / _FILE} is damaged: {error}") from error
        if data is None:
            return None
        trials = [Trial(**trial) for trial in data["trials"]]
        return cls(path, data["command"], data["words"], trials)

    def open(self) -> None:
        """Makes the folder, or opens the existing one, and locks it until this process ends.

        Trials that it has already keep their name and how they ended. With a larger budget all of
        them continue.

        Raises:
          ConfigError: the folder has something else or another sweep, or another process runs this.
        """
        entries = make_folder(self.path) - {LOCK}
        try:
            lock(self.path)
        except ConfigError as error:
            raise ConfigError(str(error).replace("--run_dir:", "--dir:")) from error
        old = SweepFolder.read(self.path)
        if old is None:
            if entries:
                raise ConfigError(
                    f"--dir: {shown(self.path)} is not empty and has no sweep; name a new folder"
                )
        else:
            self._take_up(old)
        self.write()

    def write(self) -> None:
        """Writes what is known to the folder, whole or not at all."""
        trials = [dataclasses.asdict(trial) for trial in self.trials]
        write_json(
            self.path / _FILE, {"command": self.command, "words": self.words, "trials": trials}
        )

    def run_dir(self, trial: Trial) -> Path:
        """Returns the run folder of a trial."""
        return self.path / trial.name

    def log(self, trial: Trial) -> Path:
        """Returns the file that has the output of a trial."""
        return self.path / _LOGS / f"{trial.name}.log"

    def _take_up(self, old: "SweepFolder") -> None:
        different = set(old.words) ^ set(self.words)
        fixed = sorted(word for word in different if not _is_budget(word))
        if fixed:
            raise ConfigError(
                f"--dir: {shown(self.path)} has a sweep with other flags: {' '.join(fixed)}; name "
                "a new folder, or leave them as they were"
            )
        known = {(key(trial.settings), trial.seed): trial for trial in old.trials}
        names = {key(trial.settings): trial.name.partition("-")[0] for trial in old.trials}
        trials = []
        for trial in self.trials:  # the same settings and seed keep their folder
            before = known.pop((key(trial.settings), trial.seed), None)
            if before is None:
                prefix = names.setdefault(key(trial.settings), f"{len(names):03d}")
                before = dataclasses.replace(trial, name=_name(prefix, trial.seed))
            elif different:
                before = dataclasses.replace(before, status="", reason="")
            trials.append(dataclasses.replace(before, wanted=True))
        others = [dataclasses.replace(trial, wanted=False) for trial in known.values()]
        self.trials = [*others, *trials]


def make_trials(settings: Sequence[dict[str, str]], seeds: Sequence[int]) -> list[Trial]:
    """Returns a trial of each settings with each seed: all settings with the first seed first."""
    return [
        Trial(_name(f"{index:03d}", seed), each, seed)
        for seed in seeds
        for index, each in enumerate(settings)
    ]


def _name(prefix: str, seed: int) -> str:
    return f"{prefix}-seed-{seed}"


def _is_budget(word: str) -> bool:
    """Returns whether a flag is one that a run may be resumed with to train for longer."""
    name = word.lstrip("-").partition("=")[0]
    return name in BUDGETS or name.startswith(_GOAL)
