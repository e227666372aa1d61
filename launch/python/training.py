"""`distrl.train`: an experiment, a topology -> a run."""

import contextlib
import dataclasses
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distrl import presets
from distrl.callbacks import Callback
from distrl.errors import ConfigError, TrainingError
from distrl.experiment import Experiment
from distrl.launch.python import pickling, training_client
from distrl.launch.run_dir.folder import make_folder_in_runs
from distrl.launch.runs.run import Run
from distrl.launch.supervision.result import (
    EXIT_BAD_INPUT,
    EXIT_FINISHED,
    result_since,
    which_result,
)
from distrl.runtime import home, working_folder

_EXIT_STOPPED = {128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def train(
    environment: str | Experiment,
    agent: str | None = None,
    *,
    topology: str = "single_process",
    max_env_steps: int | None = None,
    max_episodes: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    flags: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """See `distrl.train`."""
    pickling.check_not_loading()
    if isinstance(environment, Experiment) and agent is not None:
        raise ConfigError("distrl.train: an Experiment names its agent; leave `agent` out")
    presets.check_agent(agent)
    if not isinstance(environment, (str, Experiment)):
        raise ConfigError(
            f"distrl.train: expected an environment's name or an Experiment, got "
            f"{environment!r:.80}; for an environment of your own pass an "
            "Experiment(environment, agent)"
        )
    experiment = environment if isinstance(environment, Experiment) else None
    if not isinstance(callbacks, (list, tuple)):
        raise ConfigError(f"distrl.train: callbacks must be a list, got {callbacks!r:.80}")
    if callbacks:
        experiment = experiment or presets.experiment(str(environment), agent)
        experiment = _with_callbacks(experiment, callbacks)
    working_folder.check_exists()
    name = environment if isinstance(environment, str) else environment.environment.name
    if run_dir is None:
        folder = make_folder_in_runs(f"{name}-{topology}")
    else:
        folder = Path(home.expanded(run_dir, "distrl.train: run_dir")).absolute()
    arguments = [f"--topology={topology}", f"--run_dir={folder}"]
    if experiment is None:
        arguments += [f"--env={environment}", *([f"--agent={agent}"] if agent else [])]
    for flag, value in (
        ("max_env_steps", max_env_steps),
        ("max_episodes", max_episodes),
        ("seed", seed),
        *((f"config.{key}", value) for key, value in (config or {}).items()),
    ):
        if value is not None or flag.startswith("config."):
            text = value if isinstance(value, str) else repr(_plain(value))
            arguments.append(f"--{flag}={text}")
    before = which_result(folder)
    try:
        code, last_lines = training_client.run([*arguments, *flags], experiment, quiet)
    finally:
        if run_dir is None:  # bad input leaves it empty
            with contextlib.suppress(OSError):
                folder.rmdir()
    if code == EXIT_BAD_INPUT:
        raise ConfigError(last_lines[-1].removeprefix("distrl: ") if last_lines else "bad input")
    if code not in (EXIT_FINISHED, *_EXIT_STOPPED):
        raise TrainingError(_reason(folder, before, code, last_lines))
    return Run(folder, trust=True)


def _plain(value: Any) -> Any:
    """Returns a value with Python's numbers instead of NumPy's, whose repr is no literal."""
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value


def _with_callbacks(experiment: Experiment, callbacks: Sequence[Callback]) -> Experiment:
    return dataclasses.replace(experiment, callbacks=(*experiment.callbacks, *callbacks))


def _reason(
    folder: Path, before: tuple[int, int] | None, code: int, last_lines: Sequence[str]
) -> str:
    """Returns why a run has failed, in a line. Args: before: see `result_since`."""
    reason = result_since(folder, before, code).get("reason")
    reason = reason or (last_lines[-1] if last_lines else "")
    # Without a folder training has failed before it began.
    where = f"; its output is in {folder}" if folder.is_dir() else ""
    return f"training ended with status {code}: {reason}{where}"
