"""Addresses of a program's servers on this host, which no other user can reach."""

import pathlib
import shutil

from distrl.launch.network import loopback
from distrl.launch.network.ports import Ports
from distrl.launch.network.private_folder import new_folder
from distrl.programs.groups import ENDPOINT_PORT_NAME
from distrl.programs.substrate.builtin import ADDRESS_NAME

HOST = "127.0.0.1"
_SERVED = ("courier", "reverb", ENDPOINT_PORT_NAME, ADDRESS_NAME)  # two are Launchpad's


class Endpoints:
    """Reserves ports, and makes Courier's and Reverb's servers listen on Unix sockets instead.

    A port is then only a number: the socket is a file in a folder that only this user can enter, so
    other users can neither connect to a server nor listen in its place. Launchpad reads the port at
    the end of an address (`lp.get_port_from_address`), where the socket's name has it too.

    Args:
      folder: a private folder; None: a new one, which `close` removes.
    """

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self._ports = Ports()
        self._new_folder = new_folder() if folder is None else None
        self._folder = folder or self._new_folder
        self._taken: list[int] = []

    def take(self) -> int:
        """Reserves a port."""
        return self._ports.take()

    def address(self, port: int, name: str) -> str:
        """Returns the address of the server that gets a port; call it before a fork.

        Args:
          port: from `take`.
          name: name of the `lp.Address`. Only those of Courier, Reverb and builtin nodes, and of
            an inferencer's endpoints, become Unix sockets: others belong to the user's own servers.
        """
        # Builtin servers are never open to others.
        opened = loopback.left_open() and name != ADDRESS_NAME
        if opened or name not in _SERVED:
            return f"{HOST}:{port}"
        loopback.SOCKETS[port] = f"{self._folder}/s:{port}"
        self._taken.append(port)
        return f"unix:{loopback.SOCKETS[port]}"

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return self._ports.fds()

    def close(self) -> None:
        """Releases all ports."""
        for port in self._taken:
            del loopback.SOCKETS[port]
        self._taken.clear()
        self._ports.close()
        if self._new_folder is not None:
            shutil.rmtree(self._new_folder, ignore_errors=True)
