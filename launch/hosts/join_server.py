"""Agents that dial their launcher: for engines that start them themselves (see `manual`).

The launcher listens on loopback; a tunnel of its own, on the join port, lets in those that show the
program's credentials. Other users of this machine reach loopback too: an agent says a word that
only who has the credentials can say.
"""

import contextlib
import hashlib
import hmac
import os
import pathlib
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.remote_host import RemoteHost, State
from distrl.launch.network.tunnel import Credentials
from distrl.launch.network.tunnel_process import end_tunnel, start_tunnel
from distrl.launch.supervision.session import Session
from distrl.learner_group.rendezvous import parse

JOIN_PORT = 7421
HELLO_S = 20.0  # for one who has connected to say who it is


def local_port(port: int) -> int:
    """Of loopback, behind the tunnel on `port`; both sides know it."""
    return port + 1


def word(credentials: Credentials) -> str:
    """What an agent says to prove that it has the credentials."""
    return hmac.new(credentials.key, b"distrl join", hashlib.sha256).hexdigest()


def read_credentials(path: str) -> Credentials:
    """Certificate and key from one PEM file.

    Raises:
      ConfigError: it is not there, others can read it, or it is no such file.
    """
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"--credentials={path}: {error.strerror}") from error
    parts = [b"-----BEGIN " + part for part in text.split(b"-----BEGIN ")[1:]]
    certificate = b"".join(part for part in parts if b" CERTIFICATE" in part.splitlines()[0])
    key = b"".join(part for part in parts if b"PRIVATE KEY" in part.splitlines()[0])
    if not certificate or not key:
        raise ConfigError(f"--credentials={path}: expected a certificate and a private key (PEM)")
    return Credentials(certificate, key)


def write_credentials(path: pathlib.Path, credentials: Credentials) -> None:
    """One PEM file, which nobody else can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(credentials.certificate.strip() + b"\n" + credentials.key.strip() + b"\n")


class JoinServer:
    """Where agents come in, at the launcher.

    Args:
      session: of the launch.
      machines: in the order of their hosts.
      credentials: of the program.
      port: on which strangers and agents knock.
    """

    def __init__(
        self,
        session: Session,
        machines: Sequence[RemoteHost],
        credentials: Credentials,
        port: int,
    ) -> None:
        self._session = session
        self._machines = machines
        self._word = word(credentials)
        self._pending: dict[JsonLineChannel, float] = {}  # who has not said who it is, until when
        try:
            self._socket = socket.create_server(("127.0.0.1", local_port(port)))
            public = socket.create_server(("", port), backlog=128)
        except OSError as error:
            raise ConfigError(
                f"--join_port={port}: it or {local_port(port)} is taken here: {error.strerror}"
            ) from error
        self._socket.setblocking(False)
        self._selector = session.supervisor.selector
        self._tunnel = start_tunnel(public, credentials, {local_port(port)}, {})
        public.close()
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def tick(self) -> None:
        """From time to time: who does not say who it is, is shown out."""
        for lines, until in list(self._pending.items()):
            if time.monotonic() > until:
                self._drop(lines)

    def close(self) -> None:
        """Ends the tunnel with all its connections."""
        self._selector.unregister(self._socket)
        self._socket.close()
        for lines in list(self._pending):
            self._drop(lines)
        end_tunnel(self._tunnel)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # it has gone again
        reader = os.dup(connection.fileno())
        writer = connection.detach()
        holder: list[JsonLineChannel] = []

        def take(message: dict[str, Any]) -> None:
            self._greet(holder[0], message)

        lines = JsonLineChannel(
            self._selector, reader, writer, take, lambda why: self._drop(holder[0])
        )
        holder.append(lines)
        lines.send("ping")  # so that it knows that it is through
        self._pending[lines] = time.monotonic() + HELLO_S

    def _greet(self, lines: JsonLineChannel, message: Mapping[str, Any]) -> None:
        said = str(message.get("word", ""))
        if message.get("kind") != "hello" or not hmac.compare_digest(said, self._word):
            self._drop(lines)
            return
        del self._pending[lines]
        machine = self._find(message)
        if isinstance(machine, str):
            lines.send("refused", why=machine)
            lines.close()
            self._session.journal.say(machine)
            return
        machine.attach(lines)
        machine.greeted(message["identity"], message["host"], message["cores"], message["gpus"])

    def _find(self, message: Mapping[str, Any]) -> RemoteHost | str:
        """Whose agent it is, or why it is nobody's."""
        names = [machine.host.name for machine in self._machines]
        name, rank = message.get("name"), message.get("rank")
        if name not in names and isinstance(rank, int) and 0 <= rank < len(names):
            name = names[rank]
        if name not in names:
            return f"an agent came as {name!r} (rank {rank}): the hosts are {', '.join(names)}"
        machine = self._machines[names.index(name)]
        if machine.state is not State.AWAY:
            return f"a second agent came as host {name}"
        return machine

    def _drop(self, lines: JsonLineChannel) -> None:
        self._pending.pop(lines, None)
        lines.close()


def dial(
    address: str, credentials: Credentials, folder: pathlib.Path, wait: float
) -> tuple[int, int]:
    """Connects to a launcher, however long that takes to come.

    Args:
      address: HOST:PORT.
      credentials: of the program.
      folder: private to this process.
      wait: seconds at most.

    Returns:
      The connection's descriptor, and its tunnel's process.

    Raises:
      ConfigError: no such address, or nobody there.
    """
    host, port = parse(address, "--join")
    path = str(folder / "join")
    unused = socket.create_server(("127.0.0.1", 0))
    forwards = {path: (host, port, local_port(port))}
    tunnel = start_tunnel(unused, credentials, (), forwards)
    unused.close()
    deadline = time.monotonic() + wait
    while True:
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            connection.connect(path)
            connection.settimeout(HELLO_S)
            if connection.recv(1, socket.MSG_PEEK):  # the launcher speaks first
                return connection.detach(), tunnel
        connection.close()
        if time.monotonic() > deadline:
            end_tunnel(tunnel)
            raise ConfigError(f"--join={address}: no launcher answered within {wait:g} s")
        time.sleep(0.5)
