"""Makes a Launchpad program ready to run here, by Launchpad's public calls only."""

import contextlib
import os
import pathlib
import signal
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import launchpad as lp
from absl import flags
from launchpad.launch import worker_manager

from distrl.errors import ConfigError
from distrl.programs.groups import group_of

FLAGS = flags.FLAGS
HOST = "127.0.0.1"
NO_GRPC_PROXY = "no_grpc_proxy"

_managers: list[worker_manager.WorkerManager] = []


class NamedNode(NamedTuple):
    name: str  # "actor/0"
    label: str  # "actor"
    node: Any  # lp.Node


class Fixed(lp.AbstractAddressBuilder):
    """An address that is known: "127.0.0.1:15000", or "unix:/path" for those who call."""

    def __init__(self, address: str) -> None:
        self._address = address

    def build(self) -> str:
        """Launchpad's."""
        return self._address


def local(port: int) -> str:
    """A port of this machine as an address."""
    return f"{HOST}:{port}"


def named_nodes(program: lp.Program) -> list[NamedNode]:
    """The program's nodes in their order; raises ConfigError if there are none."""
    found = [
        NamedNode(f"{label}/{index}", label, node)
        for label, nodes in program.groups.items()
        for index, node in enumerate(nodes)
    ]
    if not found:
        raise ConfigError(f"program {program.name!r} has no nodes")
    return found


def wire(
    program: lp.Program,
    launch_type: lp.LaunchType,
    stopper: Callable[[str], Callable[..., None]],
    address: Callable[[str, int], str],
) -> None:
    """Gives every node its context and its addresses.

    Args:
      program: not launched before.
      launch_type: what nodes see as their context's `launch_type`.
      stopper: from a node's name to what it calls to stop the program.
      address: from a node's name and the number of one of its addresses to what it is.
    """
    nodes = named_nodes(program)
    for name, _, node in nodes:
        node.launch_context.initialize(launch_type, None, program_stopper=stopper(name))
    for _, label, node in nodes:
        for handle in node.input_handles:
            handle.connect(node, label)
    for name, _, node in nodes:
        for number, its in enumerate(node.addresses):
            its.bind(Fixed(address(name, number)))


def phases(nodes: Sequence[NamedNode]) -> list[list[str]]:
    """Returns nodes' names in the order in which they are stopped, those of a phase together."""
    numbers = sorted({group_of(node.label).stop_phase for node in nodes})
    return [
        [node.name for node in nodes if group_of(node.label).stop_phase == number]
        for number in numbers
    ]


@contextlib.contextmanager
def alarm_kept() -> Iterator[None]:
    """Launchpad's worker managers switch the process's alarm off; this keeps it."""
    before = signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        if before[0]:
            signal.setitimer(signal.ITIMER_REAL, *before)


def prepare_launchpad() -> None:
    """Makes Launchpad ready for `new_manager`. Main thread.

    The first manager of a process takes over its signals, whatever it is told, so it is made here
    and the handlers are put back. Managers of children forked afterwards are not the first.
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


def new_manager() -> worker_manager.WorkerManager:
    """The worker manager that `lp.wait_for_stop` and `lp.stop_event` use in this thread."""
    manager = worker_manager.WorkerManager(
        register_in_thread=True, register_signals=False, kill_main_thread=False
    )
    _managers.append(manager)  # for ever: one that is deleted switches the process's alarm off
    return manager


def reach_loopback(environ: MutableMapping[str, str]) -> None:
    """Keeps gRPC from sending our calls on this machine to an HTTP proxy, where they would hang."""
    if not any(environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return
    others = environ.get(NO_GRPC_PROXY) or environ.get("no_proxy") or ""
    environ[NO_GRPC_PROXY] = ",".join(filter(None, (others, HOST, "localhost")))


def grpc_is_running() -> bool:
    """Whether this process has gRPC's threads: then Courier and Reverb hang in its forks."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            names.append(pathlib.Path(f"/proc/self/task/{task}/comm").read_text().strip())
    prefixes = ("grpc_", "event_engine", "default-executo", "resolver-execut")
    return any(name.startswith(prefixes) for name in names)
