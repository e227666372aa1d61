"""What a run folder has saved: the newest checkpoint and the final parameters."""

import itertools
import os
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distrl.checkpointing.store import PARAMS, Checkpoint, Checkpoints
from distrl.errors import ConfigError
from distrl.runtime.files import TASKS

_OLD_S = 5.0  # seconds; the last line gives the age of a checkpoint that is older


class Saved(NamedTuple):
    """The newest checkpoint and the final parameters of a run folder.

    Attributes:
      checkpoint: the checkpoint's folder, by name; None: there is none.
      learner_steps, env_steps: those of the checkpoint; the latter are the actors'.
      time: when the checkpoint was written, in seconds of `time.time()`.
      params: learner steps of `params.npz`; None: it is missing or damaged.
      stamps: change when the checkpoint and `params.npz` are written again; two for each task.
      evaluation: the checkpoint's last evaluation, as `mean_return`, or by task as `policies`; and
        the mean return of each of several `agents`; None: there was none.

    For a run of several tasks, `checkpoint` names them all, and the numbers are the smallest.
    """

    checkpoint: str | None = None
    learner_steps: int | None = None
    env_steps: int | None = None
    time: float = 0.0
    params: int | None = None
    stamps: tuple[int, ...] = (0, 0)
    evaluation: dict[str, Any] | None = None

    @classmethod
    def read(cls, run_dir: str | os.PathLike[str]) -> "Saved":
        """Reads what the folder has now. What cannot be read counts as missing."""
        path = Path(run_dir)
        try:
            folders = sorted((path / TASKS).iterdir())
        except OSError:
            folders = []
        if not folders:
            return cls._read_task(path)
        parts = {folder.name: cls._read_task(folder) for folder in folders}
        checkpoints = {name: part.checkpoint for name, part in parts.items()}
        every = list(parts.values())
        return cls(
            ", ".join(f"{TASKS}/{name}/{checkpoint}" for name, checkpoint in checkpoints.items())
            if all(checkpoints.values())
            else None,
            min(part.learner_steps or 0 for part in every),
            min(part.env_steps or 0 for part in every),
            min(part.time for part in every),
            min(part.params or 0 for part in every)
            if all(part.complete for part in every)
            else None,
            tuple(stamp for part in every for stamp in part.stamps),
            _joined_evaluation(parts),
        )

    @classmethod
    def _read_task(cls, path: Path) -> "Saved":
        params, params_stamp = _read_params(path / PARAMS)
        try:
            paths = Checkpoints(path).paths()
            manifest = Checkpoint.read_manifest(paths[-1]) if paths else None
        except (OSError, ConfigError):
            manifest = None
        if manifest is None:
            return cls(params=params, stamps=(0, params_stamp))
        return cls(
            paths[-1].name,
            manifest.get("version"),
            _env_steps(manifest),
            manifest.get("time", 0.0),
            params,
            (manifest.get("number", 0), params_stamp),
            _evaluation(manifest),
        )

    @classmethod
    def of_list(cls, fields: list[Any]) -> "Saved":
        """Returns the tuple of what JSON made a list."""
        saved = cls._make(fields)
        return saved._replace(stamps=tuple(saved.stamps))

    @property
    def complete(self) -> bool:
        """Whether the final parameters are there, and no older than the checkpoint."""
        return self.params is not None and self.params >= (self.learner_steps or 0)

    def is_new(self, before: "Saved") -> bool:
        """Returns whether a program saved both until its end.

        Args:
          before: what the folder had when the program started.
        """
        return self.complete and all(self._changed(before))

    def describe(self, before: "Saved") -> str:
        """Returns what a program saved, for its last line. Args: before: see `is_new`."""
        changed = self._changed(before)
        new_checkpoint, new_params = all(changed[::2]), all(changed[1::2])
        if not (new_checkpoint or new_params):
            older = f"; the newest checkpoint is {self.checkpoint}" if self.checkpoint else ""
            return f"nothing was saved{older}"
        parts = []
        if new_checkpoint:
            age = time.time() - self.time
            old = f" of {age:.0f} s before" if not new_params and age > _OLD_S else ""
            parts.append(f"checkpoint {self.checkpoint}{old}")
        parts.append(PARAMS if new_params else f"no {PARAMS}")
        return f"saved: {', '.join(parts)}"

    def _changed(self, before: "Saved") -> list[bool]:
        """Returns whether each stamp differs from the one before, if there was any."""
        pairs = itertools.zip_longest(self.stamps, before.stamps, fillvalue=0)
        return [now != then for now, then in pairs]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for `result.json`."""
        return {
            "checkpoint": self.checkpoint,
            "learner_steps": self.learner_steps,
            "env_steps": self.env_steps,
            "params_learner_steps": self.params,
            **({} if self.evaluation is None else {"evaluation": self.evaluation}),
        }


def _env_steps(manifest: dict[str, Any]) -> int | None:
    """Returns the actors' steps, or those learned from if a checkpoint has no others."""
    monitor = manifest.get("monitor") or {}
    steps: int | None = monitor.get("env_steps_acted", manifest.get("env_steps"))
    return steps


def _evaluation(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the last evaluation before a checkpoint: its mean return, and each agent's."""
    scores = (manifest.get("monitor") or {}).get("evaluation") or {}
    if "evaluation_return" not in scores:
        return None  # at most a count of evaluations of parameters that were lost
    agents = scores.get("evaluation_agents")
    mean = {"mean_return": scores["evaluation_return"]}
    return mean if agents is None else {**mean, "agents": agents}


def _joined_evaluation(parts: dict[str, Saved]) -> dict[str, Any] | None:
    """Returns the evaluations of several tasks as one: all have the same agents."""
    known = {name: part.evaluation for name, part in parts.items() if part.evaluation}
    if not known:
        return None
    means = {name: evaluation["mean_return"] for name, evaluation in known.items()}
    return {"policies": means, "agents": next(iter(known.values())).get("agents", {})}


def _read_params(path: Path) -> tuple[int | None, int]:
    """Returns the version in a file of parameters, and its time stamp; None if it is damaged."""
    try:
        stamp = path.stat().st_mtime_ns
        with np.load(path) as file:
            return int(file["version"]), stamp
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None, 0
