"""Connections between the hosts of one program: encrypted, and closed to everyone else.

All servers listen on Unix sockets. On each host one process executes `run`: it has the host's only
open port, and a Unix socket for each server of another host. A connection to such a socket becomes
a TLS connection to that host's port, and there a connection to the server:

    client -> unix socket -> [tunnel] == mutual TLS 1.3 ==> [tunnel] -> unix socket -> server

The TLS connection begins with a header that has the server's port; `tunnel_connection` describes
what follows. A GB takes 1.1 to 2 s of a core on each of the two hosts, and a call takes 0.25 ms
(see docs/security.md).
"""

import asyncio
import collections
import contextlib
import errno
import json
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.network import credentials as tls
from distrl.launch.network.credentials import Credentials
from distrl.launch.network.private_folder import PATH_LIMIT
from distrl.launch.network.reach import Reach
from distrl.launch.network.tunnel_connection import PlainEnd, TlsEnd
from distrl.runtime.sockets import parse_address

HANDSHAKE_S = 5.0  # Timeout for unauthenticated peers.
MAX_UNAUTHENTICATED = 64  # unauthenticated connections; beyond that the oldest is closed
CONNECT_S = 5.0
MAX_HANDSHAKES = 4  # at a time with one host: many actors may start at once
HANDSHAKE_SLOT_S = 15.0  # to wait for one of these; gRPC gives up a connection after 20 s
WATCH_S = 1.0
LOG_INTERVAL_S = 10.0  # between two log lines of one kind
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)

LENGTH = struct.Struct("!I")
_HEADER = struct.Struct("!6sH")  # _MAGIC, the server's port
_MAGIC = b"distrl"
_NO_SERVER = 0  # instead of a server's port: the connection only shows that it can be made
_UNIX = "unix:"

Tasks = dict["asyncio.Task[None]", None]  # a set, oldest first


def run(
    listener: socket.socket,
    credentials: Credentials,
    open_ports: Mapping[int, str],
    forwards: Mapping[str, tuple[str, int, int]],
    ready: Callable[[], None] = lambda: None,
    changes: socket.socket | None = None,
    required: Iterable[tuple[str, int]] = (),
) -> None:
    """Carries connections until the process is killed.

    Args:
      listener: a socket bound to the host's open port.
      credentials: the program's credentials.
      open_ports: by port, the addresses of this host's servers, to which the other hosts may
        connect: "unix:/path" or "127.0.0.1:15000".
      forwards: for the path of each Unix socket to make: the other host, its open port, and the
        port of the server there. Only this user may be able to enter the paths' folder.
      ready: called when the port and all sockets accept connections.
      changes: from which new `forwards`, of the same paths, and new `required` arrive as JSON after
        their `LENGTH`; in the other direction go the reports of `Reach`.
      required: hosts and open ports that are tried until they are reached, without a client.

    Raises:
      ConfigError: a path that cannot be used.
    """
    for path in forwards:
        _check(path)
    tunnel = _Tunnel(credentials, open_ports, forwards, required)
    asyncio.run(tunnel.run(listener, ready, changes))


def _check(path: str) -> None:
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise ConfigError(f"{path}: a Unix socket's path can have at most {PATH_LIMIT} bytes")
    folder = os.stat(os.path.dirname(path) or ".")
    if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & 0o077:
        raise ConfigError(f"{path}: other users can enter its folder")


async def _connect(address: str, plain: PlainEnd) -> None:
    """Connects to a server of this host."""
    loop = asyncio.get_running_loop()
    if address.startswith(_UNIX):
        await loop.create_unix_connection(lambda: plain, address.removeprefix(_UNIX))
    else:
        host, port = parse_address(address, "a server's address")
        await loop.create_connection(lambda: plain, host, port)


class _Refused(Exception):
    """A connection is not carried; the message says why."""


