"""The folder of a run: created, or resumed by the same command."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distrl.checkpointing.generations import last_generation, latest_set
from distrl.checkpointing.resume_point import (
    RESUMED,
    ResumePoint,
    monitor_states,
)
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import PARAMS, Checkpoint, Checkpoints
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.goal import joined
from distrl.launch.run_dir import config_diff
from distrl.launch.run_dir.folder import (
    CONFIG,
    folder_in_runs,
    folder_of_flag,
    has_config,
    lock,
    make_folder,
    make_folder_in_runs,
    refusing,
)
from distrl.launch.run_dir.resume_checks import (
    changed_topology,
    check_finished,
    check_past_policies,
    check_settings,
    check_tasks,
    has_table,
)
from distrl.launch.supervision.launcher_process import LOCK
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED, RESULT_FILE, Result
from distrl.metrics.monitor import Monitor
from distrl.metrics.progress_line import FILE_NAME as PROGRESS
from distrl.runtime.files import read_dict, read_json, write_json
from distrl.runtime.working_folder import shown

SUBMITTED = ("slurm.sh", "slurm.log")  # files of a Slurm job that will run in the folder


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
    if run_dir is not None:
        path = folder_of_flag(run_dir)
    else:
        path = make_folder_in_runs(_name(experiment, topology))
    with refusing(path):
        return _open(path, experiment, topology, command, say, provenance or {})


def _open(
    path: Path,
    experiment: Experiment,
    topology: str,
    command: list[str],
    say: Callable[[str], None],
    provenance: dict[str, Any],
) -> RunFolder:
    """See `open_run`. Raises OSError: the folder cannot be read or written."""
    check_past_policies(path, experiment)
    settings = json.loads(json.dumps(config_diff.describe(experiment)))
    entries = make_folder(path)
    damage = _damage(path / CONFIG) if entries >= {CONFIG, LOCK} else None
    is_run = damage is not None or has_config(path, "topology", "experiment")
    if not entries <= {LOCK, *SUBMITTED} and not is_run:
        raise ConfigError(
            f"--run_dir: {shown(path)} is not empty and not the folder of a run; name a new "
            "folder, or the folder of a run to resume"
        )
    lock(path)
    if damage is None:
        old_settings = read_json(path / CONFIG)
    else:
        aside = path / f"{CONFIG}.damaged"
        (path / CONFIG).replace(aside)
        say(f"distrl: {path / CONFIG} is damaged ({damage}): it is now {aside.name}")
        saved = next(iter(_latest(path, experiment, say).values()), None)  # has the settings too
        old_settings = settings if saved is None else saved.manifest
    folder = RunFolder(path, ResumePoint(settings))
    if old_settings is not None:
        folder = _resume(path, old_settings, settings, experiment, topology, say)
    config = {"command": command, "topology": topology, **settings, **provenance}
    if folder.ended is not None:
        _note_end(path, folder.ended, config)
    else:
        folders = [experiment.task_dir(path, task) for task in experiment.tasks]
        of_tasks = [each / name for each in folders for name in (RESUMED, PROGRESS)]
        for file in (path / RESULT_FILE, *of_tasks):
            file.unlink(missing_ok=True)  # the previous program's
        write_json(path / CONFIG, config)
        for task in experiment.tasks:
            checkpoint = folder.resume_point.of_task(task).checkpoint
            if checkpoint is not None:
                resumed = experiment.task_dir(path, task) / RESUMED
                write_json(resumed, {"checkpoint": Path(checkpoint).name})
    return folder


def _damage(path: Path) -> str | None:
    """Returns why a file of settings cannot be read; None if it can, whatever it has."""
    try:
        return None if isinstance(read_json(path), dict) else "no settings"
    except ValueError as error:
        return str(error)


def _read_result(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Returns the result of the previous program; empty if there is none."""
    damage = _damage(path) if path.exists() else "missing"
    if damage is None:
        return dict(read_json(path))
    if path.exists():
        say(f"distrl: {shown(path)} is damaged ({damage}): counts come from the checkpoints")
    return {}


def _note_end(path: Path, ended: tuple[str, int], config: dict[str, Any]) -> None:
    """Writes how the run has ended; again if its last program ended in the same way.

    Otherwise that program was killed, or failed, or was stopped before the goal was lowered.

    Args:
      path: the run folder.
      ended: see `RunFolder`.
      config: what a program that starts now would write.
    """
    reason, code = ended
    last = read_dict(path / RESULT_FILE) or {}
    # A failure with the budget used up may be another one than the goal that was not reached.
    if last.get("exit_code") == code and (code == EXIT_FINISHED or last.get("reason") == reason):
        write_json(path / RESULT_FILE, last)  # it is this program's result, too
        return
    old = read_dict(path / CONFIG)  # None: it was damaged
    # With the goal that the result is of: `_resume` believes a result where the goal is the same.
    write_json(path / CONFIG, config if old is None else config_diff.with_goal(old, config))
    status = "finished" if code == EXIT_FINISHED else "failed"
    result = Result(status, reason, code, nodes={}, saved=Saved.read(path).as_dict())
    write_json(path / RESULT_FILE, dataclasses.asdict(result))


