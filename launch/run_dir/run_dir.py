"""The folder of a run: made, or gone on with by the same command; one program at a time."""

import datetime
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from distrl.checkpointing.checkpointer import RESUMED, TABLE, ResumePoint, check_agent
from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment
from distrl.launch.run_dir import config_diff
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED, RESULT_FILE
from distrl.metrics import Monitor
from distrl.replay.columns import Columns
from distrl.replay.table.files import read_facts
from distrl.runtime.files import read_json, write_json

CONFIG, LOCK = "config.json", "lock"
SUBMITTED = ("slurm.sh", "slurm.log")  # of a job that waits to run here
_LOCK_S = 10.0  # seconds for the processes of a program that was killed to be gone
_LOOK = 0.1


class RunFolder(NamedTuple):
    """Where a program writes, and how it begins."""

    path: Path
    start: ResumePoint
    ended: tuple[str, int] | None = None  # why there is nothing to do, and the exit status


def open_run(
    run_dir: str | None,
    experiment: Experiment,
    topology: str,
    command: list[str],
    say: Callable[[str], None] = print,
) -> RunFolder:
    """The run's folder, locked for this process until it ends.

    Args:
      run_dir: the user's; None: a new folder of runs/.
      experiment: that will run.
      topology: that it will run under.
      command: the arguments, for `config.json`.
      say: takes lines about how the run goes on.

    Raises:
      ConfigError: the folder cannot be used, another program runs in it, or the run was another
        one: with a line of the fields that differ.
    """
    path = Path(run_dir) if run_dir is not None else new_name(experiment, topology)
    settings = json.loads(json.dumps(config_diff.describe(experiment)))
    try:
        path.mkdir(parents=True, exist_ok=True)
        entries = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise ConfigError(f"--run_dir: {path} cannot be a folder: {error.strerror}") from error
    if not entries <= {LOCK, *SUBMITTED} and not _is_run(path):
        raise ConfigError(
            f"--run_dir: {path} is not empty, and no run's folder; name a new folder, or a run's "
            "to go on with it"
        )
    _lock(path)
    old = read_json(path / CONFIG)
    folder = RunFolder(path, ResumePoint(settings))
    if old is not None:
        folder = _resumed(path, old, settings, experiment, topology, say)
    if folder.ended is None:
        for name in (RESULT_FILE, RESUMED):  # of the program before
            (path / name).unlink(missing_ok=True)
        write_json(path / CONFIG, {"command": command, "topology": topology, **settings})
        if folder.start.checkpoint is not None:
            write_json(path / RESUMED, {"checkpoint": Path(folder.start.checkpoint).name})
    return folder


def new_name(experiment: Experiment, topology: str) -> Path:
    """Of a folder that nobody has, below runs/."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = experiment.environment.name.replace("/", "-")  # ALE/Pong-v5
    return Path("runs") / f"{now}-{name}-{topology}-{os.getpid()}"


def _is_run(path: Path) -> bool:
    try:
        config = read_json(path / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"topology", "experiment"} <= config.keys()


def _lock(path: Path) -> None:
    """Keeps other programs out of the folder, until this process and its forks are gone."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            owner = os.pread(descriptor, 100, 0).decode().strip()
            alive = owner.isdecimal() and Path(f"/proc/{owner}").is_dir()
            # What is left of a program that was killed is gone in a moment.
            if alive or time.monotonic() >= deadline:
                os.close(descriptor)
                raise ConfigError(
                    f"--run_dir: process {owner or 'unknown'} runs in {path}, on this machine or "
                    "another: one program at a time"
                ) from None
            time.sleep(_LOOK)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)  # never closed: the process's end does


def _resumed(
    path: Path,
    old: dict[str, Any],
    settings: dict[str, Any],
    experiment: Experiment,
    topology: str,
    say: Callable[[str], None],
) -> RunFolder:
    """How the run in `path` goes on."""
    result = read_json(path / RESULT_FILE) or {}
    same_goal = config_diff.goal(old) == config_diff.goal(settings)
    if result.get("status") == "finished" and same_goal:
        return RunFolder(path, ResumePoint(settings), (result["reason"], EXIT_FINISHED))
    checkpoint = Checkpoints(path).latest(say)
    if checkpoint is None:
        say(f"distrl: {path} has no checkpoint: the run starts anew, and its logs go on")
        return RunFolder(path, ResumePoint(settings))
    for line in _check(checkpoint, settings, experiment):
        say(line)
    manifest = checkpoint.manifest
    ended = _judge(experiment, manifest["monitor"])
    has_table = _has_table(checkpoint, experiment, topology, say)
    start = ResumePoint(settings, str(checkpoint.path), has_table)
    if ended is None:
        say(
            f"distrl: goes on from checkpoint {checkpoint.path.name}: "
            f"{manifest['env_steps']:,} environment steps trained on, "
            f"{manifest['version']:,} learner steps"
        )
    return RunFolder(path, start, ended)


def _check(checkpoint: Checkpoint, settings: dict[str, Any], experiment: Experiment) -> list[str]:
    """Refuses what cannot go on from the checkpoint; gives a line for each setting that changed."""
    found = config_diff.compare(checkpoint.manifest, settings)
    fixed = [change for change in found if change.fixed]
    if fixed:
        raise ConfigError(
            f"{checkpoint.path} is of another run: "
            + ", ".join(f"{c.field}: was {c.was}, is {c.now}" for c in fixed)
        )
    try:
        check_agent(experiment.make_agent(), checkpoint.path)
    except SpecError as error:
        own = [c for c in found if c.field.startswith("agent.")]
        why = ", ".join(f"{c.field}: was {c.was}, is {c.now}" for c in own)
        raise ConfigError(f"{checkpoint.path} is of another agent: {why or error}") from error
    return [f"distrl: changed since the checkpoint: {c.field}: {c.was} -> {c.now}" for c in found]


def _has_table(
    checkpoint: Checkpoint, experiment: Experiment, topology: str, say: Callable[[str], None]
) -> bool:
    """Whether the program can begin with the table that was saved."""
    folder = checkpoint.path / TABLE
    if not folder.is_dir():
        return False
    in_reverb = topology != "single_process" and experiment.replay.backend == "reverb"
    kind = "reverb" if in_reverb else "files"
    columns = Columns(experiment.trajectory_struct(), experiment.replay.unroll_length)
    facts = read_facts(folder, columns, experiment.replay)
    if facts["kind"] != kind:
        say("distrl: the replay begins empty: its contents cannot go to Reverb, or come from it")
        return False
    if in_reverb and facts["unrolls_per_item"] != experiment.only_task.unrolls_per_item:
        say("distrl: the replay begins empty: Reverb's items were of another size")
        return False
    shards = facts.get("num_shards", 1)
    if in_reverb and shards != experiment.replay.num_shards:
        say(f"distrl: the replay begins empty: it was saved as {shards} shards")
        return False
    return True


def _judge(experiment: Experiment, monitor: dict[str, Any]) -> tuple[str, int] | None:
    """Why the run has ended already, and the exit status; None where it goes on."""
    ended: list[tuple[str, int]] = []

    def on_end(reason: str, reached: bool) -> None:
        ended.append((reason, EXIT_FINISHED if reached else EXIT_FAILED))

    judge = Monitor(experiment.only_task.resolved_goal(), on_end, printer=lambda line: None)
    judge.restore(monitor)
    judge.judge()
    return ended[0] if ended else None
