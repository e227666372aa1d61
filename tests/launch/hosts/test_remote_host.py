"""The launcher's side of a host, with a daemon that is the other end of a socket."""

import base64
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distrl.launch.hosts import goodbye, remote_host
from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.remote_host import HostState, RemoteHost
from distrl.launch.hosts.remote_node import RemoteHeartbeat, SupervisedRemoteNode
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.programs.placement import Host
from distrl.runtime.heartbeat import DOWN, GONE, LOST, UP, HeartbeatTable

IDENTITY = {"python": "3.10", "code": "1"}
HELLO = {"kind": "hello", "identity": IDENTITY, "host": "machine", "cores": 4, "gpus": None}
HELLO["tunnel_key"] = "its key"
USAGE = {"cpu": 1.5, "resident": 10, "shared": 2, "stopped": False}


class Daemon:
    """A RemoteHost with one node, and the daemon's end of its connection."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.said: list[str] = []
        self.output = bytearray()
        self.changes: list[tuple[str, int]] = []
        self.ready: list[RemoteHost] = []
        session: Any = types.SimpleNamespace(
            supervisor=types.SimpleNamespace(selector=self.selector, messages=[]),
            signals=types.SimpleNamespace(pending=list),
            journal=types.SimpleNamespace(say=self.said.append, note=lambda line: None),
        )
        self.messages = session.supervisor.messages
        self.session = session
        self.host = RemoteHost(
            Host("h2"), [], ["actor/0"], session, {"payload": "", "tunnel_port": 0},
            lambda key: f"sealed for {key}", IDENTITY, lambda: self.ready.append(self.host),
            folder / "host-h2.log",
        )  # fmt: skip
        log: Any = types.SimpleNamespace(feed=self.output.extend)

        def on_change(name: str) -> None:
            self.changes.append((name, heartbeat.status))
            self.host.send_status([name])

        table = HeartbeatTable(["actor/0", "learner/0"])
        heartbeat = RemoteHeartbeat(table, "actor/0", on_change)
        self.learner = RemoteHeartbeat(table, "learner/0", on_change)
        self.host.heartbeats = {"actor/0": heartbeat, "learner/0": self.learner}
        self.node = SupervisedRemoteNode(
            "actor/0", "actor", log, heartbeat, RestartPolicy(), "h2", self.host.send
        )
        self.host.nodes["actor/0"] = self.node
        self.host.essential = {"learner/0", "replay/0"}
        self.socket = socket.socket()

    def connect(self) -> None:
        near, self.socket = socket.socketpair()
        self.socket.settimeout(5.0)
        reader = os.dup(near.fileno())
        unused: Callable[..., None] = lambda *arguments: None  # noqa: E731
        self.host.attach(JsonLineChannel(self.selector, reader, near.detach(), unused, unused))

    def send(self, **message: object) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self.socket.recv(1)
            assert byte, "the connection was closed"
            line += byte
        return json.loads(line)

    def run_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 5.0
        while not condition():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.05):
                key.data()

    def bring_up(self) -> None:
        """Takes the host through all its states."""
        self.connect()
        assert self.host.state is HostState.STARTING
        self.send(**HELLO)
        self.send(kind="ready", ports={"actor/0": [15000]}, tunnel_port=7420)
        self.run_until(lambda: self.host.state is HostState.READY)
        assert self.ready[-1] is self.host
        assert (self.host.ports, self.host.tunnel_port) == ({"actor/0": [15000]}, 7420)
        assert self.receive() == {
            "kind": "begin", "payload": "", "tunnel_port": 0, "nodes": ["actor/0"],
            "credentials": "sealed for its key",
        }  # fmt: skip
        addresses = {"learner/0": [("h1", 7420, 15001)], "relay/1": [("h3", 7420, 15001)]}
        self.host.wire(addresses)
        assert self.receive() == {
            "kind": "wire", "remote_addresses": json.loads(json.dumps(addresses)),
            "required": [["h1", 7420]],
        }  # fmt: skip
        self.send(kind="wired")
        self.run_until(lambda: self.host.state is HostState.UP)
        assert self.receive()["kind"] == "heartbeats"

    def start(self, acted: int = 0) -> None:
        self.node.heartbeat.begin(life=3)
        assert self.receive()["kind"] == "heartbeats"
        self.node.start()
        assert self.receive() == {"kind": "start", "node": "actor/0", "life": 3, "acted": acted}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    goodbye.say_goodbye(daemon.session, [daemon.host], timeout=0.0)
    daemon.socket.close()


def test_a_node_runs_and_ends(daemon: Daemon):
    daemon.bring_up()
    daemon.start()
    assert daemon.changes == [("actor/0", UP)]
    daemon.send(kind="report", nodes={"actor/0": [0.5, None, 4711, USAGE, 8]})
    daemon.send(kind="output", node="actor/0", data=base64.b64encode(b"a line\n").decode())
    daemon.send(kind="message", age=2.0, node_message="running", node="actor/0")
    daemon.run_until(lambda: daemon.messages)
    usage = daemon.node.usage()
    assert usage is not None and usage.cpu == 1.5 and daemon.node.pid == 4711
    assert 0.5 <= (daemon.node.heartbeat.at_work() or 0.0) < 5.0
    assert daemon.output == b"a line\n"
    assert daemon.messages[0].kind == "running"
    assert 2.0 <= time.monotonic() - daemon.messages[0].time < 7.0
    assert not daemon.node.collect()
    daemon.node.ask_to_stop()
    daemon.node.kill()
    daemon.node.show_stacks()
    assert [daemon.receive()["kind"] for _ in range(3)] == ["stop", "kill", "stacks"]
    assert daemon.node.heartbeat.acted == 8
    end = {"state": "failed", "code": 3, "signal": None, "error": "Oops: no"}
    daemon.send(kind="exit", node="actor/0", acted=12, **end)
    daemon.run_until(daemon.node.collect)
    assert daemon.node.heartbeat.acted == 12
    end = daemon.node.exit
    assert (end.state, end.code, end.error, daemon.node.alive) == ("failed", 3, "Oops: no", False)


def test_a_silent_host_is_lost_with_its_nodes_until_it_is_back(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    daemon.bring_up()
    daemon.start()
    daemon.host.tick()
    assert daemon.host.state is HostState.UP
    with monkeypatch.context() as patch:
        patch.setattr(remote_host, "SILENT_S", -1.0)
        daemon.host.tick()
    (line,) = daemon.said
    assert line == "host h2 is lost: no message from its daemon for -1 s"
    assert daemon.host.state is HostState.AWAY
    assert daemon.node.unavailable_reason == line
    assert daemon.node.collect()
    assert (daemon.node.exit.state, daemon.node.exit.error) == ("failed", line)
    daemon.socket.close()
    daemon.bring_up()
    assert daemon.node.unavailable_reason is None
    daemon.start()


def test_a_node_that_is_started_on_a_host_just_lost_has_ended(daemon: Daemon):
    """As where the start of another node has shown that the connection is broken."""
    daemon.bring_up()
    daemon.socket.close()
    daemon.run_until(lambda: daemon.said)
    daemon.node.heartbeat.begin(life=3)
    daemon.node.start()
    assert daemon.node.collect() and not daemon.node.alive
    assert (daemon.node.exit.state, daemon.node.exit.error) == ("failed", daemon.said[0])


class Clock:
    """The time of `remote_host`, from 0."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(remote_host, "time", types.SimpleNamespace(monotonic=lambda: self.now))

    def tick_until(self, now: float, host: RemoteHost) -> None:
        """Calls `tick` each second until then."""
        while self.now < now:
            self.now = min(now, self.now + 1.0)
            host.tick()


