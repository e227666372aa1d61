"""The process that runs a host's tunnel; see `distrl.launch.network.tunnel`."""

import contextlib
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Mapping

from distrl.errors import ConfigError
from distrl.launch.network.credentials import Credentials, read_credentials
from distrl.launch.network.sealing import Opener
from distrl.launch.network.tunnel import LENGTH, run
from distrl.runtime import posix

_START_S = 20.0  # for a new process to answer
_ANSWER, _ERROR = b"=", b"!"


class SealedTunnel:
    """A tunnel in a process that is forked before there are credentials.

    Only that process can open what is sealed for `public_key`, so the private key is neither in the
    memory of this process nor in that of nodes that it forks later.

    Attributes:
      pid: the process's id.
      public_key: for `distrl.launch.network.sealing.seal`.
    """

    def __init__(self) -> None:
        self._socket, child = socket.socketpair()
        self.pid = _fork(lambda: _run_sealed(child), {child.fileno()})
        child.close()
        self._socket.settimeout(_START_S)
        self.public_key = _receive(self._socket).decode()

    def start(
        self,
        listener: socket.socket,
        sealed: str,
        open_ports: Mapping[int, str],
        forwards: Mapping[str, tuple[str, int, int]],
        required: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Makes the process run the tunnel; to be called once.

        Args:
          listener, open_ports, forwards, required: see `tunnel.run`.
          sealed: credentials for `public_key`.
        """
        socket.send_fds(self._socket, [b"."], [listener.fileno()])
        arguments = [sealed, list(open_ports.items()), dict(forwards), list(required)]
        _send(self._socket, json.dumps(arguments).encode())

    def forward_to(
        self,
        forwards: Mapping[str, tuple[str, int, int]],
        required: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Directs new connections elsewhere.

        Args:
          forwards: see `start`; the paths are the same.
          required: see `start`; it replaces the earlier ones.

        Raises:
          OSError: the process has ended.
        """
        _send(self._socket, json.dumps([dict(forwards), list(required)]).encode())

    def news(self) -> tuple[str, int, str]:
        """Returns what the tunnel reports next, for which it makes `fileno()` readable.

        Returns:
          Another host, its open port, and why it cannot be reached; "": it is reached.

        Raises:
          OSError: the process has ended.
        """
        host, port, reason = json.loads(_receive(self._socket))
        return host, port, reason

    def fileno(self) -> int:
        return self._socket.fileno()

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return [self._socket.fileno()]


def _run_sealed(connection: socket.socket) -> None:
    opener = Opener()
    _send(connection, opener.public_key.encode())
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        return  # the other end has given up
    listener = socket.socket(fileno=descriptors[0])
    sealed, open_ports, forwards, required = json.loads(_receive(connection))
    credentials = opener.open(sealed)
    run(listener, credentials, dict(open_ports), forwards, changes=connection, required=required)


def start_tunnel(
    listener: socket.socket,
    credentials: Credentials,
    open_ports: Mapping[int, str],
    forwards: Mapping[str, tuple[str, int, int]],
) -> int:
    """Starts a process that runs the tunnel, and ends when this process ends.

    Args:
      listener, credentials, open_ports, forwards: see `tunnel.run`.

    Returns:
      The pid.
    """
    return _fork(lambda: run(listener, credentials, open_ports, forwards), {listener.fileno()})


def start_tunnel_of_file(
    listener: socket.socket,
    path: str,
    forwards: Mapping[str, tuple[str, int, int]],
    about: Callable[[Credentials], str],
) -> tuple[int, str]:
    """Starts a tunnel whose process alone reads the credentials.

    Args:
      listener, forwards: see `tunnel.run`.
      path: file with the credentials.
      about: what to return of them; called in the new process.

    Returns:
      The pid, and what `about` returned.

    Raises:
      ConfigError: the file cannot be used.
    """
    near, child = socket.socketpair()

    def serve() -> None:
        try:
            credentials = read_credentials(path)
        except ConfigError as error:
            _send(child, _ERROR + str(error).encode())
            return
        _send(child, _ANSWER + about(credentials).encode())
        child.close()
        run(listener, credentials, {}, forwards)

    pid = _fork(serve, {listener.fileno(), child.fileno()})
    child.close()
    with near:
        near.settimeout(_START_S)
        answer = _receive(near)
    if answer.startswith(_ERROR):
        os.waitpid(pid, 0)
        raise ConfigError(answer.removeprefix(_ERROR).decode())
    return pid, answer.removeprefix(_ANSWER).decode()


def has_ended(pid: int) -> bool:
    """Returns whether a tunnel's process has ended; then its pid means nothing any more."""
    return os.waitpid(pid, os.WNOHANG) != (0, 0)


def end_tunnel(pid: int) -> None:
    """Ends a tunnel's process."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _fork(work: Callable[[], None], keep: set[int]) -> int:
    """Returns the pid of a process that ends with this one, and keeps these descriptors open."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        posix.end_with_parent(parent, "distrl:tunnel")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setsid()
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in keep:
                with contextlib.suppress(OSError):  # the one that lists the folder
                    os.close(fd)
        work()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> bytes:
    """Returns what `_send` sent. Raises OSError."""
    (size,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the tunnel's process has ended")
        data += part
    return bytes(data)
