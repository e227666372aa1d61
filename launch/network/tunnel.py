"""Connections between the hosts of one program: encrypted, and refused to everyone else.

All servers listen on loopback. Each host has one process that runs `run`: it holds the host's only
open port, and a Unix socket for every server of another host. A connection to such a socket
becomes one TLS connection to that host's port, and there one to the server:

    client -> unix socket -> [tunnel] == mutual TLS 1.3 ==> [tunnel] -> 127.0.0.1:port -> server

It begins with a header, which names the server's port; see `tunnel_connection` for what follows. A
GB takes 1.1 to 2 s of a core on each of the two hosts, and a call 0.25 ms (see docs/security.md).
"""

import asyncio
import collections
import contextlib
import errno
import os
import pathlib
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.network import credentials as tls
from distrl.launch.network.credentials import Credentials, make_credentials
from distrl.launch.network.tunnel_connection import Plain, Secure

__all__ = ["Credentials", "make_credentials", "new_folder", "run"]

HANDSHAKE_S = 5.0  # until a stranger is shown the door
STRANGERS = 64  # connections that have not shown the credentials; of more, the oldest is closed
CONNECT_S = 5.0
DIALLING = 4  # handshakes that a host has under way with another: many actors may begin at once
TURN_S = 15.0  # for one of these; gRPC gives a connection up after 20 s
WATCH_S = 1.0
SAY_S = 10.0  # between two lines of a kind
PATH_LIMIT = 107  # bytes, of a Unix socket, by the kernel
PARENT_LIMIT = 60

_HEADER = struct.Struct("!6sH")  # _MAGIC, the server's port
_MAGIC = b"distrl"

Tasks = dict["asyncio.Task[None]", None]  # oldest first


def new_folder() -> pathlib.Path:
    """For Unix sockets: with a short path, and only this user can enter it."""
    usual = tempfile.gettempdir()
    parent = usual if len(os.fsencode(usual)) <= PARENT_LIMIT else "/tmp"
    return pathlib.Path(tempfile.mkdtemp(prefix="distrl-", dir=parent))