def test_a_host_that_starts_is_not_lost_while_it_shows_signs_of_life(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock(monkeypatch)
    daemon.connect()
    daemon.send(**HELLO)
    for second in range(0, 400, 50):  # its imports take more than six minutes
        clock.tick_until(float(second), daemon.host)
        daemon.send(kind="alive")
        daemon.run_until(lambda: daemon.host._silence._seconds == 0.0)
    assert daemon.host.state is HostState.STARTING and not daemon.said
    assert daemon.host.why_late() == "its daemon is still importing and building the program"
    daemon.send(kind="ready", ports={"actor/0": [15000]}, tunnel_port=7420)
    daemon.run_until(lambda: daemon.host.state is HostState.READY)


def test_a_host_that_says_nothing_while_it_starts_is_lost_and_named(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock(monkeypatch)
    daemon.connect()
    daemon.host.tick()
    clock.tick_until(60.0, daemon.host)
    assert daemon.host.state is HostState.STARTING
    clock.tick_until(60.1, daemon.host)
    assert daemon.host.state is HostState.AWAY
    line = "host h2 is lost: no message from its daemon for 60 s, while it started"
    assert daemon.said == [line] and daemon.host.why_late() == line
    clock.now = 70.0
    daemon.host.tick()
    assert len(daemon.said) == 1


def test_a_pause_of_the_whole_program_is_no_silence(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    """As of a job that is suspended: the daemon has said nothing meanwhile."""
    daemon.bring_up()
    daemon.start()
    clock = Clock(monkeypatch)
    for _ in range(3):
        daemon.host.tick()
        clock.now += 3600.0
        daemon.host.tick()
        daemon.send(kind="report", nodes={})
        daemon.run_until(lambda: daemon.host._silence._seconds == 0.0)
    assert daemon.host.state is HostState.UP and not daemon.said
    clock.tick_until(clock.now + 10.1, daemon.host)
    assert daemon.said == ["host h2 is lost: no message from its daemon for 10 s"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_node_that_was_to_be_restarted_is_lost_with_its_host(daemon: Daemon, comes_back: bool):
    daemon.bring_up()
    daemon.start()
    daemon.send(kind="exit", node="actor/0", acted=0, state="failed", code=1)
    daemon.run_until(daemon.node.collect)
    daemon.node.heartbeat.end(comes_back)
    daemon.socket.close()
    daemon.run_until(lambda: daemon.said)
    assert daemon.node.heartbeat.status == (LOST if comes_back else GONE)
    assert daemon.changes[-1] == ("actor/0", daemon.node.heartbeat.status)


def test_addresses_that_change_are_sent_again(daemon: Daemon):
    daemon.bring_up()
    for port in (7421, 7422):  # another host came back twice
        addresses = {"gradient_worker/0": [("h3", port, 15001)]}
        daemon.host.wire(addresses)
        assert daemon.receive() == {
            "kind": "rewire", "remote_addresses": {"gradient_worker/0": [["h3", port, 15001]]},
            "required": [],
        }  # fmt: skip
    daemon.socket.close()
    daemon.run_until(lambda: daemon.said)
    daemon.bring_up()  # a new daemon is wired


def test_a_daemon_hears_of_all_nodes_when_it_is_up_and_of_none_before(daemon: Daemon):
    """Before, it has no table."""
    daemon.connect()
    daemon.learner.begin(life=7)
    daemon.learner.acted = 5
    daemon.send(**HELLO)
    daemon.send(kind="ready", ports={"actor/0": [15000]}, tunnel_port=7420)
    daemon.run_until(lambda: daemon.host.state is HostState.READY)
    daemon.host.wire({})
    assert [daemon.receive()["kind"] for _ in range(2)] == ["begin", "wire"]
    daemon.learner.begin(life=8)  # while it is wired
    daemon.send(kind="wired")
    daemon.run_until(lambda: daemon.host.state is HostState.UP)
    assert daemon.receive() == {
        "kind": "heartbeats", "heartbeats": {"actor/0": [0, 0, 0], "learner/0": [UP, 8, 5]},
    }  # fmt: skip
    daemon.learner.end(True)
    assert daemon.receive() == {
        "kind": "heartbeats", "heartbeats": {"learner/0": [DOWN, 8, 5]},
    }  # fmt: skip


def test_a_daemon_that_is_back_hears_what_its_nodes_have_done(daemon: Daemon):
    daemon.bring_up()
    daemon.start()
    daemon.send(kind="report", nodes={"actor/0": [0.5, None, 4711, USAGE, 100]})
    daemon.run_until(lambda: daemon.node.heartbeat.acted == 100)
    daemon.socket.close()
    daemon.run_until(daemon.node.collect)
    daemon.bring_up()
    daemon.start(acted=100)
    daemon.send(kind="report", nodes={"actor/0": [0.5, None, 4711, USAGE, 0]})  # older than that
    daemon.send(kind="report", nodes={"actor/0": [0.5, None, 4712, USAGE, 100]})
    daemon.run_until(lambda: daemon.node.pid == 4712)
    assert daemon.node.heartbeat.acted == 100


def test_a_closed_connection_is_a_lost_host_and_a_goodbye_is_not(daemon: Daemon):
    daemon.bring_up()
    daemon.socket.close()
    daemon.run_until(lambda: daemon.said)
    assert daemon.said == ["host h2 is lost: the connection was closed"]
    daemon.bring_up()
    daemon.socket.close()
    goodbye.say_goodbye(daemon.session, [daemon.host])
    assert len(daemon.said) == 1


@pytest.mark.parametrize("kept", [False, True])
def test_a_daemon_that_is_kept_hears_no_goodbye(daemon: Daemon, kept: bool):
    daemon.bring_up()
    daemon.host.kept = kept
    daemon.socket.shutdown(socket.SHUT_WR)  # it hangs up at once
    goodbye.say_goodbye(daemon.session, [daemon.host])
    assert daemon.socket.recv(100) == (b"" if kept else b'{"kind": "bye"}\n')
    assert not daemon.said


STUBBORN = ["sh", "-c", "trap '' HUP; exec sleep 60"]  # it ignores the end of its stdin


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Hosts whose commands do not end with the connection."""
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(Daemon(tmp_path / name))
        made[-1].host._command = STUBBORN
        made[-1].host._connect()
    yield made
    goodbye.say_goodbye(made[0].session, [each.host for each in made], timeout=0.0)
    for each in made:
        each.socket.close()


def no_wait(*arguments: object) -> None:
    raise AssertionError("the launcher's loop waits")


def test_hosts_that_are_cut_off_together_delay_no_other(
    daemon: Daemon, stubborn: list[Daemon], monkeypatch: pytest.MonkeyPatch
):
    daemon.bring_up()
    clock = Clock(monkeypatch)
    daemon.host._last_ping = clock.now
    monkeypatch.setattr(subprocess.Popen, "wait", no_wait)
    processes = [each.host._connecting._process for each in stubborn]
    for second in range(70):
        clock.now = float(second)
        for host in (stubborn[0].host, daemon.host, stubborn[1].host):
            host.tick()
        if second:
            assert daemon.receive()["kind"] == "ping"
        daemon.send(kind="report", nodes={})
        daemon.run_until(lambda: daemon.host._silence._seconds == 0.0)
    assert daemon.host.state is HostState.UP
    for each, process in zip(stubborn, processes, strict=True):
        assert each.said == [
            "host h2 is lost: no message from its daemon for 60 s, while it started"
        ]
        each.run_until(lambda process=process: process.poll() is not None)
        assert process.returncode == -signal.SIGKILL


def test_the_goodbyes_of_all_hosts_share_one_deadline(
    daemon: Daemon, stubborn: list[Daemon], monkeypatch: pytest.MonkeyPatch
):
    daemon.bring_up()
    hosts = [stubborn[0].host, daemon.host, stubborn[1].host]
    processes = [each.host._connecting._process for each in stubborn]
    now, waits = 0.0, []

    def run_once(selector: selectors.BaseSelector, timeout: float) -> None:
        nonlocal now
        now += timeout
        waits.append([host.connected for host in hosts])
        if len(waits) == 1:
            assert daemon.receive() == {"kind": "bye"}  # it need not wait for the others' end

    clock = types.SimpleNamespace(monotonic=lambda: now)
    for module in (goodbye, remote_host):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(goodbye, "run_once", run_once)
    goodbye.say_goodbye(daemon.session, hosts, timeout=2.0)
    assert waits[0] == [True, True, True]
    assert now < 2 * 2.0 + goodbye.KILL_S + 1.0
    for process in processes:
        assert process is not None
        process.wait(20.0)
        assert process.returncode == -signal.SIGKILL


def test_a_reason_has_the_errors_of_the_last_connection_once(daemon: Daemon, tmp_path: Path):
    (tmp_path / "host-h2.log").write_text("nobody@h2: Permission denied\n")  # of an earlier run
    for message in ("No route to host", "Connection timed out"):
        daemon.host._command = ["sh", "-c", f"echo {message} >&2"]
        daemon.host._connect()
        daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
        line = f"host h2 is lost: the connection was closed ({message})"
        assert daemon.host.why_late() == daemon.host.away_because == line


def test_other_code_is_refused(daemon: Daemon):
    daemon.connect()
    daemon.send(**{**HELLO, "identity": {**IDENTITY, "code": "2"}})
    daemon.run_until(lambda: daemon.host.refused)
    assert daemon.host.refused == (
        "host h2 has different code of distrl (hash 2; here 1): install the same code on all hosts"
    )
    assert daemon.host.state is HostState.AWAY and not daemon.said


def test_a_daemon_that_fails_is_refused(daemon: Daemon):
    daemon.connect()
    daemon.send(kind="broken", error="ImportError: no jax", traceback="...")
    daemon.run_until(lambda: daemon.host.refused)
    assert daemon.host.refused == "host h2: ImportError: no jax"
    assert daemon.host.state is HostState.AWAY


def break_off(daemon: Daemon, error: str, passing: bool) -> None:
    """Has a new daemon fail before it is up."""
    daemon.connect()
    daemon.send(kind="broken", error=error, traceback="...", passing=passing)
    daemon.run_until(lambda: daemon.host.state is HostState.AWAY)


def test_a_host_that_cannot_reach_another_one_is_named_until_it_can(daemon: Daemon):
    daemon.connect()
    daemon.send(**HELLO)
    daemon.send(kind="ready", ports={"actor/0": [15000]}, tunnel_port=7420)
    daemon.run_until(lambda: daemon.host.state is HostState.READY)
    assert daemon.host.why_late() == "its daemon waits for other hosts"
    reach = {"kind": "reach", "host": "h1", "port": 7420}
    daemon.send(**reach, reason="no answer")
    daemon.run_until(lambda: daemon.said)
    hint = "open that port between the hosts, or choose one with --tunnel_port"
    assert daemon.said == [f"h2 cannot reach h1:7420 (no answer): {hint}; trying again"]
    assert daemon.host.why_late() == f"it cannot reach h1:7420 (no answer): {hint}"
    daemon.send(**reach, reason="")
    daemon.send(kind="wired")
    daemon.run_until(lambda: daemon.host.state is HostState.UP)
    daemon.send(**reach, reason="no answer")  # the port was open: now the network is at fault
    daemon.send(kind="reach", host="h3", port=7420, reason="")
    daemon.run_until(lambda: len(daemon.said) == 3)
    assert daemon.said[1:] == [
        "h2 reaches h1:7420", "h2 cannot reach h1:7420 (no answer); trying again",
    ]  # fmt: skip
    daemon.socket.close()
    daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
    daemon.bring_up()
    assert not daemon.host.unreachable


def test_a_host_whose_name_another_one_does_not_know_needs_an_address(daemon: Daemon):
    daemon.connect()
    reason = "unknown name: Name or service not known"
    daemon.send(kind="reach", host="gpu", port=7420, reason=reason)
    daemon.run_until(lambda: daemon.said)
    assert daemon.said == [
        f"h2 cannot reach gpu:7420 ({reason}): give an address that resolves there, "
        "--hosts=NAME:address=...; trying again"
    ]


def test_a_host_that_must_be_reached_and_is_elsewhere_now_is_not_named_where_it_was(daemon: Daemon):
    daemon.connect()
    daemon.send(**HELLO)
    daemon.send(kind="ready", ports={"actor/0": [15000]}, tunnel_port=7420)
    daemon.run_until(lambda: daemon.host.state is HostState.READY)
    daemon.host.wire({"learner/0": [("h1", 7420, 15001)]})
    daemon.send(kind="reach", host="h1", port=7420, reason="Connection refused")
    daemon.run_until(lambda: daemon.host.unreachable)
    addresses = {"learner/0": [("h1", 7421, 15001)]}
    daemon.host.wire(addresses)
    assert daemon.host.why_late() == "its daemon waits for other hosts"
    kinds = ["begin", "wire", "rewire"]
    messages = [daemon.receive() for _ in kinds]
    assert [message["kind"] for message in messages] == kinds
    assert messages[-1]["required"] == [["h1", 7421]]


def test_a_failure_that_may_pass_is_told_once_and_keeps_no_program_from_starting(daemon: Daemon):
    for _ in range(2):
        break_off(daemon, "OSError: port 7420 is taken", passing=True)
    break_off(daemon, "OSError: no disk", passing=True)
    assert daemon.host.refused is None and daemon.host.why_late() == "host h2: OSError: no disk"
    assert daemon.said == [
        "host h2: OSError: port 7420 is taken; waiting for its daemon",
        "host h2: OSError: no disk; waiting for its daemon",
    ]


def test_a_host_that_is_back_and_refused_is_named_and_tried_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock(monkeypatch)
    daemon.bring_up()
    daemon.socket.close()
    daemon.run_until(lambda: daemon.said)
    daemon.host._command = ["ssh", "h2"]
    monkeypatch.setattr(daemon.host, "_connect", daemon.connect)
    attempts = []
    while len(attempts) < 7:
        daemon.host.tick()
        if daemon.host.state is HostState.STARTING:
            attempts.append(clock.now)
            daemon.send(**{**HELLO, "identity": {**IDENTITY, "code": "2"}})
            daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
        clock.now += 1.0
    delays = [later - earlier for earlier, later in itertools.pairwise([0.0, *attempts])]
    assert delays == [3.0, 3.0, 6.0, 12.0, 24.0, 48.0, 60.0]
    other_code = (
        "host h2 has different code of distrl (hash 2; here 1): install the same code on all "
        "hosts; this program needs what it was started with; trying again"
    )
    assert daemon.said[1:] == [other_code] and daemon.host.refused is None
    clock.now += 60.0
    daemon.host.tick()
    daemon.send(kind="broken", error="ImportError: no jax", traceback="...")
    daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
    assert daemon.said[2:] == ["host h2: ImportError: no jax; trying again"]
    daemon.bring_up()
    daemon.socket.close()
    daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
    clock.now += 3.0
    daemon.host.tick()
    assert daemon.host.state is HostState.STARTING


@pytest.mark.parametrize(
    ("command", "then"), [(["ssh", "h2"], "trying again"), ([], "waiting for its daemon")]
)
def test_the_first_failure_of_a_host_that_was_not_up_is_told(
    daemon: Daemon, tmp_path: Path, command: list[str], then: str
):
    daemon.host._command = command
    (tmp_path / "host-h2.log").write_text("nobody@h2: Permission denied\n")
    for _ in range(2):
        daemon.connect()
        daemon.socket.close()
        daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
    reason = "the connection was closed (nobody@h2: Permission denied)"
    assert daemon.said == [f"host h2: {reason}; {then}"]
    daemon.bring_up()
    daemon.socket.close()
    daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
    daemon.connect()
    daemon.socket.close()
    daemon.run_until(lambda: daemon.host.state is HostState.AWAY)
    assert daemon.said[1:] == [f"host h2 is lost: {reason}"]
