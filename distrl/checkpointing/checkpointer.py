"""Saves a whole program: at its times, when it ends, and when it is asked to stop."""

import os
import platform
import threading
import time
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from distrl.agents.agent import Agent
from distrl.checkpointing.params_file import load_nest, load_params, save_nest, save_params
from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.config import CheckpointConfig
from distrl.errors import DeadlineExceeded, PeerError, SpecError
from distrl.experiment import Experiment
from distrl.learner import Learner, LearnerState
from distrl.replay.buffer import ReplayAdministration
from distrl.replay.table.info import TableInfo
from distrl.runtime.files import update_json
from distrl.runtime.incarnations import lives
from distrl.types import Nest

PARAMS = "params.npz"
TABLE = "replay"
RESUMED = "resumed.json"
_LEARNER = "learner.npz"
_LOOK = 0.1  # seconds between looks whether the program stops
_MAIN_S = 0.3  # seconds that a program which stops has to end by itself before it is saved
_LEAVE_S = 3.0  # seconds that it has afterwards


class ResumePoint(NamedTuple):
    """How a program begins.

    Attributes:
      settings: of the program, plain data for the manifests of its checkpoints.
      checkpoint: folder of the checkpoint that it goes on from; None: it begins anew.
      with_table: begin with the replay's table that was saved, if there is one.
    """

    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed
    checkpoint: str | None = None
    with_table: bool = True

    @classmethod
    def latest(cls, run_dir: Path | str, start: "ResumePoint") -> "ResumePoint":
        """Of a part of a program that is started again while the others go on."""
        found = Checkpoints(run_dir).latest()
        return start._replace(checkpoint=str(found.path) if found is not None else None)

    def manifest(self) -> dict[str, Any] | None:
        """Of the checkpoint; None: the program begins anew."""
        if self.checkpoint is None:
            return None
        return Checkpoint.read_manifest(Path(self.checkpoint))

    def about(self, experiment: Experiment) -> dict[str, Any]:
        """What manifests say of the program beside its state."""
        return {"task": experiment.task, "seed": experiment.seed, **self.settings}

    def table(self) -> Path | None:
        """Where the replay's table was saved; None: it was not, or the program begins anew."""
        if self.checkpoint is None or not self.with_table:
            return None
        path = Path(self.checkpoint) / TABLE
        return path if path.is_dir() else None


class Checkpointer:
    """Writes checkpoints in a thread of its own, from what the parts give at any moment.

    So it does not matter what the program is busy with when it is asked to stop: it may compile,
    evaluate, or wait for a step of an environment.
    """

    def __init__(
        self,
        run_dir: Path,
        config: CheckpointConfig,
        learner: Learner,
        replay: ReplayAdministration,
        counters: Callable[[], dict[str, Any]],
        about: dict[str, Any],
        *,
        fill: Callable[[Path], None] = lambda folder: None,
        give_up: Callable[[], None] = lambda: None,
        printer: Callable[[str], None] = print,
    ):
        """Args:
        run_dir: of the run; is there.
        config: when, and how many are kept.
        learner: to save.
        replay: a client of the table to save.
        counters: gives the monitor's state. Raises PeerError or DeadlineExceeded where it cannot.
        about: what else the manifest says of the program; plain data.
        fill: writes more files to a checkpoint's folder.
        give_up: called when the program was asked to stop, is saved, and has not come to its end
          in its time.
        printer: takes lines.
        """
        self._run_dir = Path(run_dir)
        self._store = Checkpoints(run_dir, config.keep)
        self._config = config
        self._learner = learner
        self._replay = replay
        self._counters = counters
        self._about = about
        self._fill = fill
        self._give_up = give_up
        self._printer = printer
        self._ended = threading.Event()  # the program's own loop
        self._abandoned = False
        self._saved = learner.version or -1
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, stop: threading.Event) -> None:
        """Begins to save. `stop`: set when the program is asked to stop."""
        self._thread = threading.Thread(target=self._run, args=(stop,), name="checkpoints")
        self._thread.daemon = True
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong in saving, if anything did that will not pass."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """The program's loop has ended: saves what it came to, and waits for that.

        Raises:
          OSError, PeerError, DeadlineExceeded: it could not be saved.
        """
        self._ended.set()
        if self._thread is None:
            return
        self._thread.join(self._config.grace)
        if self._thread.is_alive():
            raise DeadlineExceeded(
                f"the last checkpoint was not written within checkpoint.grace="
                f"{self._config.grace:g} s"
            )
        self.check()

    def abandon(self) -> None:
        """The program's loop has failed: saves no more."""
        self._abandoned = True
        self._ended.set()

    def _run(self, stop: threading.Event) -> None:
        try:
            while self._wait(stop):
                if 0 < self._learner.version == self._saved:
                    continue  # nothing to lose
                try:
                    self.save()
                except (OSError, PeerError, DeadlineExceeded) as error:
                    # May pass: a full disk, a monitor that is busy. The one before it stays.
                    self._printer(f"distrl: no checkpoint: {type(error).__name__}: {error}")
            if self._abandoned:
                return
            began = time.monotonic()
            # What it is in the middle of is saved as well, unless it takes long.
            self._ended.wait(_MAIN_S)
            self.save()
            left = self._config.grace - (time.monotonic() - began)
            if not self._ended.wait(max(0.0, min(_LEAVE_S, left))):
                self._give_up()
            elif self._learner.version != self._saved:
                self.save()
        except BaseException as error:  # raised in the program's own loop, by `check`
            self._error = error

    def _wait(self, stop: threading.Event) -> bool:
        """Until it is time to save; False where it is for the last time."""
        period = self._config.period
        due = None if period is None else time.monotonic() + period
        while not (self._ended.is_set() or stop.wait(_LOOK)):
            if due is not None and time.monotonic() >= due:
                return True
        return False

    def save(self) -> Path:
        """Saves now; raises as `close`."""
        began = time.monotonic()
        state = self._learner.state()
        path = self._store.write(state.version, lambda folder: self._write(folder, state))
        self._saved = state.version
        nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        self._printer(
            f"checkpoint {path.name}: {nbytes / 1e6:.1f} MB in {time.monotonic() - began:.2f} s"
        )
        return path

    def _write(self, folder: Path, state: LearnerState) -> dict[str, Any]:
        save_params(folder / PARAMS, state.version, state.params)
        save_nest(folder / _LEARNER, state.agent)
        table = None
        if self._config.replay:
            table = self._replay.save(folder / TABLE, self._config.grace)
        self._fill(folder)
        monitor = self._counters()
        return {
            **self._about,
            "env_steps": state.env_steps,
            "consumed": state.consumed,
            "seconds_waiting": state.waited,
            "params_checksum": checksum(state.params),
            "learner_checksum": checksum(state.agent),
            "table": table,
            "monitor": monitor,
            "mean_return": monitor["mean_return"],
            "full_window": monitor["full_window"],
            "lives": lives(self._run_dir),
            "programs": programs(),
        }


