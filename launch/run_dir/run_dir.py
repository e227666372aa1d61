"""The folder of a run: created, or resumed by the same command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from distrl.agents.images import has_channels_last
from distrl.agents.inputs import has_mask
from distrl.agents.torsos import has_scaled_integers
from distrl.checkpointing.resume_point import RESUMED, ResumePoint, check_agent
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import PARAMS, TABLE, Checkpoint, Checkpoints
from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment
from distrl.launch.run_dir import config_diff
from distrl.launch.run_dir.folder import (
    CONFIG,
    LOCK,
    folder_in_runs,
    has_config,
    lock,
    make_folder,
)
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED, RESULT_FILE
from distrl.metrics import Monitor
from distrl.replay.columns import Columns
from distrl.replay.table.files import read_facts
from distrl.runtime.files import read_json, write_json
from distrl.types import Nest

SUBMITTED = ("slurm.sh", "slurm.log")  # of a Slurm job that will run in the folder


class RunFolder(NamedTuple):
    """The folder that a program writes to, and the point from which it starts.

    Attributes:
      path: the folder.
      resume_point: what the program starts from.
      ended: why the run has ended already, and the exit status; None if it has not.
    """

    path: Path
    resume_point: ResumePoint
    ended: tuple[str, int] | None = None


def open_run(
    run_dir: str | None,
    experiment: Experiment,
    topology: str,
    command: list[str],
    say: Callable[[str], None] = print,
    provenance: dict[str, Any] | None = None,
) -> RunFolder:
    """Opens the run's folder, and locks it until this process ends.

    Args:
      run_dir: the folder; None: a new one in runs/.
      experiment: the experiment to run.
      topology: the topology to run it under.
      command: the command line, for `config.json`.
      say: prints a line for the user.
      provenance: more entries of `config.json`: which code and packages the program runs.

    Raises:
      ConfigError: the folder cannot be used, another program runs in it, or it has another run;
        the message names the settings that differ.
    """
    path = Path(run_dir) if run_dir is not None else new_path(experiment, topology)
    settings = json.loads(json.dumps(config_diff.describe(experiment)))
    entries = make_folder(path)
    damage = _damage(path / CONFIG) if entries >= {CONFIG, LOCK} else None
    is_run = damage is not None or has_config(path, "topology", "experiment")
    if not entries <= {LOCK, *SUBMITTED} and not is_run:
        raise ConfigError(
            f"--run_dir: {path} is not empty and not the folder of a run; name a new folder, or "
            "the folder of a run to resume"
        )
    lock(path)
    if damage is None:
        old_settings = read_json(path / CONFIG)
    else:
        aside = path / f"{CONFIG}.damaged"
        (path / CONFIG).replace(aside)
        say(f"distrl: {path / CONFIG} is damaged ({damage}): it is now {aside.name}")
        checkpoint = Checkpoints(path).latest(say)  # has the settings too
        old_settings = settings if checkpoint is None else checkpoint.manifest
    for task in experiment.tasks:
        experiment.task_dir(path, task)
    folder = RunFolder(path, ResumePoint(settings))
    if old_settings is not None:
        folder = _resume(path, old_settings, settings, experiment, topology, say)
    if folder.ended is None:
        for name in (RESULT_FILE, RESUMED):  # of the program before
            (path / name).unlink(missing_ok=True)
        write_json(
            path / CONFIG,
            {"command": command, "topology": topology, **settings, **(provenance or {})},
        )
        if folder.resume_point.checkpoint is not None:
            write_json(path / RESUMED, {"checkpoint": Path(folder.resume_point.checkpoint).name})
    return folder


def _damage(path: Path) -> str | None:
    """Returns why a file of settings cannot be read; None if it can, whatever it has."""
    try:
        return None if isinstance(read_json(path), dict) else "no settings"
    except ValueError as error:
        return str(error)


def _read_result(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Returns the result of the program before; empty if there is none."""
    damage = _damage(path) if path.exists() else "missing"
    if damage is None:
        return dict(read_json(path))
    if path.exists():
        say(f"distrl: {path} is damaged ({damage}): the checkpoints tell how far the run is")
    return {}


def new_path(experiment: Experiment, topology: str) -> Path:
    """Returns the path of a folder in runs/ that does not exist yet."""
    return folder_in_runs(f"{experiment.environment.name}-{topology}")


