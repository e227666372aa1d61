"""Saves a whole program: periodically, when it ends, and when it is asked to stop."""

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distrl.callbacks import TaskCallbacks
from distrl.checkpointing.evaluation_scores import CheckpointScorer
from distrl.checkpointing.generations import Generations
from distrl.checkpointing.params_file import checksum, save_nest, save_params
from distrl.checkpointing.store import LEARNER, PARAMS, TABLE, Checkpoint, Checkpoints
from distrl.config import CheckpointConfig
from distrl.errors import DeadlineExceeded, PeerError, SaveError
from distrl.learner import Learner
from distrl.learning.divergence import UpdateCheck
from distrl.learning.training_state import TrainingState
from distrl.replay.buffer import ReplayAdministration
from distrl.runtime.durations import longest_wait
from distrl.runtime.lives import lives
from distrl.runtime.provenance import versions
from distrl.runtime.traceback_text import one_line

_POLL_S = 0.1  # between two checks of whether the program stops
_MAIN_S = 0.3  # a program that is asked to stop has this long to end before it is saved
_LEAVE_S = 3.0  # and this long after it was saved
_TABLE_SHARE = 1 / 3  # share of the grace time for the table in the last checkpoint


class Checkpointer:
    """Writes checkpoints in a thread, from state that the program's parts can give at any moment.

    So it does not matter what the program is doing when it is asked to stop: it may be
    compiling, evaluating, or waiting for an environment's step.
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
        known_counters: dict[str, Any] | None = None,
        at_least: Callable[[], Mapping[str, int]] = dict,
        task_dir: Path | None = None,
        other_tasks: Sequence[Path] = (),
        generations: Generations | None = None,
        acts: bool = True,
        life: int | None = None,
        fill: Callable[[Path], None] = lambda folder: None,
        give_up: Callable[[], None] = lambda: None,
        printer: Callable[[str], None] = print,
        callbacks: TaskCallbacks | None = None,
    ):
        """Args:
        run_dir: the run folder, which must exist.
        config: when to save, and how many checkpoints to keep.
        learner: the learner to save.
        replay: a client of the table to save.
        counters: returns the monitor's state. Raises PeerError or DeadlineExceeded if it cannot.
        about: entries of the manifest that describe the program; plain data.
        known_counters: what the last checkpoint has instead of `counters()` if that fails and has
          never succeeded; None: that checkpoint is then not written.
        at_least: returns what is known of these counters without the monitor, which may not have
          heard of all yet.
        task_dir: where to save; None: in the run folder.
        other_tasks: the folders of the program's other tasks.
        generations: numbers the checkpoint generations of several tasks; None: this task saves
          every `config.period`.
        acts: whether the learner's own parameters act; otherwise the mean return is that of other
          parameters, and is not saved as the checkpoint's.
        life: the learner's life; see `CheckpointScorer`.
        fill: writes further files to a checkpoint's folder.
        give_up: called when the program was asked to stop and is saved, but does not end in time.
        printer: prints a line.
        callbacks: called by `check`, after a checkpoint was written.
        """
        self._callbacks = callbacks
        self._unreported: queue.SimpleQueue[Checkpoint] = queue.SimpleQueue()  # for the callbacks
        self._run_dir = Path(run_dir)
        self._task_dir = self._run_dir if task_dir is None else task_dir
        self._store = Checkpoints(self._task_dir, config.keep, other_tasks)
        self._generations = generations
        self._generation = 0 if generations is None else generations.current()
        self._config = config
        self._learner = learner
        self._replay = replay
        self._counters = counters
        self._known_counters = known_counters
        self._at_least = at_least
        self._about, self._acts = about, acts
        self._fill = fill
        self._give_up = give_up
        self._printer = printer
        self._ended = threading.Event()  # the program's own loop has ended
        self._grace_end: float | None = None  # by the monotonic clock; None until the program ends
        self._table_seconds = 0.0  # how long the last save of the table took
        self._abandoned = self._slow = False  # the latter: a slow checkpoint was reported
        self._saved, self._counted = learner.version or -1, dict(at_least())
        self._scorer = CheckpointScorer((known_counters or {}).get("evaluation", {}), life)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, stop: threading.Event) -> None:
        """Starts the thread. `stop` is set when the program is asked to stop."""
        self._thread = threading.Thread(target=self._run, args=(stop,), name="checkpoints")
        self._thread.daemon = True
        self._thread.start()

    def check(self) -> None:
        """Calls the callbacks. Raises the thread's error, if it has failed for good."""
        if self._error is not None:
            raise self._error
        while self._callbacks and not self._unreported.empty():
            self._callbacks.saved(*self._unreported.get())

    def close(self) -> None:
        """Saves the state in which the program's loop has ended, and waits until it is written.

        That is a checkpoint and `params.npz`; each is written even if the other cannot be.

        Raises:
          SaveError: one of them, or both, could not be saved in time.
          Diverged: the learner's state is not finite, and was not saved.
        """
        self._begin_grace()
        self._ended.set()
        if self._thread is None:
            return
        self._thread.join(longest_wait(self._config.grace))
        if self._thread.is_alive():
            raise SaveError(
                f"the last checkpoint was not written within checkpoint.grace="
                f"{self._config.grace:g} s"
            )
        self.check()

    def abandon(self) -> None:
        """Saves nothing more: the program's loop has failed."""
        self._abandoned = True
        self._ended.set()

    def _run(self, stop: threading.Event) -> None:
        try:
            while self._wait(stop):
                if self._generations is None and not self._has_news():
                    continue  # nothing to lose
                try:
                    self.save()
                except (OSError, PeerError, DeadlineExceeded) as error:
                    # Perhaps temporary: a full disk, a busy monitor. The previous checkpoint stays.
                    self._printer(f"distrl: no checkpoint: {type(error).__name__}: {error}")
            if self._abandoned:
                return
            self._begin_grace()
            # The update or step in progress is saved too, unless it takes long.
            self._ended.wait(_MAIN_S)
            self._save_last()
            if not self._ended.wait(max(0.0, min(_LEAVE_S, self._left_of_grace()))):
                self._give_up()
            elif self._learner.version != self._saved:
                self._save_last()
        except BaseException as error:  # raised in the program's own loop, by `check`
            self._error = error

    def _begin_grace(self) -> None:
        """Records that the program ends: a periodic save in progress counts as grace time, too."""
        if self._grace_end is None:
            self._grace_end = time.monotonic() + self._config.grace

    def _left_of_grace(self) -> float:
        """Returns how many seconds are left for the last save."""
        return self._config.grace if self._grace_end is None else self._grace_end - time.monotonic()

    def _has_news(self) -> bool:
        """Returns whether there were updates or environment steps since the last checkpoint."""
        learned = not 0 < self._learner.version == self._saved
        return learned or self._at_least() != self._counted

    def _wait(self, stop: threading.Event) -> bool:
        """Waits until it is time to save; returns False for the last save."""
        period = self._config.period
        due = None if period is None else time.monotonic() + period
        while not (self._ended.is_set() or stop.wait(_POLL_S)):
            if self._generations is not None:
                number = self._generations.current()
                if number > self._generation:
                    self._generation = number
                    return True
            elif due is not None and time.monotonic() >= due:
                return True
        return False

    def _save_last(self) -> None:
        """Writes the last checkpoint and the final parameters. Raises: see `close`."""
        failures = []
        if self._generations is not None:
            self._generation = self._generations.last()
        for name, save in (
            ("the last checkpoint", lambda: self.save(last=True)),
            (PARAMS, lambda: save_params(self._task_dir / PARAMS, *self._learner.variables)),
        ):
            try:
                save()
            except (OSError, PeerError, DeadlineExceeded, SaveError) as error:
                failures.append(f"{name}: {type(error).__name__}: {error}")
        if failures:
            raise SaveError(one_line(f"could not save {'; '.join(failures)}"))

    def save(self, last: bool = False) -> Path:
        """Saves a checkpoint now.

        Args:
          last: it is the program's last checkpoint, and an incomplete one is better than none: if
            the replay does not answer, it has no table, and if the monitor does not, its counters
            are those of the previous checkpoint.

        Raises:
          OSError: for example because the disk is full.
          PeerError, DeadlineExceeded: the monitor or the replay does not answer.
          Diverged: the learner's state is not finite.
          SaveError: the learner's state is lost.
        """
        began, counted = time.monotonic(), dict(self._at_least())
        state = self._learner.state()
        self._learner.check(state)
        path = self._store.write(state.version, lambda folder: self._write(folder, state, last))
        self._saved, self._counted = state.version, counted
        if self._callbacks:
            self._unreported.put(Checkpoint(path, Checkpoint.read_manifest(path)))
        nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        seconds = time.monotonic() - began
        self._printer(f"checkpoint {path.name}: {nbytes / 1e6:.1f} MB in {seconds:.2f} s")
        if seconds > self._config.grace and not (last or self._slow):
            self._slow = True
            self._printer(
                f"distrl: the last checkpoint would be lost if it took {seconds:.0f} s, too: it "
                f"has checkpoint.grace={self._config.grace:g} s; raise that, or set "
                "checkpoint.replay=False"
            )
        return path

    def _write(self, folder: Path, state: TrainingState, last: bool) -> dict[str, Any]:
        # Asked before saving, which may take long: later evaluations are of newer parameters.
        evaluated = None if last else self._counters()
        save_params(folder / PARAMS, state.version, state.params)
        save_nest(folder / LEARNER, state.agent)
        table = self._save_table(folder / TABLE, last) if self._config.replay else None
        self._fill(folder)
        monitor = self._read_counters(last)
        score = self._scorer.take(evaluated or monitor, state.version, state.adopted)
        return {
            **self._about,
            **({} if self._generations is None else {"round": self._generation}),
            "env_steps": state.trained_steps,  # under the name of the first checkpoints
            "consumed": state.consumed,
            "seconds_waiting": state.waited,
            "inserted_steps": state.inserted,
            "inserts": state.inserts,
            "unrolls_too_old": state.too_old,
            "updates_skipped": UpdateCheck.skipped(state.record),
            "params_checksum": checksum(state.params),
            "learner_checksum": checksum(state.agent),
            "table": table,
            "monitor": {**monitor, "evaluation": self._scorer.newest},
            # The score of the parameters: another policy's returns say nothing about them.
            "mean_return": monitor["mean_return"] if self._acts else None,
            "full_window": monitor["full_window"],
            **score,
            "lives": lives(self._run_dir),
            "programs": {**versions(), "machine": os.uname().nodename},
        }

    def _save_table(self, folder: Path, last: bool) -> dict[str, Any] | None:
        """Returns the table's entry of the manifest; None if it could not be saved."""
        timeout, began = self._config.grace, time.monotonic()
        try:
            if last:
                left = self._left_of_grace()
                if self._table_seconds > left:
                    raise DeadlineExceeded(
                        f"it took {self._table_seconds:.1f} s the last time, and of "
                        f"checkpoint.grace={self._config.grace:g} s {max(0.0, left):.1f} s are left"
                    )
                timeout *= _TABLE_SHARE
            facts = self._replay.save(folder, timeout)
            self._table_seconds = time.monotonic() - began
            return facts
        except (PeerError, DeadlineExceeded) as error:
            if not last:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            self._printer(f"distrl: the last checkpoint has no replay table: {one_line(error)}")
            return None

    def _read_counters(self, last: bool) -> dict[str, Any]:
        """Returns the monitor's state, in the last checkpoint as far as it is known."""
        try:
            known = self._known_counters = self._counters()
        except (PeerError, DeadlineExceeded) as error:
            if not last or self._known_counters is None:
                raise
            known = self._known_counters
            self._printer(
                f"distrl: the last checkpoint has older counts of episodes: {one_line(error)}"
            )
        least = {name: max(known[name], count) for name, count in self._at_least().items()}
        return {**known, **least}
