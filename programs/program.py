"""The program of an experiment, of either substrate, to which a topology adds its nodes."""

import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.store import Checkpoints, number_of
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.groups import ENDPOINT_PORT_NAME, NodeGroup
from distrl.programs.substrate import AUTO, BUILTIN, resolve
from distrl.programs.substrate.builtin import Address, CallNode, Program
from distrl.runtime.durations import longest_wait


class FrameEndpoint(NamedTuple):
    """Where a node serves frames, beside the calls of its object.

    Attributes:
      address: an address of the substrate, which the launcher binds.
      key: what clients must know.
    """

    address: Any
    key: str


class NodeHandle(NamedTuple):
    """The means by which other nodes call a node.

    Attributes:
      name: its name, e.g. "learner/0".
      client: its handle; in a node that got it as an argument, the client.
      timeout: deadline of the client's calls in seconds; None: not known.
      served: where those of its calls that are made often are served by frames; None: nowhere.
    """

    name: str
    client: Any
    timeout: float | None = None
    served: FrameEndpoint | None = None

    @property
    def group(self) -> str:
        """The label of the node's group."""
        return self.name.partition("/")[0]


class ExperimentProgram:
    """A program with what all of its nodes share.

    Attributes:
      program: the `lp.Program` or the `substrate.builtin.Program`. Its attribute `links` has which
        of its groups call which: labels of a group that calls and of one that it calls, each pair
        once, in order.
      builtin: whether it has builtin nodes.
      experiment: what to train.
      run_dir: the run folder.
      resume_point: the checkpoint to resume from, if any.
      unique_name: differs from program to program: two Reverb servers on one port are both
        accepted, and clients tell them apart by their tables' names.
    """

    def __init__(
        self,
        experiment: Experiment,
        run_dir: str,
        resume_point: ResumePoint | None,
        substrate: str = AUTO,
    ):
        """Args:
        experiment: what to train.
        run_dir: the run folder.
        resume_point: the checkpoint to resume from, if any.
        substrate: what its nodes are made of.

        Raises:
          ConfigError: the experiment needs another substrate, or it is not installed.
        """
        resume_point = resume_point or ResumePoint()
        if experiment.lockstep:  # its rounds restart, with an empty table
            resume_point = resume_point._replace(with_table=False)
        if len(experiment.tasks) == 1:
            numbers = map(number_of, Checkpoints(run_dir).paths())
            resume_point = resume_point._replace(last_number=max(numbers, default=0))
        self.builtin = resolve(substrate) == BUILTIN
        if self.builtin:
            check_builtin(experiment)
            self.program: Any = Program("distrl")
        else:
            import launchpad as lp

            self.program = lp.Program("distrl")
        self.program.links = []
        self.experiment = experiment
        self.run_dir = run_dir
        self.resume_point = resume_point
        self.unique_name = uuid.uuid4().hex[:8]

    def add_call_node(
        self,
        group: NodeGroup,
        constructor: type,
        *args: object,
        call_timeout: float | None = None,
        endpoints: Sequence[Any] = (),
        **kwargs: object,
    ) -> NodeHandle:
        """Adds a node that others call, with a deadline: a CourierNode or a `CallNode`.

        Args:
          group: the node's group.
          constructor: makes the node's object, in the node, from the experiment, `args` and
            `kwargs`; handles among them arrive as clients.
          call_timeout: deadline in seconds of every call to it; None: `supervision.call_timeout`.
          endpoints: further addresses, of `new_endpoint`, that the node's object serves by itself.
        """
        for called in dict.fromkeys(_groups_of((args, kwargs))):
            self._link(group.name, called)
        node: Any
        if self.builtin:
            node = CallNode(constructor, self.experiment, *args, **kwargs)
        else:
            import launchpad as lp

            node = lp.CourierNode(constructor, self.experiment, *args, **kwargs)
        for endpoint in endpoints:
            node.allocate_address(endpoint)
        handle = self.add_node(group, node)
        timeout = longest_wait(call_timeout or self.experiment.supervision.call_timeout)
        handle.client.set_client_kwargs(call_timeout=timeout)
        return handle._replace(timeout=timeout)

    def new_endpoint(self) -> Any:
        """Returns an address of this substrate, for a node's `endpoints`."""
        if self.builtin:
            return Address(ENDPOINT_PORT_NAME)
        import launchpad as lp

        return lp.Address(ENDPOINT_PORT_NAME)

    def new_frame_endpoint(self) -> FrameEndpoint:
        """Returns one with a new address, for a node's `endpoints`, and a new key."""
        return FrameEndpoint(self.new_endpoint(), secrets.token_hex(32))

    def _link(self, caller: str, called: str) -> None:
        if (caller, called) not in self.program.links:
            self.program.links.append((caller, called))

    def add_node(self, group: NodeGroup, node: Any, calls: NodeHandle | None = None) -> NodeHandle:
        """Adds any node of the program's substrate. Args: calls: a node that it calls."""
        if calls is not None:
            self._link(group.name, calls.group)
        index = len(self.program.groups.get(group.name, ()))
        with self.program.group(group.name):
            return NodeHandle(f"{group.name}/{index}", self.program.add_node(node))


def check_builtin(experiment: Experiment) -> None:
    """Raises ConfigError if the builtin substrate does not have what an experiment asks for."""
    if experiment.inference.transport == "courier":
        raise ConfigError(
            "inference.transport=courier needs Launchpad, and the substrate is builtin; take "
            "inference.transport=auto"
        )
    for task in experiment.tasks.values():
        if task.replay.backend == "reverb":
            raise ConfigError(
                "replay.backend=reverb needs Launchpad and Reverb, and the substrate is builtin; "
                "take replay.backend=auto"
            )


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
