"""What follows for learner and actors from how long an update takes."""

from collections.abc import Sequence

from distrl.agents.compiling import is_long
from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.nodes.process import has_own_process
from distrl.runtime.host_resources import usable_cores


def publishes_late(experiment: Experiment, tasks: Sequence[str]) -> bool:
    """Whether a learner of these tasks may publish parameters a little later than it could.

    Not where data is used once or must be young, nor where a schedule or a round waits for them.
    """
    if len(tasks) > 1 or experiment.lockstep or not has_own_process():
        return False
    task = experiment.tasks[tasks[0]]
    is_free = experiment.actors.min_actors is None and not task.learner.num_gradient_workers
    return is_free and task.replay.table != "queue" and task.learner.max_policy_lag is None


def has_long_updates(builder: Builder) -> bool:
    """Whether an update is long enough to sample the next batch meanwhile."""
    replay, learner = builder.task.replay, builder.task.learner
    return is_long(builder.agent, replay.unroll_length * learner.batch_size)


def keeps_actors_to_cores(experiment: Experiment, builder: Builder) -> bool:
    """Whether each actor of one thread is kept to a core.

    Not if that leaves no core to a learner of short updates, which the actors wait for: with two
    cores and an actor on each, DQN for CartPole makes 1,350 updates a second if the actor that runs
    is on the learner's core, and 2,500 if not; with actors that may change cores 2,300 to 2,500.
    Long updates leave the cores to others now and then, and R2D2 for CartPole makes 6 % more with
    actors kept to cores.
    """
    if not experiment.actors.pin or not has_own_process():
        return False
    waits = publishes_late(experiment, list(experiment.tasks)) and not has_long_updates(builder)
    return not waits or experiment.actors.num_actors < usable_cores()
