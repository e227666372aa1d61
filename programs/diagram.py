"""What a program consists of, to be drawn: groups of nodes, and what flows between them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from distrl.experiment import Experiment
from distrl.programs.groups import (
    ACTOR,
    EVALUATOR,
    FLOWS,
    INFERENCER,
    LEARNER,
    MONITOR,
    POPULATION,
    REPLAY,
)


class Box(NamedTuple):
    """A group of nodes.

    Attributes:
      group: its label.
      num_nodes: number of nodes.
      lines: facts about it.
    """

    group: str
    num_nodes: int
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """The label, and the count unless it is 1."""
        return self.group.replace("_", " ") + (f" × {self.num_nodes}" if self.num_nodes > 1 else "")


class Flow(NamedTuple):
    """Data from a group to another.

    Attributes:
      source, target: labels.
      what: the data; "": not known.
      is_called: whether the source calls the target; else it answers.
    """

    source: str
    target: str
    what: str
    is_called: bool


class Diagram(NamedTuple):
    """A program, to be drawn.

    Attributes:
      title: names the experiment and its topology.
      boxes: the groups.
      flows: what flows between them.
      links: pairs of a group that calls and one that it calls.
      in_one_process: whether all of it is one process.
    """

    title: str
    boxes: tuple[Box, ...]
    flows: tuple[Flow, ...]
    links: tuple[tuple[str, str], ...]
    in_one_process: bool = False


def diagram_of(
    experiment: Experiment,
    topology: str,
    counts: Mapping[str, int],
    links: Iterable[tuple[str, str]],
    hosts: Mapping[str, str] | None = None,
) -> Diagram:
    """Returns the diagram of a program of nodes.

    Args:
      experiment: what it trains.
      topology: its topology's name.
      counts: number of nodes by label.
      links: pairs of labels: a group that calls, and one that it calls.
      hosts: the host of each node by the node's name, where there are several.
    """
    links = tuple(links)
    boxes = [
        Box(label, count, (*_facts(experiment, label), *_where(label, hosts or {})))
        for label, count in counts.items()
    ]
    title = f"{experiment.environment.name} in {topology}"
    return Diagram(title, tuple(boxes), tuple(_flows(links)), links)


def diagram_of_one_process(experiment: Experiment) -> Diagram:
    """Returns the diagram of `single_process`, whose parts call each other as nodes do."""
    tasks, acting = len(experiment.tasks), len(experiment.acting_tasks)
    counts = {ACTOR.name: 1, INFERENCER.name: acting, REPLAY.name: tasks, LEARNER.name: tasks}
    links = [
        (ACTOR.name, INFERENCER.name),
        (ACTOR.name, REPLAY.name),
        (LEARNER.name, REPLAY.name),
        (INFERENCER.name, LEARNER.name),
    ]
    if experiment.evaluator.num_evaluators:
        counts[EVALUATOR.name] = 1
        links.append((EVALUATOR.name, LEARNER.name))
    if experiment.population is not None:
        counts[POPULATION.name] = 1
        links.append((POPULATION.name, LEARNER.name))
    counts[MONITOR.name] = 1
    # The loop itself reports for those that nodes of the others have.
    reporting = [label for label in counts if label not in (INFERENCER.name, REPLAY.name)]
    links += [(label, MONITOR.name) for label in reporting if (label, MONITOR.name) in FLOWS]
    diagram = diagram_of(experiment, "single_process", counts, links)
    actors = experiment.actors
    boxes = [
        box._replace(lines=(f"all {actors.num_streams} environments",))
        if box.group == ACTOR.name
        else box
        for box in diagram.boxes
    ]
    return diagram._replace(boxes=tuple(boxes), in_one_process=True)


def _flows(links: Sequence[tuple[str, str]]) -> Iterable[Flow]:
    for caller, called in links:
        there, back = FLOWS.get((caller, called), ("", ""))
        if there or not back:
            yield Flow(caller, called, there, True)
        if back:
            yield Flow(called, caller, back, False)


def _facts(experiment: Experiment, label: str) -> tuple[str, ...]:
    """Returns what a group of these settings does, in a few words."""
    tasks = list(experiment.tasks.values())
    names = (f"of {', '.join(experiment.tasks)}",) if len(tasks) > 1 else ()
    if label == ACTOR.name:
        actors = experiment.actors
        most = f"up to {actors.largest_num_actors} by `distrl actors`"
        envs = f"{actors.num_envs} environments each"
        return (envs, most) if actors.largest_num_actors > actors.num_actors else (envs,)
    if label == LEARNER.name:
        sizes = dict.fromkeys(f"batches of {task.learner.batch_size} unrolls" for task in tasks)
        gpus = sum(task.learner.num_gpus for task in tasks)
        return (*sizes, *((f"{gpus} GPUs",) if gpus else ()), *names)
    if label == REPLAY.name:
        tables = dict.fromkeys(
            f"{task.replay.table}, {task.replay.max_size:,} unrolls of {task.replay.unroll_length}"
            for task in tasks
        )
        return (*tables, *names)
    if label == INFERENCER.name and experiment.inference.num_gpus:
        return (f"{experiment.inference.num_gpus} GPUs", *names)
    if label == EVALUATOR.name:
        evaluator = experiment.evaluator
        return (f"{evaluator.episodes} episodes every {evaluator.interval:g} s",)
    return names if label == INFERENCER.name else ()


def _where(label: str, hosts: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the hosts of a group's nodes, with how many each has."""
    counts: dict[str, int] = {}
    for node, host in hosts.items():
        if node.partition("/")[0] == label:
            counts[host] = counts.get(host, 0) + 1
    several = sum(counts.values()) > 1
    each = [f"{host} ({count})" if several else host for host, count in counts.items()]
    more = f" and {len(each) - 3} more" if len(each) > 3 else ""
    return (f"on {', '.join(each[:3])}{more}",) if each else ()
