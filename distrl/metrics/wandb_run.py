"""Metrics as a run of Weights & Biases."""

import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.metrics.reported_errors import ReportedErrors
from distrl.runtime.files import TASKS, read_dict, write_json
from distrl.runtime.traceback_text import one_line

_FILE = "wandb.json"  # in the run folder: the run's identity at the service


class WandbRun:
    """A run of Weights & Biases, named after the folder; a resumed run continues it.

    Training does not depend on it: what cannot be logged is reported once.
    """

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], printer: Callable[[str], None]):
        """Args:
        run_dir: the run folder, or a task's folder: then the run is one of a group.
        settings: what describes the run.
        printer: takes a line about what cannot be logged.

        Raises:
          ConfigError: the service, or its package, refuses the run.
        """
        import wandb

        errors = (wandb.Error, OSError)
        self._errors = ReportedErrors(printer, "Weights & Biases", "points will be missing", errors)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "distrl",
                resume="allow",
                reinit="create_new",  # beside the runs of other tasks
                dir=str(run_dir),
                config=settings,
                **_identity(run_dir),
            )
        except errors as error:
            text = one_line(error).rstrip(".")
            raise ConfigError(
                f"metrics.wandb: {text}; WANDB_MODE=offline logs to the run folder alone"
            ) from error

    def resume(self, env_steps: int) -> None:
        """See `Sink`. A point that was logged stays: the service takes none back."""

    def append(self, row: Mapping[str, Any]) -> None:
        """See `Sink`."""
        known = {name: value for name, value in row.items() if value is not None}
        with self._errors.reporting():
            self._run.log(known, step=int(row["env_steps"]))

    def close(self) -> None:
        """See `Sink`."""
        with self._errors.reporting():
            self._run.finish()


def _identity(run_dir: Path) -> dict[str, Any]:
    """Returns id, name and group of the folder's run, which stay the same when it is resumed."""
    path = run_dir / _FILE
    known = read_dict(path, lambda data: data.keys() >= {"id", "name", "group"})
    if known is not None:
        return known
    name, group = run_dir.name, os.environ.get("WANDB_RUN_GROUP")
    if run_dir.parent.name == TASKS:
        run = run_dir.parent.parent.name
        name, group = f"{run}/{name}", group or run
    identity = {"id": uuid.uuid4().hex, "name": name, "group": group}
    write_json(path, identity)
    return identity
