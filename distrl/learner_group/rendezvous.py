"""The rendezvous of a learner's processes: all connect to process 0, in any order."""

import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from distrl.errors import ConfigError, DeadlineExceeded, PeerError
from distrl.runtime.sockets import (
    is_loopback,
    joined_address,
    keep_alive,
    listen,
    parse_address,
)

RENDEZVOUS_S = 300.0  # for all processes to connect
MAX_LINE = 65_536  # bytes
_HELLO_S = 5.0  # for a new connection to say which process it is
_RETRY_S = 0.2  # between two attempts to reach process 0
_SILENCE_S = 20  # a host whose kernel answers no keepalive probes for so long is gone


class Peers(NamedTuple):
    """Connections to the other processes: process 0's to all, all others' to process 0."""

    sockets: dict[int, socket.socket]  # by the processes' indices
    names: dict[int, str]  # the processes' names for messages, by index
    port: int  # a free port of process 0's host, for JAX's own service


def meet(
    address: str, count: int, index: int, must_match: Mapping[str, str], timeout: float
) -> Peers:
    """Waits until all processes are connected.

    Args: see `distrl.learner_group.process_group.ProcessGroup`.

    Raises:
      ConfigError: the address is invalid, or a process belongs to another learner.
      DeadlineExceeded: not all processes connected in time.
      PeerError: process 0 ended before all were connected.
    """
    host, port = parse_address(address, "coordinator_address")
    deadline = time.monotonic() + timeout
    must_match = {**must_match, "num_processes": str(count)}
    peers = Peers({}, {}, 0)
    try:
        if index == 0:
            return _await_all(peers, host, port, must_match, deadline)
        return _reach_first(peers, host, port, index, must_match, deadline)
    except BaseException:
        for connection in peers.sockets.values():
            connection.close()
        raise


def _await_all(
    peers: Peers, host: str, port: int, must_match: dict[str, str], deadline: float
) -> Peers:
    """Accepts the other processes, in process 0."""
    count = int(must_match["num_processes"])
    try:
        server = listen(host, port)
    except OSError as error:
        where = joined_address(host, port)
        raise ConfigError(f"learner process 0 cannot listen at {where}: {error}") from error
    with server:
        while len(peers.sockets) < count - 1:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, peer = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, count)) - set(peers.sockets))
                at = server.getsockname()[0]  # Debian's /etc/hosts has 127.0.1.1 for its own name
                hint = f"; from other hosts {at} is not reached: give an address that is"
                raise DeadlineExceeded(
                    f"learner process 0 waits at {joined_address(host, port)}: of {count} "
                    f"processes these are missing: {', '.join(map(str, missing))}"
                    f"{hint if is_loopback(at) else ''}"
                ) from error
            _accept(peers, connection, joined_address(peer[0], peer[1]), must_match)
    with listen(host, 0) as free:
        port = free.getsockname()[1]
    for connection in peers.sockets.values():
        send(connection, {"port": port})
    return peers._replace(port=port)


def _accept(peers: Peers, connection: socket.socket, peer: str, must_match: dict[str, str]) -> None:
    """Adds the process at a new connection; closes one that is not from a learner process."""
    hello = _first_line(connection, time.monotonic() + _HELLO_S) or {}
    index, settings = hello.get("index"), hello.get("about")
    if not isinstance(index, int) or not isinstance(settings, dict):
        connection.close()
        return
    name = f"learner process {index} ({peer})"
    differing = [key for key in must_match if settings.get(key) != must_match[key]]
    if differing:
        key = differing[0]
        refusal = f"its {key} is {settings.get(key)}, that of process 0 is {must_match[key]}"
    elif not 0 < index < int(must_match["num_processes"]) or index in peers.sockets:
        refusal = (
            f"another process has this index, or it is not below {must_match['num_processes']}"
        )
    else:
        _prepare(connection)
        peers.sockets[index], peers.names[index] = connection, name
        return
    message = f"{name} belongs to another learner: {refusal}"
    send(connection, {"refused": message})
    connection.close()
    raise ConfigError(message)


def _reach_first(
    peers: Peers, host: str, port: int, index: int, must_match: dict[str, str], deadline: float
) -> Peers:
    """Connects a process to process 0, which may start later."""
    where = joined_address(host, port)
    try:
        connection = _connect(host, port, deadline)
    except OSError as error:
        raise DeadlineExceeded(
            f"learner process {index} found no process 0 at {where}: {error}"
        ) from error
    name = f"learner process 0 ({where})"
    peers.sockets[0], peers.names[0] = connection, name
    _prepare(connection)
    send(connection, {"index": index, "about": must_match})
    answer = _first_line(connection, deadline)
    if answer is None and time.monotonic() >= deadline:
        raise DeadlineExceeded(f"{name} still waits for other processes")
    if answer is None:
        raise PeerError(f"{name} has ended before all processes were connected")
    if "refused" in answer:
        raise ConfigError(answer["refused"])
    return peers._replace(port=int(answer["port"]))


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Returns a connection to a process that may start to listen later. Raises OSError."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=_HELLO_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def lasting_tunnel(host: str, port: int) -> int:
    """Returns a local port that forwards to another host's port, and outlasts that one.

    JAX aborts its process without a useful message when the connection to its service ends.
    """
    server = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(MAX_LINE):
                sink.sendall(data)
        except OSError:
            return  # one side is gone; `ProcessGroup` informs the process at the other

    def serve() -> None:
        connections = []  # kept, so that they are not closed
        while True:
            near, _ = server.accept()
            try:
                far = _connect(host, port, time.monotonic() + RENDEZVOUS_S)
            except OSError:
                near.close()  # JAX reports what it did not reach
                continue
            far.settimeout(None)
            connections.append((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=copy, args=pair, name="tunnel", daemon=True).start()

    threading.Thread(target=serve, name="tunnel", daemon=True).start()
    return server.getsockname()[1]


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends one message, a line of JSON. Raises OSError."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def _first_line(connection: socket.socket, deadline: float) -> dict[str, Any] | None:
    """Returns the first message; None at the deadline, at an early end, or for any other data."""
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_LINE:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            more = connection.recv(1)  # what follows the line is read by `ProcessGroup`
        except OSError:
            return None
        if not more:
            return None
        data += more
    connection.settimeout(_SILENCE_S)
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _prepare(connection: socket.socket) -> None:
    """Sets a connection to send small messages at once, and to notice a host that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    probe_s = _SILENCE_S // 4
    keep_alive(connection, idle=probe_s, interval=probe_s, send_timeout=_SILENCE_S)
