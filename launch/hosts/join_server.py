"""The launcher's end of connections that daemons open (see `join_client.dial`)."""

import contextlib
import errno
import hmac
import os
import selectors
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.hosts.channel import LIMIT, JsonLineChannel
from distrl.launch.hosts.join_client import HELLO_S, JOIN, join_token
from distrl.launch.hosts.remote_host import HostState, RemoteHost
from distrl.launch.network.credentials import Credentials
from distrl.launch.network.private_folder import new_folder
from distrl.launch.network.tunnel_process import end_tunnel, has_ended, start_tunnel
from distrl.launch.supervision.session import Session
from distrl.runtime.sockets import listen_on_all_interfaces

MAX_UNIDENTIFIED = 64  # connections without a hello; beyond that the oldest is closed
HELLO_LIMIT = 1 << 16  # bytes of a hello


class JoinServer:
    """Accepts the connections of daemons, at the launcher.

    They come from the tunnel, which has checked the credentials, and which alone reaches the Unix
    socket. All the same, nothing that arrives before a valid hello can end the launcher.

    Args:
      session: the launch.
      names: names of all hosts; a daemon's rank is an index of these.
      hosts: those that have nodes.
      credentials: the program's credentials.
      port: the join port, on all interfaces.
    """

    def __init__(
        self,
        session: Session,
        names: Sequence[str],
        hosts: Sequence[RemoteHost],
        credentials: Credentials,
        port: int,
    ) -> None:
        self._session = session
        self._names = names
        self._hosts = hosts
        self._token = join_token(credentials).encode()
        self._unidentified: dict[JsonLineChannel, float] = {}  # connections, and their deadlines
        self._join_port = f"--join_port={port}"
        try:
            public = listen_on_all_interfaces(port)
        except OSError as error:
            raise ConfigError(
                f"{self._join_port}: port {port} is taken: {error.strerror}"
            ) from error
        self._folder = new_folder()
        self.path = str(self._folder / "join")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(MAX_UNIDENTIFIED)
        self._socket.setblocking(False)
        self._selector = session.supervisor.selector
        self._tunnel = start_tunnel(public, credentials, {JOIN: f"unix:{self.path}"}, {})
        public.close()
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def lost(self) -> str | None:
        """Returns why no daemon can connect any more; None while they can."""
        if self._tunnel and has_ended(self._tunnel):
            self._tunnel = 0
        return None if self._tunnel else f"the tunnel of {self._join_port} has ended"

    def tick(self) -> None:
        """Closes connections that have not introduced themselves in time."""
        for channel, deadline in list(self._unidentified.items()):
            if time.monotonic() > deadline:
                self._drop(channel)

    def close(self) -> None:
        """Ends the tunnel with all its connections."""
        self._selector.unregister(self._socket)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for channel in list(self._unidentified):
            self._drop(channel)
        if self._tunnel:
            end_tunnel(self._tunnel)

    def _accept(self) -> None:
        if len(self._unidentified) >= MAX_UNIDENTIFIED:
            self._drop_oldest()
        try:
            with contextlib.closing(self._socket.accept()[0]) as connection:
                reader = os.dup(connection.fileno())
                writer = connection.detach()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._drop_oldest()
            return  # otherwise the client has disconnected already
        channel = JsonLineChannel(
            self._selector,
            reader,
            writer,
            lambda message: self._on_hello(channel, message),
            lambda reason: self._drop(channel),
            HELLO_LIMIT,
        )
        self._unidentified[channel] = time.monotonic() + HELLO_S
        channel.send("ping")  # shows the daemon that the connection is complete

    def _on_hello(self, channel: JsonLineChannel, message: Mapping[str, Any]) -> None:
        token = str(message.get("token", "")).encode(errors="replace")
        if message.get("kind") != "hello" or not hmac.compare_digest(token, self._token):
            self._drop(channel)
            return
        del self._unidentified[channel]
        channel.limit = LIMIT
        host = self._find_host(message)
        if isinstance(host, str):
            self._turn_away(channel, host, "refused", reason=host)
            return
        if host is None:
            self._turn_away(channel, "a daemon of a host without nodes joined: it ends", "bye")
            return
        host.attach(channel)
        host.on_hello(
            message["identity"],
            message["host"],
            message["cores"],
            message["gpus"],
            message["tunnel_key"],
        )

    def _find_host(self, message: Mapping[str, Any]) -> RemoteHost | str | None:
        """Returns a daemon's host, None if that has no nodes, or why the daemon has no host."""
        names = self._names
        name, rank = message.get("name"), message.get("rank")
        if name not in names and isinstance(rank, int) and 0 <= rank < len(names):
            name = names[rank]
        if name not in names:
            return f"a daemon joined as {name!r} (rank {rank}); the hosts are {', '.join(names)}"
        host = next((host for host in self._hosts if host.host.name == name), None)
        if host is not None and host.state is not HostState.AWAY:
            return f"a second daemon joined as host {name}"
        return host

    def _turn_away(self, channel: JsonLineChannel, line: str, kind: str, **fields: Any) -> None:
        channel.send(kind, **fields)
        channel.close()
        self._session.journal.say(line)

    def _drop_oldest(self) -> None:
        for channel in list(self._unidentified)[:1]:
            self._drop(channel)

    def _drop(self, channel: JsonLineChannel) -> None:
        self._unidentified.pop(channel, None)
        channel.close()
