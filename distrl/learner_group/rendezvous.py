"""How the processes of one learner find each other: all come to process 0, in any order."""

import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from distrl.errors import ConfigError, DeadlineExceeded, PeerError

MEET_S = 300.0  # for all processes to come
MAX_LINE = 65_536  # bytes
_HELLO_S = 5.0  # for a process that has come to say which one it is
_PAUSE_S = 0.2  # between two tries to reach process 0
_SILENCE_S = 20  # after which a host that does not even answer its kernel's probes is gone


class Met(NamedTuple):
    """Connections to the others: process 0's to all, and everyone's to process 0."""

    sockets: dict[int, socket.socket]  # by index
    names: dict[int, str]  # for messages
    port: int  # of process 0's host, free for JAX's own service


def meet(
    address: str, count: int, index: int, about: Mapping[str, str], timeout: float = MEET_S
) -> Met:
    """Waits until all are there.

    Args: as of `distrl.learner_group.group.LearnerGroup`.

    Raises:
      ConfigError: an address that cannot be, or a process that is not of this learner.
      DeadlineExceeded: not all have come.
      PeerError: process 0 has ended before all had come.
    """
    host, port = parse(address)
    deadline = time.monotonic() + timeout
    about = {**about, "num_processes": str(count)}
    met = Met({}, {}, 0)
    try:
        if index == 0:
            return _await_all(met, host, port, about, deadline)
        return _reach(met, host, port, index, about, deadline)
    except BaseException:
        for found in met.sockets.values():
            found.close()
        raise


def _await_all(met: Met, host: str, port: int, about: dict[str, str], deadline: float) -> Met:
    """Process 0 takes in the others."""
    count = int(about["num_processes"])
    try:
        server = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(f"learner process 0 cannot listen at {host}:{port}: {error}") from error
    with server:
        while len(met.sockets) < count - 1:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                found, peer = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, count)) - set(met.sockets))
                raise DeadlineExceeded(
                    f"learner process 0 waits at {host}:{port}: of {count} processes there is no "
                    f"{', '.join(map(str, missing))}"
                ) from error
            _take_in(met, found, f"{peer[0]}:{peer[1]}", about)
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    for found in met.sockets.values():
        send(found, {"port": port})
    return met._replace(port=port)


def _take_in(met: Met, found: socket.socket, peer: str, about: dict[str, str]) -> None:
    """A process that has come; or a stranger, who is left alone."""
    hello = _line(found, time.monotonic() + _HELLO_S)
    index, its = (hello or {}).get("index"), (hello or {}).get("about")
    if not isinstance(index, int) or not isinstance(its, dict):
        found.close()
        return
    name = f"learner process {index} ({peer})"
    differing = [name for name in about if its.get(name) != about[name]]
    if differing:
        first = differing[0]
        refusal = f"its {first} is {its.get(first)}, that of process 0 is {about[first]}"
    elif not 0 < index < int(about["num_processes"]) or index in met.sockets:
        refusal = f"there is one already, or none of {about['num_processes']}"
    else:
        _watch(found)
        met.sockets[index], met.names[index] = found, name
        return
    message = f"{name} is not of this learner: {refusal}"
    send(found, {"refused": message})
    found.close()
    raise ConfigError(message)


def _reach(
    met: Met, host: str, port: int, index: int, about: dict[str, str], deadline: float
) -> Met:
    """Another process finds process 0, which may start later."""
    try:
        found = _connect(host, port, deadline)
    except OSError as error:
        raise DeadlineExceeded(
            f"learner process {index} found no process 0 at {host}:{port}: {error}"
        ) from error
    name = f"learner process 0 ({host}:{port})"
    met.sockets[0], met.names[0] = found, name
    _watch(found)
    send(found, {"index": index, "about": about})
    answer = _line(found, deadline)
    if answer is None:
        late = time.monotonic() >= deadline
        what = "waits for others, who have not come" if late else "has ended before all had come"
        raise (DeadlineExceeded if late else PeerError)(f"{name} {what}")
    if "refused" in answer:
        raise ConfigError(answer["refused"])
    return met._replace(port=int(answer["port"]))


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to one who may start to listen later. Raises OSError."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=_HELLO_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def lasting_tunnel(host: str, port: int) -> int:
    """A port of this host that leads to another's, and stays open when that one is closed.

    JAX aborts its process, without a word of ours, when its service's connection ends.
    """
    server = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(MAX_LINE):
                sink.sendall(data)
        except OSError:
            return  # one side is gone; whoever waits at the other is told by `LearnerGroup`

    def serve() -> None:
        ends = []  # kept, or they would be closed
        while True:
            near, _ = server.accept()
            try:
                far = _connect(host, port, time.monotonic() + MEET_S)
            except OSError:
                near.close()  # JAX says whom it did not reach
                continue
            far.settimeout(None)
            ends.append((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=carry, args=pair, name="tunnel", daemon=True).start()

    threading.Thread(target=serve, name="tunnel", daemon=True).start()
    return server.getsockname()[1]


def parse(address: str, setting: str = "coordinator_address") -> tuple[str, int]:
    """Host and port of "HOST:PORT". Raises ConfigError, which names the setting."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{setting}: expected HOST:PORT, got {address!r}")
    return host, int(port)


def send(found: socket.socket, message: dict[str, Any]) -> None:
    """One message, a line of JSON. Raises OSError."""
    found.sendall(json.dumps(message).encode() + b"\n")


def _line(found: socket.socket, deadline: float) -> dict[str, Any] | None:
    """The first message; None: none comes in time, or the other side ends, or is a stranger."""
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_LINE:
        found.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            more = found.recv(1)  # what follows the line is for others to read
        except OSError:
            return None
        if not more:
            return None
        data += more
    found.settimeout(_SILENCE_S)
    try:
        message = json.loads(data)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _watch(found: socket.socket) -> None:
    """Has the kernel notice that the other host is gone, also while nothing is sent."""
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S // 4)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_S // 4)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)
