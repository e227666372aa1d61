"""The program as a host's daemon has it: the nodes placed there, and everybody's addresses."""

import base64
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from distrl.launch import launchpad_adapter
from distrl.launch.launch_types import LOCAL_MP
from distrl.launch.network.endpoints import Endpoints
from distrl.launch.network.private_folder import PATH_LIMIT
from distrl.programs.resources import node_environments
from distrl.programs.substrate import BUILTIN, of_program
from distrl.runtime.files import make_private_folder
from distrl.runtime.heartbeat import DOWN, GONE, Heartbeat, HeartbeatTable

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.]")

RemoteAddresses = Mapping[str, Sequence[Sequence[Any]]]
"""For each node of another host and each of its addresses: the host, its tunnel's port, and the
port of the server there."""

RequiredHosts = Sequence[tuple[str, int]]
"""Each a host and its tunnel's port, which must be reached before a host's nodes start."""


class HostProgram:
    """A host's part of the program.

    Args:
      payload: the pickled program and what belongs to it, as text.
      names: names of this host's nodes.
      folder: a private folder for sockets.

    Attributes:
      ports: those of this host's nodes, by name.
      open_ports: by port, the addresses of this host's servers; complete once it is wired.
    """

    def __init__(self, payload: str, names: Sequence[str], folder: pathlib.Path) -> None:
        received = cloudpickle.loads(base64.b64decode(payload))
        self._program, experiment, topology, has_gpus, run_dir = received
        self._nodes = launchpad_adapter.named_nodes(self._program)
        self._environments = node_environments(experiment, topology, has_gpus)
        make_private_folder(pathlib.Path(run_dir))
        self._folder = folder
        self._endpoints = Endpoints(folder)
        self.ports = {
            node.name: [self._endpoints.take() for _ in node.node.addresses]
            for node in self._nodes
            if node.name in names
        }
        self.open_ports: dict[int, str] = {}
        # The paths of the sockets for other hosts' servers.
        self._remote_paths: dict[tuple[str, int], str] = {}
        self._heartbeats = HeartbeatTable([node.name for node in self._nodes])

    def own_nodes(
        self,
    ) -> Iterator[tuple[launchpad_adapter.NamedNode, Heartbeat, Mapping[str, str]]]:
        """Yields this host's nodes, their heartbeats and their environment variables."""
        for node in self._nodes:
            heartbeat = self._heartbeats.of(node.name)
            if node.name in self.ports and heartbeat is not None:
                shared = self._environments.get(node.label, {})
                yield node, heartbeat, self._environments.get(node.name, shared)

    def wire(self, stopper: Callable[[str], Any]) -> None:
        """Resolves the program's addresses. Args: stopper: see `launchpad_adapter.wire`."""
        if of_program(self._program) != BUILTIN:
            launchpad_adapter.prepare_launchpad()
        launchpad_adapter.wire(self._program, LOCAL_MP, stopper, self._address)

    def _address(self, name: str, number: int, port_name: str) -> str:
        if name in self.ports:
            port = self.ports[name][number]
            self.open_ports[port] = self._endpoints.address(port, port_name)
            return self.open_ports[port]
        # Error messages about a server's address should show whose it is, if there is room.
        plain = _NOT_PLAIN.sub("-", name)
        path = f"{self._folder}/{len(self._remote_paths)}-{plain}"[:PATH_LIMIT]
        return f"unix:{self._remote_paths.setdefault((name, number), path)}"

    def forwards(self, addresses: RemoteAddresses) -> dict[str, tuple[str, int, int]]:
        """Returns the tunnel's `forwards` of a wired program. Args: addresses: the current ones."""
        forwards = {}
        for (name, number), path in self._remote_paths.items():
            if name in addresses:
                host, tunnel_port, port = addresses[name][number]
                forwards[path] = host, tunnel_port, port
        return forwards

    def mirror(self, heartbeats: Mapping[str, Sequence[int]]) -> None:
        """Takes over status, life and steps of nodes on other hosts.

        For this host's own nodes, it takes over one thing: that a node which has ended will not be
        restarted. Until it hears that, it counts the node as about to be restarted.
        """
        for name, (status, life, acted) in heartbeats.items():
            heartbeat = self._heartbeats.of(name)
            if heartbeat is None:
                continue
            if name not in self.ports:
                heartbeat.mirror_status(status, life, acted)
            elif (status, heartbeat.status, heartbeat.life) == (GONE, DOWN, life):
                heartbeat.end(False)

    def fds(self) -> Iterator[int]:
        """Yields the descriptors that a node's process closes."""
        yield from self._endpoints.fds()
