"""Prepares programs to be run by our launcher, Launchpad's through its public API only."""

import contextlib
import signal
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import cloudpickle
from absl import flags

from distrl.errors import ConfigError
from distrl.programs.groups import group_of
from distrl.programs.substrate import AnyProgram, node_context
from distrl.programs.substrate.builtin import CallNode, Program
from distrl.runtime.host_resources import thread_names

FLAGS = flags.FLAGS
NO_GRPC_PROXY = "no_grpc_proxy"

_managers: list[Any] = []  # Launchpad's, of this process


class NamedNode(NamedTuple):
    """A node of a program.

    Attributes:
      name: "actor/0".
      label: its group, "actor".
      node: an `lp.Node` or a `CallNode`.
    """

    name: str
    label: str
    node: Any


class KnownAddress:
    """An address that is known already.

    Args:
      address: "127.0.0.1:15000" or "unix:/path".
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def build(self) -> str:
        """Returns the address; called in the node."""
        return self._address


def named_nodes(program: AnyProgram) -> list[NamedNode]:
    """Returns the program's nodes in order; raises ConfigError if there are none."""
    nodes = [
        NamedNode(f"{label}/{index}", label, node)
        for label, group in program.groups.items()
        for index, node in enumerate(group)
    ]
    if not nodes:
        raise ConfigError(f"program {program.name!r} has no nodes")
    return nodes


def check_can_run(nodes: Sequence[NamedNode]) -> None:
    """Raises ConfigError if a node, or one colocated in it, is of a kind that cannot be run."""
    if all(isinstance(node.node, CallNode) for node in nodes):
        return
    import launchpad as lp
    from launchpad.nodes.multi_processing_colocation.node import MultiProcessingColocation

    for name, _, node in nodes:
        for inner in _colocated(node):
            if isinstance(inner, MultiProcessingColocation):
                raise ConfigError(
                    f"{name}: MultiProcessingColocation starts processes that are not supervised; "
                    "add its nodes to the program, where each gets a process"
                )
            if not isinstance(inner, lp.PyNode):
                raise ConfigError(
                    f"{name}: a {type(inner).__name__} cannot be run on this machine; use a PyNode "
                    "or one of its subclasses, such as CourierNode"
                )


def check_serializable(program: AnyProgram) -> None:
    """Raises an error if a node cannot be serialized."""
    if isinstance(program, Program):
        for name, _, node in named_nodes(program):
            try:
                cloudpickle.dumps(node)
            except Exception as error:
                raise ConfigError(f"{name} cannot be serialized: {error}") from error
        return
    from launchpad.launch import serialization

    for label, group in program.groups.items():
        serialization.check_nodes_are_serializable(label, group)


def _colocated(node: Any) -> Iterator[Any]:
    """Yields a node and those that run in its threads."""
    import launchpad as lp

    yield node
    if isinstance(node, lp.MultiThreadingColocation):
        for inner in node.nodes:
            yield from _colocated(inner)


def wire(
    program: AnyProgram,
    launch_type: Any,
    stopper: Callable[[str], Callable[..., None]],
    address: Callable[[str, int, str], str],
) -> None:
    """Gives every node its context and its addresses.

    Args:
      program: the program, not launched before.
      launch_type: `launch_type` of the nodes' contexts, an `lp.LaunchType` or its value.
      stopper: returns the `program_stopper` of a node, by the node's name.
      address: returns an address of a node, by the node's name, and the address's index and name.
        Courier's and Reverb's are "courier" and "reverb", also where a colocation renames them.
    """
    nodes = named_nodes(program)
    if not isinstance(program, Program):
        import launchpad as lp

        launch_type = lp.LaunchType(launch_type)
    for name, _, node in nodes:
        node.launch_context.initialize(launch_type, None, program_stopper=stopper(name))
    for _, label, node in nodes:
        for handle in node.input_handles:
            handle.connect(node, label)
    for name, _, node in nodes:
        served = {} if isinstance(program, Program) else _served(node)
        for index, node_address in enumerate(node.addresses):
            kind = served.get(id(node_address), node_address.name)
            node_address.bind(KnownAddress(address(name, index, kind)))


def _served(node: Any) -> dict[int, str]:
    """Returns which addresses are Launchpad's own servers': by `id`, "courier" or "reverb"."""
    served = {}
    for inner in _colocated(node):
        for kind in ("courier", "reverb"):
            node_address = getattr(inner, f"{kind}_address", None)
            if node_address is not None:
                served[id(node_address)] = kind
    return served


def phases(nodes: Sequence[NamedNode]) -> list[list[str]]:
    """Returns nodes' names in the order in which they are stopped, those of a phase together."""
    numbers = sorted({group_of(node.label).stop_phase for node in nodes})
    return [
        [node.name for node in nodes if group_of(node.label).stop_phase == number]
        for number in numbers
    ]


@contextlib.contextmanager
def preserve_alarm() -> Iterator[None]:
    """Restores the process's alarm timer, which Launchpad's worker managers switch off."""
    before = signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        if before[0]:
            signal.setitimer(signal.ITIMER_REAL, *before)


def prepare_launchpad() -> None:
    """Prepares this process for `new_manager`. Main thread only.

    The first manager of a process always takes over its signals, so it is created here and the
    handlers are restored. Managers of children that are forked later are not the first.
    """
    if not FLAGS.is_parsed():
        FLAGS(["distrl"], known_only=True)
    if _managers:
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    new_manager()
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def manager_of(node: Any) -> Any:
    """Creates, in a node's main thread, the manager that has the node's stop event."""
    return node_context.new_manager() if isinstance(node, CallNode) else new_manager()


def close_manager(manager: Any) -> None:
    """Closes the manager of a builtin node in a thread; Launchpad's managers close themselves."""
    if isinstance(manager, node_context.Manager):
        manager.close()


def new_manager() -> Any:
    """Creates the worker manager that `lp.wait_for_stop` and `lp.stop_event` use in this thread."""
    from launchpad.launch import worker_manager

    manager = worker_manager.WorkerManager(
        register_in_thread=True, register_signals=False, kill_main_thread=False
    )
    _managers.append(manager)  # never deleted: its destructor switches the process's alarm off
    return manager


def reach_loopback(environ: MutableMapping[str, str]) -> None:
    """Keeps gRPC from sending calls on this machine to an HTTP proxy, where they would hang.

    Args:
      environ: the environment variables to change.
    """
    if not any(environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return
    others = environ.get(NO_GRPC_PROXY) or environ.get("no_proxy") or ""
    environ[NO_GRPC_PROXY] = ",".join(filter(None, (others, "127.0.0.1", "localhost")))


def grpc_is_running() -> bool:
    """Returns whether this process has gRPC threads; Courier and Reverb would hang in its forks."""
    prefixes = ("grpc_", "event_engine", "default-executo", "resolver-execut")
    return any(name.startswith(prefixes) for name in thread_names().values())
