"""The nodes of a host, as its daemon runs them for the launcher."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from distrl.launch.supervision.housekeeping import Housekeeping
from distrl.launch.supervision.result import NOT_STARTED, NodeExit
from distrl.launch.supervision.usage import Usage


class HostNodes:
    """Starts, signals and collects a host's nodes, and reports on them to the launcher.

    What the operating system refuses is tried again; neither other nodes nor the host are lost.

    Args:
      send: sends a message to the launcher: its kind, and fields.
      forward_messages: forwards what the nodes have said so far.
      housekeeping: shows what was refused.

    Attributes:
      by_name: the nodes, which are `SupervisedProcess`es. They are added before the first start.
    """

    def __init__(
        self,
        send: Callable[..., None],
        forward_messages: Callable[[], None],
        housekeeping: Housekeeping,
    ) -> None:
        self.by_name: dict[str, Any] = {}
        self._send = send
        self._forward_messages = forward_messages
        self._housekeeping = housekeeping
        self._usages: dict[str, Usage] = {}  # as last read
        self._refused: dict[tuple[str, str], Callable[[], None]] = {}  # by node, and what to do

    def any_alive(self) -> bool:
        """Returns whether a node runs."""
        return any(node.alive for node in self.by_name.values())

    def start(self, name: str, life: int, acted: int) -> None:
        """Starts a life of a node; a start that is refused is a life that has failed.

        Args:
          name: the node.
          life: the life.
          acted: see `Heartbeat.acted`, as the launcher knows it: this daemon may be a new one.
        """
        node = self.by_name[name]
        self._usages.pop(name, None)
        self._refused = {key: do for key, do in self._refused.items() if key[0] != name}
        node.heartbeat.mirror_acted(acted)
        try:
            node.begin(life)
        except OSError as error:  # no process or descriptor left
            node.heartbeat.end(True)
            self._send_exit(name, NodeExit(NOT_STARTED, error=str(error)))

    def signal(self, name: str, method: str) -> None:
        """Wakes, stops or kills a node that runs; `try_again` does if that is refused.

        Args:
          name: the node.
          method: "wake", "ask_to_stop" or "kill" of `SupervisedNode`.
        """
        self._attempt(name, method, functools.partial(self._signal, name, method))

    def try_again(self) -> None:
        """Tries again what was refused."""
        for (name, method), do in list(self._refused.items()):
            self._attempt(name, method, do)

    def collect(self, name: str) -> None:
        """Reports a node that has ended to the launcher, once."""
        node = self.by_name[name]
        if node.alive and node.collect():
            self._forward_messages()
            node.heartbeat.end(True)  # unless the launcher says that it is not
            self._send_exit(name, node.exit)

    def report(self) -> dict[str, list[Any]]:
        """Returns the state of the nodes that run, for the launcher's `SupervisedRemoteNode`s.

        Where it cannot be read what a node uses, it is what the node last used.
        """
        reports: dict[str, list[Any]] = {}
        for name, node in self.by_name.items():
            if not node.alive:
                continue
            read = functools.partial(self._read_usage, name)
            self._housekeeping.attempt(f"reading what {name} uses", read)
            if name in self._usages:
                heartbeat = node.heartbeat
                state = [heartbeat.at_work(), heartbeat.silent(), node.pid]
                usage = dataclasses.asdict(self._usages[name])
                reports[name] = [*state, usage, heartbeat.acted]
        return reports

    def show_stacks(self, name: str, also_if_stopped: bool) -> None:
        """See `SupervisedNode.show_stacks`."""
        if self.by_name[name].alive:
            self.by_name[name].show_stacks(also_if_stopped)

    def destroy(self, try_to: Callable[[str, Callable[[], object]], None]) -> None:
        """Kills the nodes and removes what they leave in shared memory.

        Args:
          try_to: does what it is given, and shows an OSError; see `Console.try_to`.
        """
        for name, node in self.by_name.items():
            try_to(f"ending {name}", node.destroy)
        if self.by_name:
            from distrl.shared_memory import segment

            sweep = functools.partial(segment.sweep, of_this_process=True)
            try_to("removing shared memory", sweep)

    def _send_exit(self, name: str, exit_: NodeExit) -> None:
        acted = self.by_name[name].heartbeat.acted
        self._send("exit", node=name, acted=acted, **dataclasses.asdict(exit_))

    def _signal(self, name: str, method: str) -> None:
        node = self.by_name[name]
        if node.alive:
            getattr(node, method)()

    def _attempt(self, name: str, method: str, do: Callable[[], None]) -> None:
        if self._housekeeping.attempt(f"{method} of {name}", do):
            self._refused[name, method] = do
        else:
            self._refused.pop((name, method), None)

    def _read_usage(self, name: str) -> None:
        usage = self.by_name[name].usage()
        if usage is None:
            self._usages.pop(name, None)
        else:
            self._usages[name] = usage