def _resume(
    path: Path,
    old_settings: dict[str, Any],
    settings: dict[str, Any],
    experiment: Experiment,
    topology: str,
    say: Callable[[str], None],
) -> RunFolder:
    """Returns where the run in `path` resumes, or that it has ended."""
    result = _read_result(path / RESULT_FILE, say)
    saved = Saved.read(path)
    if len(experiment.tasks) > 1 and saved.checkpoint is not None:
        raise ConfigError(
            f"--run_dir: {path} has a run of several policies, which cannot be resumed yet; name a "
            "new folder"
        )
    same_goal = config_diff.goal(old_settings) == config_diff.goal(settings)
    if result.get("status") == "finished" and same_goal and saved.complete:
        return RunFolder(path, ResumePoint(settings), (str(result.get("reason")), EXIT_FINISHED))
    try:
        checkpoint = Checkpoints(path).latest(say)
    except ConfigError as error:
        raise ConfigError(
            f"--run_dir: {error}; to start from the beginning, name a new --run_dir, or move "
            f"{path} away; nothing in it was changed"
        ) from error
    if checkpoint is None:
        say(f"distrl: {path} has no checkpoint: starting from the beginning, appending to its logs")
        return RunFolder(path, ResumePoint(settings))
    for line in _check(checkpoint, settings, experiment):
        say(line)
    manifest = checkpoint.manifest
    ended = _ended(experiment, manifest["monitor"])
    has_table = _has_table(checkpoint, experiment, topology, say)
    resume_point = ResumePoint(settings, str(checkpoint.path), has_table)
    if ended is not None and not saved.complete:
        say(f"distrl: the program before could not save {path / PARAMS}: resuming, to save it")
        ended = None
    if ended is None:
        say(
            f"distrl: resuming from checkpoint {checkpoint.path.name}: "
            f"{manifest['monitor']['env_steps_acted']:,} environment steps, "
            f"{manifest['version']:,} learner steps"
        )
    return RunFolder(path, resume_point, ended)


def _check(checkpoint: Checkpoint, settings: dict[str, Any], experiment: Experiment) -> list[str]:
    """Returns a line for each changed setting; raises ConfigError if one must not change."""
    changes = config_diff.compare(checkpoint.manifest, settings)
    same = _without_effect(experiment.environment.spec().observation)
    changes = [c for c in changes if c.field.rpartition(".")[2] not in same]
    fixed = [change for change in changes if change.fixed]
    if fixed:
        raise ConfigError(f"{checkpoint.path} is of another run: {_describe(fixed)}")
    try:
        check_agent(experiment.make_agent(), checkpoint.path)
    except SpecError as error:
        of_agent = [change for change in changes if change.field.startswith("agent.")]
        raise ConfigError(
            f"{checkpoint.path} is of another agent: {_describe(of_agent) or error}"
        ) from error
    return [f"distrl: changed since the checkpoint: {c.field}: {c.was} -> {c.now}" for c in changes]


def _without_effect(observation: Nest) -> set[str]:
    """Returns settings of networks that mean the same for an observation, whatever their value."""
    has_effect = {
        "scale_integers": has_scaled_integers(observation),
        "image_layout": has_channels_last(observation),
        "mask_actions": has_mask(observation),
    }
    return {name for name, effect in has_effect.items() if not effect}


def _describe(changes: list[config_diff.Change]) -> str:
    return ", ".join(f"{change.field}: was {change.was}, is {change.now}" for change in changes)


def _has_table(
    checkpoint: Checkpoint, experiment: Experiment, topology: str, say: Callable[[str], None]
) -> bool:
    """Returns whether the program can start with the replay table that was saved."""
    folder = checkpoint.path / TABLE
    if not folder.is_dir():
        if experiment.checkpoint.replay:
            say("distrl: the replay starts empty: the checkpoint has no table")
        return False
    in_reverb = topology != "single_process" and experiment.replay.backend == "reverb"
    columns = Columns(experiment.trajectory_struct(), experiment.replay.unroll_length)
    facts = read_facts(folder, columns, experiment.replay)
    shards = facts.get("num_shards", 1)
    if facts["kind"] != ("reverb" if in_reverb else "files"):
        why_not = "its saved contents cannot be moved to or from Reverb"
    elif in_reverb and facts["unrolls_per_item"] != experiment.only_task.unrolls_per_item:
        why_not = "Reverb's items had another size when it was saved"
    elif in_reverb and shards != experiment.replay.num_shards:
        why_not = f"it was saved as {shards} shards"
    else:
        return True
    say(f"distrl: the replay starts empty: {why_not}")
    return False


def _ended(experiment: Experiment, monitor_state: dict[str, Any]) -> tuple[str, int] | None:
    """Returns why the run has ended already, and the exit status; None if it has not."""
    ended: list[tuple[str, int]] = []

    def on_end(reason: str, reached: bool) -> None:
        ended.append((reason, EXIT_FINISHED if reached else EXIT_FAILED))

    monitor = Monitor(experiment.only_task.resolved_goal(), on_end, printer=lambda line: None)
    monitor.restore(monitor_state)
    monitor.judge()
    return ended[0] if ended else None
