"""The node groups of a program, a row each: how its nodes are stopped, restarted and equipped."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports JAX, which a launcher of processes must not
    from distrl.experiment import Experiment

ENDPOINT_PORT_NAME = "endpoint"  # names the addresses that a node itself serves, with Courier

NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
"""Environment variables of a process that sees no GPU."""


def _none(experiment: "Experiment") -> int:
    del experiment
    return 0


@dataclasses.dataclass(frozen=True)
class NodeGroup:
    """The facts about a group of nodes.

    Attributes:
      name: Launchpad's label; its nodes are "name/0", "name/1" and so on.
      stop_phase: groups are stopped in ascending phases, those of one phase together.
      restartable: whether a node that dies or hangs may be restarted while the others run.
      may_return: whether a node may end by itself, with status 0; otherwise that is a failure.
      one_thread: whether XLA gets one thread: more would take the cores that other nodes act on.
      saves: whether its nodes get the checkpoint's grace time to save when they are stopped.
      keeps_data: whether the program ends if a host that has one of its nodes is lost.
      oom_score: where memory runs out, the kernel kills nodes with a high score first, the launcher
        last, and environments in processes before all nodes; see `host_resources.raise_oom_score`.
      num_gpus: from an experiment to the GPUs that all nodes of the group have together.
    """

    name: str
    stop_phase: int
    restartable: bool = False
    may_return: bool = False
    one_thread: bool = False
    saves: bool = False
    keeps_data: bool = False
    oom_score: int = 200
    num_gpus: "Callable[[Experiment], int]" = _none


# Actors may be blocked in a call to a server, so nodes that only call are stopped first, and the
# replay, which everyone calls, last.
ACTOR = NodeGroup("actor", stop_phase=0, restartable=True, one_thread=True)
EVALUATOR = NodeGroup("evaluator", stop_phase=0, restartable=True, one_thread=True)
INFERENCER = NodeGroup(
    "inferencer",
    stop_phase=1,
    restartable=True,
    one_thread=True,
    num_gpus=lambda experiment: experiment.inference.num_gpus,
)
POPULATION = NodeGroup("population", stop_phase=0, restartable=True, one_thread=True)
RELAY = NodeGroup("relay", stop_phase=1, restartable=True, one_thread=True)
LEARNER = NodeGroup(
    "learner",
    stop_phase=2,
    restartable=True,
    saves=True,
    keeps_data=True,
    oom_score=100,
    num_gpus=lambda experiment: sum(t.learner.num_gpus for t in experiment.tasks.values()),
)
# A server of learners, which outlives them.
GRADIENT_WORKER = NodeGroup("gradient_worker", stop_phase=3, restartable=True, one_thread=True)
MONITOR = NodeGroup("monitor", stop_phase=3, oom_score=100)
REPLAY = NodeGroup("replay", stop_phase=5, restartable=True, keeps_data=True, oom_score=100)

GROUPS = {group.name: group for group in tuple(globals().values()) if isinstance(group, NodeGroup)}
"""Every row above, by name."""

# What flows where a group calls another: from the caller, and back to it.
_PARAMETERS = ("", "parameters")
FLOWS: dict[tuple[str, str], tuple[str, str]] = {
    (ACTOR.name, REPLAY.name): ("trajectories", ""),
    (LEARNER.name, REPLAY.name): ("", "batches of trajectories"),
    (ACTOR.name, INFERENCER.name): ("observations", "actions"),
    (ACTOR.name, LEARNER.name): _PARAMETERS,
    (ACTOR.name, RELAY.name): _PARAMETERS,
    (INFERENCER.name, LEARNER.name): _PARAMETERS,
    (RELAY.name, LEARNER.name): _PARAMETERS,
    (EVALUATOR.name, LEARNER.name): _PARAMETERS,
    (LEARNER.name, GRADIENT_WORKER.name): ("parameters, batch shares", "gradients"),
    (POPULATION.name, LEARNER.name): ("copies, hyperparameters", ""),
    (POPULATION.name, MONITOR.name): ("", "standings"),
    (ACTOR.name, MONITOR.name): ("reports", ""),
    (LEARNER.name, MONITOR.name): ("reports", ""),
    (EVALUATOR.name, MONITOR.name): ("reports", ""),
    (INFERENCER.name, MONITOR.name): ("reports", ""),
    (REPLAY.name, MONITOR.name): ("reports", ""),
    (GRADIENT_WORKER.name, MONITOR.name): ("reports", ""),
    (RELAY.name, MONITOR.name): ("reports", ""),
}
_OTHERS_PHASE = 4  # the stop phase of groups that a user's own program adds


def learner_name(experiment: "Experiment", task: str) -> str:
    """Returns the node that learns a task: several that share parameters have one."""
    nodes = enumerate(experiment.learner_nodes)
    return next(f"{LEARNER.name}/{index}" for index, tasks in nodes if task in tasks)


def num_services(experiment: "Experiment") -> int:
    """Returns the inferencers of a program that has any: each acting task has its own."""
    return experiment.inference.num_inferencers * len(experiment.acting_tasks)


def num_gpus_by_node(experiment: "Experiment", light: bool) -> dict[str, int]:
    """Returns, by name, the nodes that see GPUs, and how many. Args: see `num_gpus_together`."""
    counts = {
        f"{LEARNER.name}/{index}": sum(experiment.tasks[name].learner.num_gpus for name in names)
        for index, names in enumerate(experiment.learner_nodes)
    }
    if light and experiment.inference.num_gpus:
        services = range(num_services(experiment))
        counts.update({f"{INFERENCER.name}/{index}": 1 for index in services})
    return {name: count for name, count in counts.items() if count}


def num_gpus_together(experiment: "Experiment", light: bool) -> int:
    """Returns the GPUs that a program needs. Args: light: whether inferencers serve the actors."""
    of_learners = LEARNER.num_gpus(experiment)
    of_inferencers = INFERENCER.num_gpus(experiment) if light else 0
    if experiment.inference.share_gpus:
        return max(of_learners, of_inferencers)
    return of_learners + of_inferencers


def group_of(label: str) -> NodeGroup:
    """Returns the row of a group; for a group that isn't ours, a row with the default facts.

    Args:
      label: Launchpad's label, e.g. "actor".
    """
    return GROUPS.get(label) or NodeGroup(label, stop_phase=_OTHERS_PHASE, may_return=True)
