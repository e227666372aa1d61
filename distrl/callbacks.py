"""Callbacks: the user's code that runs after updates, evaluations and checkpoints."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distrl.errors import CallbackError, ConfigError
from distrl.runtime.traceback_text import describe_error
from distrl.types import Params


class Update(NamedTuple):
    """An update that a learner has made.

    Attributes:
      task: name of the task; the policy's name where there are several.
      learner_steps: updates up to now, this one included.
      trained_steps: transitions that were trained on up to now.
      logs: what the algorithm logs of this update, by name: scalars that may still be computed on
        the device. `float(...)` waits for them, and so for the update.
      params: the parameters that the update made, on the device.
    """

    task: str
    learner_steps: int
    trained_steps: int
    logs: Mapping[str, Any]
    params: Params


class EvaluationScores(NamedTuple):
    """The scores of an evaluation.

    Attributes:
      task: name of the task.
      learner_steps: number of updates that made the parameters.
      mean_return, min_return, max_return: the returns of the evaluation's episodes.
      success_rate: share of successes, from 0 to 1; None: the environment does not report success.
    """

    task: str
    learner_steps: int
    mean_return: float
    min_return: float
    max_return: float
    success_rate: float | None

    @classmethod
    def of_report(cls, task: str, report: Mapping[str, Any]) -> "EvaluationScores":
        """Returns the scores in what `Evaluator.play` returned for a task."""
        return cls(
            task,
            int(report.get("version", 0)),
            float(report["evaluation_return"]),
            float(report["evaluation_return_min"]),
            float(report["evaluation_return_max"]),
            report.get("evaluation_success_rate"),
        )


class SavedCheckpoint(NamedTuple):
    """A checkpoint that was written.

    Attributes:
      task: name of the task.
      path: its folder, from which `distrl.load_policy` loads.
      learner_steps: number of updates that made its parameters.
      mean_return: mean return of the most recent training episodes; None before the first one has
        ended, and where the policy learns from another's steps.
    """

    task: str
    path: Path
    learner_steps: int
    mean_return: float | None


class EndRun(Exception):
    """Raised by a callback's method, ends the run as if its goal were reached.

    With several policies it ends the one that the method was called about; the run ends with the
    last one. As after a goal, it takes other processes a moment to hear of it, in which they may
    make further updates.
    """

    def __init__(self, reason: str):
        """Args: reason: it is printed, and written to `result.json`."""
        super().__init__(reason)
        if not (isinstance(reason, str) and reason.strip()):
            raise ConfigError(f"EndRun: give the reason as a text, got {reason!r}")


class Callback:
    """Called in the process that learns, in its main thread, between two updates.

    Training waits while a method runs. `EndRun`, raised in one, ends the run as if its goal were
    reached; any other exception ends it as failed. The run is saved first in both cases. A learner
    that is restarted begins with the callbacks as they were when the program started. Subclasses
    override what they need.
    """

    def on_update(self, update: Update) -> None:
        """Called after every update."""

    def on_evaluation(self, scores: EvaluationScores) -> None:
        """Called once for every evaluation, in order, if `evaluator.num_evaluators` is above 0.

        The calls are made between two updates, and at the end for the evaluations that are left.
        """

    def on_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        """Called after a checkpoint was written, the program's last one included."""


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raises ConfigError unless all are callbacks."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                "callbacks: each must be an object of a subclass of distrl.callbacks.Callback, got "
                f"{callback!r}"
            )


@dataclasses.dataclass
class TaskCallbacks:
    """The callbacks of an experiment, as the learner of one task calls them.

    Attributes:
      task: name of the task.
      callbacks: called in this order.
      end: ends the task, given the reason; called for an `EndRun` when all callbacks have been.
    """

    task: str
    callbacks: Sequence[Callback]
    end: Callable[[str], None] = lambda reason: None

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    @property
    def on_update(self) -> Callable[[int, int, Mapping[str, Any], Params], None] | None:
        """What to call after an update; None if no callback overrides it: then it costs nothing."""
        listening = [
            callback
            for callback in self.callbacks
            if type(callback).on_update is not Callback.on_update
        ]

        def call(learner_steps: int, trained_steps: int, logs: Any, params: Params) -> None:
            update = Update(self.task, learner_steps, trained_steps, logs, params)
            self._call("on_update", update, listening)

        return call if listening else None

    def evaluated(self, report: Mapping[str, Any]) -> None:
        """Passes on what `Evaluator.play` returned, if any episode has ended."""
        if report["evaluation_return"] is None:
            return
        self._call("on_evaluation", EvaluationScores.of_report(self.task, report), self.callbacks)

    def saved(self, path: Path, manifest: Mapping[str, Any]) -> None:
        """Calls the callbacks about a checkpoint that was written."""
        checkpoint = SavedCheckpoint(
            self.task, path, int(manifest["version"]), manifest["mean_return"]
        )
        self._call("on_checkpoint", checkpoint, self.callbacks)

    def _call(self, method: str, news: Any, callbacks: Sequence[Callback]) -> None:
        reasons = []
        for callback in callbacks:
            try:
                with _naming(callback, method):
                    getattr(callback, method)(news)
            except EndRun as ending:
                reasons.append(str(ending))
        if reasons:
            self.end("; ".join(reasons))


@contextlib.contextmanager
def _naming(callback: Callback, method: str) -> Iterator[None]:
    """Raises CallbackError for what a callback's method raises, but for `EndRun`."""
    try:
        yield
    except EndRun:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        by_user = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if isinstance(error, KeyboardInterrupt) and by_user:  # with a loop of their own: Ctrl-C
            raise
        what = f"{type(callback).__name__}.{method}"
        raise CallbackError(f"{what}: {describe_error(error)}") from error