def run(
    listener: socket.socket,
    credentials: Credentials,
    open_ports: Collection[int],
    forwards: Mapping[str, tuple[str, int, int]],
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Carries connections until the process is killed.

    Args:
      listener: bound to the host's open port.
      credentials: of the program.
      open_ports: of this host's servers, to which the other hosts may connect.
      forwards: by the path of a Unix socket, to be made in a folder that only this user can enter:
        the host, its open port, and the port of the server there.
      ready: called when all of it can be connected to.

    Raises:
      ConfigError: a path that cannot be used.
    """
    for path in forwards:
        _check(path)
    asyncio.run(_Tunnel(credentials, open_ports).run(listener, forwards, ready))


def _check(path: str) -> None:
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise ConfigError(f"{path}: a Unix socket's path has at most {PATH_LIMIT} bytes")
    folder = os.stat(os.path.dirname(path) or ".")
    if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & 0o077:
        raise ConfigError(f"{path}: other users can enter its folder")


class _Refused(Exception):
    """A connection that is not carried, and why."""


_FAILURES = (OSError, asyncio.TimeoutError, _Refused)  # of one connection; others go on


class _Tunnel:
    def __init__(self, credentials: Credentials, open_ports: Collection[int]) -> None:
        self._credentials = credentials
        self._as_server = tls.server_context(credentials)
        self._as_client = tls.client_context(credentials)
        self._open_ports = frozenset(open_ports)
        self._tasks: Tasks = {}
        self._strangers: Tasks = {}
        self._carried: set[Secure] = set()
        self._said: dict[str, tuple[float, int]] = {}
        # By host and port: one that does not answer must not hold up the others.
        self._dialling: dict[tuple[str, int], asyncio.Semaphore] = collections.defaultdict(
            lambda: asyncio.Semaphore(DIALLING)
        )

    async def run(
        self,
        listener: socket.socket,
        forwards: Mapping[str, tuple[str, int, int]],
        ready: Callable[[], None],
    ) -> None:
        running = [self._watch(), self._accept(listener, self._admit)]
        for path, (host, port, target) in forwards.items():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a tunnel that was killed
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(path)

            def forward(
                sock: socket.socket, host: str = host, port: int = port, target: int = target
            ) -> Coroutine[Any, Any, None]:
                return self._forward(sock, host, port, target)

            running.append(self._accept(unix, forward))
        ready()
        await asyncio.gather(*running)

    def _accept(
        self, listener: socket.socket, handle: Callable[[socket.socket], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, None]:
        """Listens, and returns what accepts."""
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)

        async def accept() -> None:
            loop = asyncio.get_running_loop()
            while True:
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    self._say("cannot accept", error)
                    self._close_oldest_stranger()
                    await asyncio.sleep(WATCH_S)
                    continue
                task = loop.create_task(handle(sock))
                self._tasks[task] = None  # asyncio itself does not keep it
                task.add_done_callback(self._tasks.pop)

        return accept()

    async def _admit(self, sock: socket.socket) -> None:
        """Takes a connection from another host, if it is one of the program's."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._strangers[task] = None
        if len(self._strangers) > STRANGERS:
            self._close_oldest_stranger()
        secure = Secure(_HEADER.size)
        what = "refused a connection"
        with contextlib.ExitStack() as failed:
            try:
                await loop.connect_accepted_socket(
                    lambda: secure, sock, ssl=self._as_server, ssl_handshake_timeout=HANDSHAKE_S
                )
                failed.callback(secure.transport.abort)
                self._check_peer(secure)
                magic, port = _HEADER.unpack(await asyncio.wait_for(secure.header, HANDSHAKE_S))
                self._strangers.pop(task, None)
                if magic != _MAGIC or port not in self._open_ports:
                    raise _Refused(f"port {port} is not open to other hosts")
                what = f"no connection to the server at port {port}"
                await asyncio.wait_for(
                    loop.create_connection(lambda: Plain(secure), "127.0.0.1", port), CONNECT_S
                )
            except _FAILURES as error:
                self._say(what, error)
                return
            finally:
                self._strangers.pop(task, None)
            failed.pop_all()
            self._carried.add(secure)

    def _close_oldest_stranger(self) -> None:
        if self._strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()

    def _check_peer(self, secure: Secure) -> None:
        peer = secure.transport.get_extra_info("ssl_object")
        if not tls.is_ours(peer, self._credentials):
            raise _Refused("it showed another certificate")

    async def _forward(self, sock: socket.socket, host: str, port: int, target: int) -> None:
        """Carries a connection of this host to a server of another."""
        loop = asyncio.get_running_loop()
        secure = Secure()
        with contextlib.ExitStack() as failed:
            failed.callback(sock.close)
            turn = self._dialling[host, port]
            try:
                await asyncio.wait_for(turn.acquire(), TURN_S)
            except asyncio.TimeoutError as error:
                self._say(f"no turn to connect to {host}:{port}", error)
                return
            try:
                await asyncio.wait_for(
                    loop.create_connection(
                        lambda: secure,
                        host,
                        port,
                        ssl=self._as_client,
                        server_hostname=tls.NAME,
                        ssl_handshake_timeout=CONNECT_S,
                    ),
                    CONNECT_S,
                )
                failed.callback(secure.transport.abort)
                self._check_peer(secure)
                secure.transport.write(_HEADER.pack(_MAGIC, target))
                await loop.connect_accepted_socket(lambda: Plain(secure), sock)
            except _FAILURES as error:
                self._say(f"no connection to {host}:{port}", error)
                return
            finally:
                turn.release()
            failed.pop_all()
            self._carried.add(secure)

    async def _watch(self) -> None:
        """Breaks what is carried to hosts that are gone: a cut cable says nothing."""
        while True:
            await asyncio.sleep(WATCH_S)
            for secure in list(self._carried):
                if secure.lost:
                    self._carried.discard(secure)
                elif secure.is_dead():
                    host = secure.transport.get_extra_info("peername")[0]
                    self._say(f"{host} is gone", _Refused("it does not answer"))
                    secure.transport.abort()

    def _say(self, what: str, why: Exception) -> None:
        """Says it to the log, seldom: strangers must not fill it."""
        now = time.monotonic()
        due, silent = self._said.get(what, (now, 0))
        if now < due:
            self._said[what] = due, silent + 1
            return
        self._said[what] = now + SAY_S, 0
        more = f" (and {silent} more)" if silent else ""
        sys.stderr.write(f"tunnel: {what}: {type(why).__name__}: {why}{more}\n")
        sys.stderr.flush()
