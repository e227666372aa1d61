"""The launcher's side of a daemon that connects by itself, without a tunnel."""

import contextlib
import json
import os
import re
import resource
import selectors
import socket
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distrl.launch.hosts import join_server
from distrl.launch.hosts.join_client import join_token
from distrl.launch.hosts.remote_host import HostState
from distrl.launch.network.credentials import Credentials
from distrl.launch.network.ports import Ports
from distrl.programs.placement import Host
from tests.support.ipv6 import needs_ipv6
from tests.support.other_user import as_another_user

CREDENTIALS = Credentials(b"certificate", b"key")
TUNNEL = 4711  # its pid
IDENTITY = {
    "identity": {"python": "3.10"},
    "host": "machine",
    "cores": 4,
    "gpus": None,
    "tunnel_key": "a",
}


class FakeHost:
    def __init__(self, name: str) -> None:
        self.host = Host(name)
        self.state = HostState.AWAY
        self.hellos: list[tuple[Any, ...]] = []

    def attach(self, channel: object) -> None:
        self.state = HostState.STARTING

    def on_hello(self, *fields: object) -> None:
        self.hellos.append(fields)


class Launcher:
    """A JoinServer, and what it told the user."""

    def __init__(self, port: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.said: list[str] = []
        session: Any = types.SimpleNamespace(
            supervisor=types.SimpleNamespace(selector=self.selector),
            journal=types.SimpleNamespace(say=self.said.append),
        )
        self.hosts: list[Any] = [FakeHost("h1"), FakeHost("h2")]
        names = ["h1", "idle", "h2"]
        self.server = join_server.JoinServer(session, names, self.hosts, CREDENTIALS, port)

    def connect(self, **hello: object) -> socket.socket:
        """Connects a daemon that sends one message."""
        daemon = self.open()
        daemon.sendall(json.dumps(hello).encode() + b"\n")
        return daemon

    def open(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(5.0)
        peer.connect(self.server.path)
        return peer

    def run_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 5.0
        while not condition():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.05):
                key.data()

    def messages_to(self, daemon: socket.socket) -> list[dict[str, Any]]:
        """All messages until the launcher closes the connection."""
        daemon.setblocking(False)
        received = bytearray()

        def is_closed() -> bool:
            try:
                data = daemon.recv(4096)
            except BlockingIOError:
                return False
            received.extend(data)
            return not data

        self.run_until(is_closed)
        return [json.loads(line) for line in received.splitlines()]


@pytest.mark.parametrize("host", ["127.0.0.1", needs_ipv6("::1")])
def test_daemons_may_connect_by_either_version_of_ip(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, host: str
):
    def start(public: socket.socket, *arguments: object) -> int:
        socket.create_connection((host, public.getsockname()[1]), 20.0).close()
        return TUNNEL

    monkeypatch.setattr(join_server, "start_tunnel", start)
    ports = Ports()
    with contextlib.closing(ports), contextlib.closing(Launcher(ports.take()).server):
        pass


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    monkeypatch.setattr(join_server, "start_tunnel", lambda *arguments: TUNNEL)
    monkeypatch.setattr(join_server, "has_ended", lambda pid: False)
    monkeypatch.setattr(join_server, "end_tunnel", lambda pid: None)
    ports = Ports()
    launcher = Launcher(ports.take())
    yield launcher
    launcher.server.close()
    ports.close()


@pytest.mark.parametrize(
    "hello",
    [
        {"kind": "hello", "name": "h1", **IDENTITY},
        {"kind": "hello", "name": "h1", "token": "0" * 64, **IDENTITY},
        {"kind": "hello", "name": "h1", "token": "ü\ud800", **IDENTITY},
        {"kind": "ready", "name": "h1", "token": join_token(CREDENTIALS)},
    ],
)
def test_a_peer_without_the_credentials_is_disconnected(launcher: Launcher, hello: dict[str, Any]):
    with launcher.connect(**hello) as peer:
        assert launcher.messages_to(peer) == [{"kind": "ping"}]
    assert all(host.state is HostState.AWAY for host in launcher.hosts)


@pytest.mark.parametrize(("name", "rank"), [("h2", None), (None, 2), ("elsewhere", 2)])
def test_a_daemon_is_found_by_its_name_or_its_rank(launcher: Launcher, name: str, rank: int):
    token = join_token(CREDENTIALS)
    with launcher.connect(kind="hello", name=name, rank=rank, token=token, **IDENTITY):
        launcher.run_until(lambda: launcher.hosts[1].hellos)
    assert launcher.hosts[1].hellos == [tuple(IDENTITY.values())]
    assert launcher.hosts[0].state is HostState.AWAY and not launcher.said


@pytest.mark.parametrize(("name", "rank"), [("idle", None), (None, 1)])
def test_a_daemon_of_a_host_without_nodes_ends(launcher: Launcher, name: str | None, rank: int):
    token = join_token(CREDENTIALS)
    with launcher.connect(kind="hello", name=name, rank=rank, token=token, **IDENTITY) as daemon:
        assert launcher.messages_to(daemon) == [{"kind": "ping"}, {"kind": "bye"}]
    assert launcher.said == ["a daemon of a host without nodes joined: it ends"]
    assert all(host.state is HostState.AWAY for host in launcher.hosts)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("h3", "a daemon joined as 'h3' (rank None); the hosts are h1, idle, h2"),
        ("h1", "a second daemon joined as host h1"),
    ],
)
def test_a_daemon_of_no_waiting_host_is_refused(launcher: Launcher, name: str, reason: str):
    launcher.hosts[0].state = HostState.UP
    token = join_token(CREDENTIALS)
    with launcher.connect(kind="hello", name=name, rank=None, token=token, **IDENTITY) as daemon:
        _, refused = launcher.messages_to(daemon)
    assert refused == {"kind": "refused", "reason": reason}
    assert launcher.said == [reason]


