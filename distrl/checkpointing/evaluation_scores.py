"""Decides which evaluation scores which of a task's checkpoints."""

from collections.abc import Mapping
from typing import Any


class CheckpointScorer:
    """Gives each evaluation to one checkpoint.

    Attributes:
      newest: the last evaluation of parameters that the learner's own descend from; {}: none yet.
    """

    def __init__(self, newest: Mapping[str, Any], life: int | None):
        """Args:
        newest: the last evaluation that an earlier checkpoint knows.
        life: the learner's life, which evaluations of its parameters carry; those of another life
          score none of its checkpoints. None: evaluations carry no life, as in one process.
        """
        self.newest, self._life = dict(newest), life

    def take(self, monitor: Mapping[str, Any], version: int, adopted: int = -1) -> dict[str, Any]:
        """Returns entries of the manifest on an evaluation; none if it does not score this one.

        It scores the first checkpoint after it only, and none if it ended no episode, or if its
        parameters were lost with an earlier life of the learner, or replaced by another learner's.

        Args:
          monitor: the monitor's state.
          version: the checkpoint's version.
          adopted: the last version at which its parameters were replaced.
        """
        evaluation = monitor.get("evaluation", {})
        number = evaluation.get("evaluations")
        if number == self.newest.get("evaluations"):
            return {}
        if evaluation.get("learner_life") != self._life or evaluation["version"] <= adopted:
            self.newest["evaluations"] = number
            return {}
        if evaluation["version"] > version:
            return {}  # updates continue during a save; it is for the next checkpoint
        self.newest = dict(evaluation)
        if evaluation["evaluation_return"] is None:
            return {}
        return {
            "evaluation_return": evaluation["evaluation_return"],
            "evaluated_version": evaluation["version"],
        }