# Each ends one connection; the others continue. UnicodeError: a host's name is malformed.
_FAILURES = (OSError, UnicodeError, asyncio.TimeoutError, _Refused)


class _Tunnel:
    def __init__(
        self,
        credentials: Credentials,
        open_ports: Mapping[int, str],
        forwards: Mapping[str, tuple[str, int, int]],
        required: Iterable[tuple[str, int]],
    ) -> None:
        self._credentials = credentials
        self._as_server = tls.server_context(credentials)
        self._as_client = tls.client_context(credentials)
        self._open_ports = dict(open_ports)
        self._forwards = dict(forwards)
        self._required = {(host, port) for host, port in required}  # and not reached yet
        self._tasks: Tasks = {}
        self._unauthenticated: Tasks = {}
        self._carried: set[TlsEnd] = set()
        self._log_state: dict[str, tuple[float, int]] = {}  # next line not before; lines left out
        self._news: asyncio.StreamWriter | None = None
        self._reach = Reach(self._report)
        # By host and port: a host that does not answer must not delay the others.
        self._handshakes: dict[tuple[str, int], asyncio.Semaphore] = collections.defaultdict(
            lambda: asyncio.Semaphore(MAX_HANDSHAKES)
        )

    async def run(
        self,
        listener: socket.socket,
        ready: Callable[[], None],
        changes: socket.socket | None,
    ) -> None:
        running = [self._watch(), self._reach_required(), self._accept(listener, self._admit)]
        if changes is not None:
            reader, self._news = await asyncio.open_connection(sock=changes)
            running.append(self._follow(reader))
        for path in self._forwards:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # left by a tunnel that was killed
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(path)

            def forward(sock: socket.socket, path: str = path) -> Coroutine[Any, Any, None]:
                return self._forward(sock, *self._forwards[path])

            running.append(self._accept(unix, forward))
        ready()
        await asyncio.gather(*running)

    def _accept(
        self, listener: socket.socket, handle: Callable[[socket.socket], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, None]:
        """Starts to listen, and returns the coroutine that accepts connections."""
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)

        async def accept() -> None:
            loop = asyncio.get_running_loop()
            while True:
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno not in _PASSING:
                        raise
                    self._log("cannot accept a connection", error)
                    self._close_oldest_unauthenticated()
                    await asyncio.sleep(WATCH_S)
                    continue
                task = loop.create_task(handle(sock))
                self._tasks[task] = None  # asyncio does not keep a reference
                task.add_done_callback(self._tasks.pop)

        return accept()

    async def _admit(self, sock: socket.socket) -> None:
        """Carries a connection from another host, if that host belongs to the program."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._unauthenticated[task] = None
        if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
            self._close_oldest_unauthenticated()
        secure = TlsEnd(_HEADER.size)
        event = "refused a connection"
        with contextlib.ExitStack() as failed:
            try:
                await loop.connect_accepted_socket(
                    lambda: secure, sock, ssl=self._as_server, ssl_handshake_timeout=HANDSHAKE_S
                )
                failed.callback(secure.transport.abort)
                self._check_peer(secure)
                magic, port = _HEADER.unpack(await asyncio.wait_for(secure.header, HANDSHAKE_S))
                self._unauthenticated.pop(task, None)
                if (magic, port) == (_MAGIC, _NO_SERVER):
                    return
                if magic != _MAGIC or port not in self._open_ports:
                    raise _Refused(f"port {port} is not open to other hosts")
                event = f"no connection to the server at port {port}"
                await asyncio.wait_for(
                    _connect(self._open_ports[port], PlainEnd(secure)), CONNECT_S
                )
            except _FAILURES as error:
                self._log(event, error)
                return
            finally:
                self._unauthenticated.pop(task, None)
            failed.pop_all()
            self._carried.add(secure)

    def _close_oldest_unauthenticated(self) -> None:
        if self._unauthenticated:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.cancel()

    def _check_peer(self, secure: TlsEnd) -> None:
        peer = secure.transport.get_extra_info("ssl_object")
        if not tls.is_ours(peer, self._credentials):
            raise _Refused("the peer has another certificate")

    async def _forward(self, sock: socket.socket, host: str, port: int, target: int) -> None:
        """Carries a connection from this host to a server of another host."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as failed:
            failed.callback(sock.close)
            handshakes = self._handshakes[host, port]
            try:
                await asyncio.wait_for(handshakes.acquire(), HANDSHAKE_SLOT_S)
            except asyncio.TimeoutError as error:
                self._log(f"too many pending connections to {host}:{port}", error)
                return
            try:
                secure = await self._dial(host, port, target)
                failed.callback(secure.transport.abort)
                await loop.connect_accepted_socket(lambda: PlainEnd(secure), sock)
            except _FAILURES as error:
                self._log(f"no connection to {host}:{port}", error)
                return
            finally:
                handshakes.release()
            failed.pop_all()
            self._carried.add(secure)

    async def _dial(self, host: str, port: int, target: int) -> TlsEnd:
        """Returns a connection to a server of another host, or raises one of `_FAILURES`."""
        secure = TlsEnd()
        connecting = asyncio.get_running_loop().create_connection(
            lambda: secure,
            host,
            port,
            ssl=self._as_client,
            server_hostname=tls.NAME,
            ssl_handshake_timeout=CONNECT_S,
        )
        with contextlib.ExitStack() as failed:
            try:
                await asyncio.wait_for(connecting, CONNECT_S)
                failed.callback(secure.transport.abort)
                self._check_peer(secure)
            except _FAILURES as error:
                self._reach.note(host, port, error)
                raise
            failed.pop_all()
        self._reach.note(host, port, None)
        secure.transport.write(_HEADER.pack(_MAGIC, target))
        return secure

    async def _reach_required(self) -> None:
        """Tries the ports that are required until each is reached."""

        async def attempt(host: str, port: int) -> None:
            try:
                (await self._dial(host, port, _NO_SERVER)).transport.close()
                self._required.discard((host, port))
            except _FAILURES as error:
                self._log(f"no connection to {host}:{port}", error)

        while True:
            await asyncio.gather(*(attempt(host, port) for host, port in self._required))
            await asyncio.sleep(WATCH_S)

    def _report(self, *news: object) -> None:
        if self._news is not None:
            data = json.dumps(news).encode()
            self._news.write(LENGTH.pack(len(data)) + data)

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Takes over where new connections go to: a host that was lost is back at other ports."""
        assert self._news is not None
        with contextlib.closing(self._news), contextlib.suppress(asyncio.IncompleteReadError):
            while True:  # until the other end is closed
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                forwards, required = json.loads(await reader.readexactly(size))
                self._forwards.update(forwards)
                self._required = {(host, port) for host, port in required}

    async def _watch(self) -> None:
        """Breaks connections to hosts that do not answer: a cut cable causes no error."""
        while True:
            await asyncio.sleep(WATCH_S)
            for secure in list(self._carried):
                if secure.lost:
                    self._carried.discard(secure)
                elif secure.is_dead():
                    host = secure.transport.get_extra_info("peername")[0].removeprefix("::ffff:")
                    self._log(f"lost {host}", _Refused("it does not answer"))
                    secure.transport.abort()

    def _log(self, event: str, reason: Exception) -> None:
        """Logs an event at a limited rate: unauthenticated peers must not fill the log."""
        now = time.monotonic()
        due, left_out = self._log_state.get(event, (now, 0))
        if now < due:
            self._log_state[event] = due, left_out + 1
            return
        self._log_state[event] = now + LOG_INTERVAL_S, 0
        more = f" (and {left_out} more)" if left_out else ""
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            sys.stderr.write(f"tunnel: {event}: {type(reason).__name__}: {reason}{more}\n")
            sys.stderr.flush()
