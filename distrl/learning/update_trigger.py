"""Decides what starts an update: the learner's loop, the arrival of data, or actors' steps."""

import dataclasses

from distrl.config import LearnerConfig
from distrl.errors import ConfigError
from distrl.replay.config import ReplayConfig


def started_by(
    learner: LearnerConfig, replay: ReplayConfig, num_streams: int, steps_per_env_step: float = 1
) -> ReplayConfig:
    """Returns a table's settings with rate limits that start updates as the learner's settings say.

    With B unrolls in a batch, one update for every N unrolls is a ratio of B / N samples per
    insert, of which the learner must not be ahead.

    Args:
      learner: the learner's settings.
      replay: the table's own settings.
      num_streams: streams of all actors, whose unrolls may arrive at once.
      steps_per_env_step: time steps that are stored for an environment step, several if there
        are several agents; `learner.every_steps` counts the latter.

    Raises:
      ConfigError: the table is a queue.
    """
    unrolls: float | None = learner.every_unrolls
    name = f"learner.every_unrolls={learner.every_unrolls}"
    if learner.every_steps is not None:
        unrolls = learner.every_steps * steps_per_env_step / (replay.period or replay.unroll_length)
        name = f"learner.every_steps={learner.every_steps}"
    if unrolls is None:
        return replay
    if replay.table == "queue":
        raise ConfigError(
            f"{name} is for a table with sampling: a queue's updates are started by the arrival of "
            "learner.batch_size unrolls; leave it None"
        )
    ratio = learner.batch_size / unrolls
    error = max(
        replay.error_buffer or 0.0,
        0.1 * ratio * replay.min_size_to_sample,
        learner.batch_size * max(1.0, ratio),
        ratio * num_streams,
    )
    return dataclasses.replace(
        replay, samples_per_insert=ratio, error_buffer=error, strict_ratio=True
    )


class StepStart:
    """Starts an update each time the actors have taken so many more steps, in one process.

    Skips an update for which there is no batch yet.
    """

    def __init__(self, every: int):
        """Args: every: steps between two updates."""
        self._every = every
        self._seen = self._due = 0

    def is_due(self, steps: int, has_batch: bool) -> bool:
        """Returns whether an update is to be made.

        Args:
          steps: steps that the actors have taken so far.
          has_batch: whether there is a batch.
        """
        self._due += steps // self._every - self._seen // self._every
        self._seen = steps
        if not has_batch:
            self._due = 0
        return self._due > 0

    def done(self) -> None:
        """Records that an update was made."""
        self._due -= 1