def test_a_silent_peer_is_disconnected(launcher: Launcher, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(join_server, "HELLO_S", 0.0)
    with launcher.open() as peer:
        launcher.run_until(lambda: launcher.server._unidentified)
        launcher.server.tick()
        assert launcher.messages_to(peer) == [{"kind": "ping"}]


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000 + b"\n",
        b'{"kind": ' * 5_000 + b"\n",
        b"[" * 200_000,
        b"\xff\xfe\n",
        b'"hello"\n',
        b'{"kind": "hello", "token": ["a"], "name": {}}\n',
    ],
)
def test_no_line_of_an_unidentified_peer_ends_the_launcher(launcher: Launcher, line: bytes):
    with launcher.open() as peer:
        peer.sendall(line)
        assert launcher.messages_to(peer) == [{"kind": "ping"}]
    assert not launcher.server._unidentified and not launcher.said


def test_more_peers_than_are_kept_waiting_disconnect_the_oldest(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(join_server, "MAX_UNIDENTIFIED", 3)
    peers = [launcher.open() for _ in range(5)]
    assert launcher.messages_to(peers[0]) == launcher.messages_to(peers[1]) == [{"kind": "ping"}]
    launcher.run_until(lambda: len(launcher.server._unidentified) == 3)
    for peer in peers:
        peer.close()


def test_connections_beyond_the_limit_of_open_files_leave_the_launcher_running(launcher: Launcher):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    peers = []
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                peers.append(launcher.open())
                for key, _ in launcher.selector.select(0.0):
                    key.data()
        for _ in range(10):
            for key, _ in launcher.selector.select(0.0):
                key.data()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for peer in peers:
            peer.close()
    token = join_token(CREDENTIALS)
    with launcher.connect(kind="hello", name="h1", token=token, **IDENTITY):
        launcher.run_until(lambda: launcher.hosts[0].hellos)


def test_a_tunnel_that_has_ended_is_told_and_not_ended_again(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
):
    assert launcher.server.lost() is None
    collected = []

    def collect(pid: int) -> bool:
        collected.append(pid)
        return True

    monkeypatch.setattr(join_server, "has_ended", collect)
    for _ in range(2):
        assert re.fullmatch(
            r"the tunnel of --join_port=\d+ has ended", launcher.server.lost() or ""
        )
    assert collected == [TUNNEL]  # then the pid may be another process's
    monkeypatch.setattr(join_server, "end_tunnel", collected.append)
    launcher.server.close()
    assert collected == [TUNNEL]
    monkeypatch.setattr(launcher.server, "close", lambda: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_does_not_reach_the_launcher(launcher: Launcher):
    assert as_another_user(lambda: launcher.open().close()) == "PermissionError"
