"""Which kind of learner a task has."""

import functools
from collections.abc import Callable

from distrl.agents.agent import Agent
from distrl.agents.compiling import may_overwrite
from distrl.in_place_learner import InPlaceLearner, follows_structs
from distrl.learner import Learner
from distrl.sharing.learner import Sharing, SharingLearner
from distrl.task import Task


def learner_kind(
    task: Task, agent: Agent, sharing: Sharing | None, is_divided: bool, few_readers: bool
) -> Callable[..., Learner]:
    """Returns what makes the task's learner.

    Args:
      task: the task.
      agent: its agent.
      sharing: the parameters that tasks of this process share, if any do.
      is_divided: whether several devices, or gradient workers, compute an update.
      few_readers: whether its parameters are read less often than updates are made.
    """
    if sharing is not None and sharing.shares(task.name):
        return functools.partial(SharingLearner, task=task.name, sharing=sharing)
    # On-policy learners have large batches, beside which the parameters do not count.
    if task.replay.table == "queue" or is_divided or not may_overwrite():
        return Learner
    if not follows_structs(agent):
        return Learner
    return functools.partial(InPlaceLearner, keeps_params=not few_readers)