def new_path(experiment: Experiment, topology: str) -> Path:
    """Returns the path of a folder in runs/ that does not exist yet."""
    return folder_in_runs(_name(experiment, topology))


def _name(experiment: Experiment, topology: str) -> str:
    return f"{experiment.environment.name}-{topology}"


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
    check_tasks(path, experiment)
    same_goal = config_diff.goal(old_settings) == config_diff.goal(settings)
    changed = changed_topology(old_settings.get("topology"), topology)
    if result.get("status") == "finished" and same_goal and saved.complete:
        for line in [*check_finished(path, old_settings, settings, experiment), *changed]:
            say(line)
        return RunFolder(path, ResumePoint(settings), (str(result.get("reason")), EXIT_FINISHED))
    try:
        checkpoints = _latest(path, experiment, say)
    except ConfigError as error:
        raise ConfigError(
            f"--run_dir: {error}; to start from the beginning, name a new --run_dir, or move "
            f"{shown(path)} away; nothing in it was changed"
        ) from error
    tasks = experiment.tasks
    several = len(tasks) > 1
    before = _generations(path, experiment) if several else {}
    if not checkpoints:
        what = "checkpoint of every policy" if several else "checkpoint"
        where = f"{shown(path)} has no {what}"
        say(f"distrl: {where}: starting from the beginning, appending to its logs")
        return RunFolder(path, ResumePoint(settings, generations=before))
    for line in [*check_settings(checkpoints, settings, experiment), *changed]:
        say(line)
    empty = frozenset(
        name
        for name, checkpoint in checkpoints.items()
        if not has_table(checkpoint, name, experiment, topology, say)
    )
    paths = {name: str(checkpoint.path) for name, checkpoint in checkpoints.items()}
    if several:
        resume_point = ResumePoint(
            settings, checkpoints=paths, generations=before, without_table=empty
        )
    else:
        (only,) = paths.values()
        resume_point = ResumePoint(settings, only, not empty)
    states = monitor_states(resume_point, tasks)
    ended = _ended(experiment, states)
    if ended is not None and not saved.complete:
        say(f"distrl: the previous program could not save {path / PARAMS}: resuming to save it")
        ended = None
    if ended is None:
        (env_steps,) = {state["env_steps_acted"] for state in states.values()}
        names = [
            f"{task}/{checkpoint.path.name}" if several else checkpoint.path.name
            for task, checkpoint in checkpoints.items()
        ]
        versions = [f"{checkpoint.manifest['version']:,}" for checkpoint in checkpoints.values()]
        say(
            f"distrl: resuming from checkpoint {' + '.join(names)}: {env_steps:,} environment "
            f"steps, {' + '.join(versions)} learner steps"
        )
    return RunFolder(path, resume_point, ended)


def _generations(path: Path, experiment: Experiment) -> dict[str, int]:
    """Returns the last checkpoint generation of each task that has checkpoints here."""
    folders = {task: experiment.task_dir(path, task) for task in experiment.tasks}
    return {
        task: last_generation(folder)
        for task, folder in folders.items()
        if Checkpoints(folder).paths()
    }


def _latest(
    path: Path, experiment: Experiment, say: Callable[[str], None]
) -> dict[str, Checkpoint]:
    """Returns the checkpoints to resume from by task; empty if there are none.

    Raises:
      ConfigError: there are checkpoints, and all are damaged.
    """
    if len(experiment.tasks) > 1:
        folders = {task: experiment.task_dir(path, task) for task in experiment.tasks}
        return latest_set(folders, say)
    checkpoint = Checkpoints(path).latest(say)
    return {} if checkpoint is None else dict.fromkeys(experiment.tasks, checkpoint)


def _ended(experiment: Experiment, states: Mapping[str, dict[str, Any]]) -> tuple[str, int] | None:
    """Returns why the run has ended already, and the exit status; None if it has not."""
    ended: dict[str, tuple[str, bool]] = {}

    def on_end(name: str, reason: str, reached: bool) -> None:
        ended[name] = reason, reached

    for name, task in experiment.tasks.items():
        end = functools.partial(on_end, name)
        monitor = Monitor(task.resolved_goal(), end, printer=lambda line: None, spec=task.env_spec)
        monitor.restore(states[name])
        monitor.judge()
    if len(ended) < len(experiment.tasks):
        return None
    reason, reached = joined(ended)
    return reason, EXIT_FINISHED if reached else EXIT_FAILED
