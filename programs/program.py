"""A Launchpad program of an experiment, to which a topology adds its nodes."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import launchpad as lp

from distrl.checkpointing.resume_point import ResumePoint
from distrl.experiment import Experiment
from distrl.programs.groups import NodeGroup


class NodeHandle(NamedTuple):
    """The means by which other nodes call a node.

    Attributes:
      name: its name, e.g. "learner/0".
      client: its handle; in a node that got it as an argument, the client.
      timeout: deadline of the client's calls in seconds; None: not known.
    """

    name: str
    client: Any
    timeout: float | None = None

    @property
    def group(self) -> str:
        """The label of the node's group."""
        return self.name.partition("/")[0]


class LinkedProgram(lp.Program):
    """An `lp.Program` that knows which of its groups call which.

    Attributes:
      links: labels of a group that calls and of one that it calls, each pair once, in order.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.links: list[tuple[str, str]] = []


class ExperimentProgram:
    """An `lp.Program` with what all of its nodes share.

    Attributes:
      launchpad: the `lp.Program`, with its links.
      experiment: what to train.
      run_dir: the run folder.
      resume_point: the checkpoint to resume from, if any.
      unique_name: differs from program to program: two Reverb servers on one port are both
        accepted, and clients tell them apart by their tables' names.
    """

    def __init__(self, experiment: Experiment, run_dir: str, resume_point: ResumePoint | None):
        resume_point = resume_point or ResumePoint()
        if experiment.lockstep:  # its rounds restart, with an empty table
            resume_point = resume_point._replace(with_table=False)
        self.launchpad = LinkedProgram("distrl")
        self.experiment = experiment
        self.run_dir = run_dir
        self.resume_point = resume_point
        self.unique_name = uuid.uuid4().hex[:8]

    def add_courier_node(
        self,
        group: NodeGroup,
        constructor: type,
        *args: object,
        call_timeout: float | None = None,
        endpoints: Sequence[lp.Address] = (),
        **kwargs: object,
    ) -> NodeHandle:
        """Adds a CourierNode whose clients have a deadline.

        Args:
          group: the node's group.
          constructor: makes the node's object, in the node, from the experiment, `args` and
            `kwargs`; handles among them arrive as clients.
          call_timeout: deadline in seconds of every call to it; None: `supervision.call_timeout`.
          endpoints: further addresses that the node's object serves by itself.
        """
        for called in dict.fromkeys(_groups_of((args, kwargs))):
            self._link(group.name, called)
        node = lp.CourierNode(constructor, self.experiment, *args, **kwargs)
        for endpoint in endpoints:
            node.allocate_address(endpoint)
        handle = self.add_node(group, node)
        timeout = call_timeout or self.experiment.supervision.call_timeout
        handle.client.set_client_kwargs(call_timeout=timeout)
        return handle._replace(timeout=timeout)

    def _link(self, caller: str, called: str) -> None:
        if (caller, called) not in self.launchpad.links:
            self.launchpad.links.append((caller, called))

    def add_node(self, group: NodeGroup, node: Any, calls: NodeHandle | None = None) -> NodeHandle:
        """Adds any Launchpad node. Args: calls: a node that it calls."""
        if calls is not None:
            self._link(group.name, calls.group)
        index = len(self.launchpad.groups.get(group.name, ()))
        with self.launchpad.group(group.name):
            return NodeHandle(f"{group.name}/{index}", self.launchpad.add_node(node))


def _groups_of(argument: object) -> Iterator[str]:
    """Yields the groups of all handles in an argument, which may be in collections."""
    group = getattr(argument, "group", None)
    if isinstance(group, str):
        yield group
    elif isinstance(argument, Mapping):
        yield from _groups_of(tuple(argument.values()))
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from _groups_of(part)