def check_agent(agent: Agent, checkpoint: Path) -> None:
    """Raises SpecError where the checkpoint is not of this agent. Computes nothing."""
    params = jax.eval_shape(agent.initial_params, jax.ShapeDtypeStruct((2,), np.uint32))
    load_params(checkpoint / PARAMS, params)
    state = jax.eval_shape(agent.initial_learner_state, params)
    load_nest(checkpoint / _LEARNER, state, "learner state")


def restore_learner(learner: Learner, checkpoint: Path) -> dict[str, Any]:
    """Has the learner go on from a checkpoint.

    Returns:
      What it has now, as manifests say it.

    Raises:
      SpecError: the checkpoint is of another agent; or what was loaded is not what was saved.
    """
    manifest = Checkpoint.read_manifest(checkpoint)
    like = learner.state()
    version, params = load_params(checkpoint / PARAMS, like.params)
    agent = load_nest(checkpoint / _LEARNER, like.agent, "learner state")
    state = LearnerState(
        version,
        params,
        agent,
        manifest["env_steps"],
        manifest["consumed"],
        manifest["seconds_waiting"],
    )
    learner.restore(state)
    state = learner.state()
    found = {
        "version": state.version,
        "env_steps": state.env_steps,
        "consumed": state.consumed,
        "params_checksum": checksum(state.params),
        "learner_checksum": checksum(state.agent),
    }
    for name, value in found.items():
        if manifest[name] != value:
            raise SpecError(f"{checkpoint}: {name} was {manifest[name]}, and is {value} now")
    return found


def note_resumed(run_dir: Path | str, part: str, facts: dict[str, Any]) -> None:
    """Writes what a part of a resumed program has loaded to `resumed.json`."""
    update_json(Path(run_dir) / RESUMED, lambda data: data.update({part: facts}))


def table_counts(info: TableInfo) -> dict[str, int]:
    """As `ReplayAdministration.save` gives them."""
    return {"size": info.size, "inserts": info.inserts, "samples": info.samples}


def checksum(nest: Nest) -> str:
    """Of all values of a nest of arrays, their shapes and dtypes."""
    total = 0
    for leaf in jax.tree.leaves(nest):
        array = np.asarray(leaf)
        total = zlib.crc32(f"{array.dtype}{array.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"


def programs() -> dict[str, str]:
    """Versions of what has written a checkpoint."""
    found = {"python": platform.python_version(), "machine": os.uname().nodename}
    for name in ("distrl", "jax", "numpy", "dm-haiku", "optax", "dm-reverb"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
