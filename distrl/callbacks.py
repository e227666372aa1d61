"""What a user wants to happen while a policy learns: calls at updates, evaluations, checkpoints."""

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distrl.errors import CallbackError, ConfigError
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
      mean_return, min_return, max_return: of the evaluation's episodes.
      success_rate: from 0 to 1; None: the environment does not report success.
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
      mean_return: of the most recent training episodes; None before the first one ended, and where
        the policy learns from another's steps.
    """

    task: str
    path: Path
    learner_steps: int
    mean_return: float | None


class Callback:
    """Called in the process that learns, in its main thread, between two updates.

    Training waits while a method runs, and an exception of one ends the run, which is saved
    first. A learner that is restarted begins with callbacks as they were when the program
    started. Subclasses override what they need.
    """

    def on_update(self, update: Update) -> None:
        """Called after every update."""

    def on_evaluation(self, scores: EvaluationScores) -> None:
        """Called once for every evaluation, in order; with `evaluator.num_evaluators` above 0.

        Those that end while an update is computed, or after the last one, wait for its end.
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


@dataclasses.dataclass(frozen=True)
class TaskCallbacks:
    """The callbacks of an experiment, as the learner of one task calls them.

    Attributes:
      task: name of the task.
      callbacks: called in this order.
    """

    task: str
    callbacks: Sequence[Callback]

    def __bool__(self) -> bool:
        return bool(self.callbacks)

    @property
    def on_update(self) -> Callable[[int, int, Mapping[str, Any], Params], None] | None:
        """What to call after an update; None if no callback listens, which then costs nothing."""
        listening = [
            callback
            for callback in self.callbacks
            if type(callback).on_update is not Callback.on_update
        ]

        def call(learner_steps: int, trained_steps: int, logs: Any, params: Params) -> None:
            update = Update(self.task, learner_steps, trained_steps, logs, params)
            for callback in listening:
                with _naming(callback, "on_update"):
                    callback.on_update(update)

        return call if listening else None

    def evaluated(self, report: Mapping[str, Any]) -> None:
        """Passes on what `Evaluator.play` returned, if any episode has ended."""
        if report["evaluation_return"] is None:
            return
        scores = EvaluationScores.of_report(self.task, report)
        for callback in self.callbacks:
            with _naming(callback, "on_evaluation"):
                callback.on_evaluation(scores)

    def saved(self, path: Path, manifest: Mapping[str, Any]) -> None:
        """Passes on that a checkpoint was written."""
        checkpoint = SavedCheckpoint(
            self.task, path, int(manifest["version"]), manifest["mean_return"]
        )
        for callback in self.callbacks:
            with _naming(callback, "on_checkpoint"):
                callback.on_checkpoint(checkpoint)


@contextlib.contextmanager
def _naming(callback: Callback, method: str) -> Iterator[None]:
    """Raises CallbackError for what a callback's method raises."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        by_user = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if isinstance(error, KeyboardInterrupt) and by_user:  # with a loop of their own: Ctrl-C
            raise
        what = f"{type(callback).__name__}.{method}"
        text = " ".join(str(error).split())
        raise CallbackError(f"{what}: {type(error).__name__}: {text}".rstrip(": ")) from error
