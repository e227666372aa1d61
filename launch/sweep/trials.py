"""Runs trials as processes, several at a time, until all have ended or a signal stops them."""

import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from distrl.errors import ConfigError
from distrl.goal import MISSED
from distrl.launch.python import training_client, training_process
from distrl.launch.runs.run import Run
from distrl.launch.supervision.result import (
    EXIT_FAILED,
    EXIT_FINISHED,
    RESULT_FILE,
    result_since,
    which_result,
)
from distrl.launch.supervision.signals import Signals, run_once
from distrl.launch.supervision.usage import process_usage
from distrl.launch.sweep.fit import TrialSlots
from distrl.launch.sweep.folder import SweepFolder, Trial

_LOOK_S = 1.0  # between two looks at the memory that trials use
_STOP_S = 150.0  # for a trial to save after Ctrl-C, which has limits of its own
_KILL_S = 10.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Start = Callable[[Trial, Mapping[str, str]], "subprocess.Popen[bytes]"]


@dataclasses.dataclass
class _Running:
    """A trial's process.

    Attributes:
      before: the result that its run folder had, see `which_result`.
      slot: its slot.
      started: when it was started.
      memory: the most bytes that it used.
    """

    trial: Trial
    process: "subprocess.Popen[bytes]"
    before: tuple[int, int] | None
    slot: int
    started: float
    memory: int = 0


class Runner:
    """Runs the trials of a sweep that have not ended well yet.

    Attributes:
      stopped_by: the number of the signal that stopped it, or None.
    """

    def __init__(
        self, folder: SweepFolder, slots: TrialSlots, start: Start, say: Callable[[str], None]
    ) -> None:
        """Args:
        folder: the sweep; its trials' ends are written as they come.
        slots: how many run at a time.
        start: starts a trial, with environment variables.
        say: prints a line.
        """
        self._folder, self._slots, self._start, self._say = folder, slots, start, say
        self._todo = [trial for trial in folder.trials if trial.wanted and not trial.is_done]
        self._number, self._count = 0, len(self._todo)
        self._running: list[_Running] = []
        self._seconds: list[float] = []  # durations of the trials that finished or missed
        self._memory: list[int] = []
        self._deadline = float("inf")
        self.stopped_by: int | None = None

    def run(self) -> None:
        """Runs until all have ended. Main thread only; an exception stops those that run."""
        try:
            with Signals() as signals, selectors.DefaultSelector() as selector:
                selector.register(signals, selectors.EVENT_READ)
                while self._todo or self._running:
                    self._fill()
                    run_once(selector, _LOOK_S)
                    self._hear([number for number in signals.pending() if number in _STOPPING])
                    self._look()
        except BaseException:
            for running in self._running:
                running.process.terminate()
            raise

    def _fill(self) -> None:
        while self._todo and self.stopped_by is None:
            free = set(range(self._slots.count)) - {running.slot for running in self._running}
            used = [running.memory for running in self._running]
            if not free or not self._slots.has_room([*used, *self._memory] if used else []):
                return
            trial, slot = self._todo.pop(0), min(free)
            self._number += 1
            self._say(f"distrl: {self._number}/{self._count} {trial.name} starts: {trial}")
            before = which_result(self._folder.run_dir(trial))
            process = self._start(trial, self._slots.environment(slot))
            self._running.append(_Running(trial, process, before, slot, time.monotonic()))

    def _hear(self, signals: Sequence[int]) -> None:
        """Stops all trials at the first signal, and kills them at a second Ctrl-C or too late."""
        for number in signals:
            if self.stopped_by is None:
                self.stopped_by, self._todo = number, []
                self._deadline = time.monotonic() + _STOP_S
                self._say(
                    f"distrl: stopping {len(self._running)} trials, which save; press Ctrl-C "
                    "again to kill immediately"
                )
                for running in self._running:
                    running.process.send_signal(signal.SIGINT)
            elif number == signal.SIGINT:
                self._deadline = 0.0
        now = time.monotonic()
        if self._running and now > self._deadline:
            names = ", ".join(running.trial.name for running in self._running)
            self._say(f"distrl: killing {names}")
            for running in self._running:
                running.process.kill()
            self._deadline = now + _KILL_S

    def _look(self) -> None:
        for running in list(self._running):
            code = running.process.poll()
            if code is None:
                usage = process_usage(running.process.pid)
                if usage is not None:
                    running.memory = max(running.memory, usage.resident)
            else:
                self._running.remove(running)
                self._end(running, code)

    def _end(self, running: _Running, code: int) -> None:
        trial, seconds = running.trial, time.monotonic() - running.started
        self._memory.append(running.memory)
        log = self._folder.log(trial)
        trial.status, trial.reason = ending(
            self._folder.run_dir(trial), running.before, log, code, self.stopped_by is not None
        )
        self._folder.write()
        line = f"distrl: {trial.name} {trial.status} after {seconds:.0f} s: {trial.reason}"
        if trial.is_done:
            self._seconds.append(seconds)
        elif trial.status == "failed":
            line += (
                f"; its output: {log}; the others continue" if self._todo else f"; output: {log}"
            )
        left = len(self._todo) + len(self._running)
        if left and self._seconds and self.stopped_by is None:
            mean = sum(self._seconds) / len(self._seconds)
            line += f" ({left} left, {_duration(mean * left / self._slots.count)})"
        self._say(line)


def ending(
    run_dir: Path, before: tuple[int, int] | None, log: Path, code: int, stopped: bool
) -> tuple[str, str]:
    """Returns a trial's status, and why it ended.

    Args:
      run_dir: its run folder.
      before: see `result_since`.
      log: its output.
      code: the exit status; negative: the signal that ended it.
      stopped: whether it was asked to stop.
    """
    # A run that had finished before leaves its result as it is.
    result = result_since(run_dir, None if code == EXIT_FINISHED else before, code)
    reason = str(result.get("reason") or _last_line(log) or f"exit status {code}")
    if Run(run_dir).has_damaged_result:
        reason += f" ({RESULT_FILE} is damaged)"
    if code == EXIT_FINISHED:
        return "finished", reason
    if code == EXIT_FAILED and MISSED in reason:
        return "missed", reason
    if stopped and (code > 128 or code < 0):
        return "stopped", reason
    return "failed", reason


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes else "less than a minute"


def start_training(folder: SweepFolder) -> Start:
    """Returns what starts a trial as a process that ends, and saves, with this one."""
    group = {"WANDB_RUN_GROUP": folder.path.absolute().name}  # for metrics.wandb

    def start(trial: Trial, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        log = folder.log(trial)
        log.parent.mkdir(exist_ok=True)
        words = [
            *folder.words, *trial.words, f"--seed={trial.seed}",
            f"--run_dir={folder.run_dir(trial)}",
        ]  # fmt: skip
        try:
            with open(log, "ab") as output:
                process, sender = training_client.start(
                    output, {**group, **os.environ, **environment}
                )
        except OSError as error:
            raise ConfigError(f"sweep: {trial.name} cannot be started: {error}") from error
        with sender:
            training_client.give(sender, training_process.order(words, None, sys.argv[:1]))
        return process

    return start
