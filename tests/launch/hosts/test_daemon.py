"""A host daemon's loop, whose nodes and launcher only exist in the test."""

import errno
import functools
import json
import os
import signal
import socket
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distrl.launch.hosts import channel
from distrl.launch.hosts import daemon as daemon_module
from distrl.launch.hosts.daemon import HostDaemon
from distrl.launch.local import processes
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.usage import Usage
from distrl.runtime.heartbeat import Heartbeat
from tests.support.ipv6 import needs_ipv6


class Left(SystemExit):
    """The daemon's process has ended, or another command has replaced it."""


class NoTunnel:
    """In the place of the tunnel's process."""

    public_key = "key"

    def __bool__(self) -> bool:
        return False


class FakeNode:
    """A node that runs until the test says otherwise.

    Attributes:
      refusals: by method, how often the operating system refuses it.
      calls: names of the methods that were not refused.
    """

    pid = 4711

    def __init__(self) -> None:
        self.alive = True
        self.has_ended = False
        self.heartbeat = Heartbeat()
        self.exit = NodeExit("ended", 0)
        self.refusals: dict[str, int] = {}
        self.calls: list[str] = []

    def _call(self, method: str) -> None:
        if self.refusals.get(method, 0) > 0:
            self.refusals[method] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        self.calls.append(method)

    def begin(self, life: int) -> None:
        self._call("start")
        self.alive, self.has_ended = True, False

    def collect(self) -> bool:
        self._call("collect")
        self.alive = not self.has_ended
        return self.has_ended

    def usage(self) -> Usage:
        self._call("usage")
        return Usage(cpu=float(self.calls.count("usage")))

    def kill(self) -> None:
        self._call("kill")
        self.has_ended = True

    def destroy(self) -> None:
        self._call("destroy")


class Daemon:
    """A `HostDaemon` in this process, with the launcher's end of its connection.

    Attributes:
      turns: what the launcher does, one entry before each turn of the loop. After the last one it
        says goodbye.
      ended: the exit status, or the command that has replaced the process.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.launcher, near = socket.socketpair()
        self.launcher.setblocking(False)
        self.turns: list[Callable[[], object]] = []
        self.now = 0.0
        self.ended: Any = None
        reader = os.dup(near.fileno())
        self.daemon = HostDaemon(reader, near.detach(), folder, 0, {}, ["distrl", "host-daemon"])
        self.node = FakeNode()
        self.nodes = self.daemon._nodes.by_name
        run_once = daemon_module.run_once

        def turn(selector: Any, timeout: float) -> None:
            self.now += timeout
            (self.turns.pop(0) if self.turns else self.say_goodbye)()
            run_once(selector, 0.0)

        def leave(ended: Any) -> None:
            self.ended = ended
            raise Left

        patch.setattr(daemon_module, "run_once", turn)
        patch.setattr(daemon_module, "SealedTunnel", NoTunnel)
        patch.setattr(daemon_module, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        self.daemon._last_report = 0.0
        patch.setattr(os, "_exit", leave)
        patch.setattr(os, "execv", lambda path, command: leave(command))

    def say(self, kind: str, **fields: object) -> None:
        self.launcher.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def say_goodbye(self) -> None:
        self.say("bye")

    def run(self) -> list[dict[str, Any]]:
        """Returns what the daemon has told the launcher, after its hello."""
        with pytest.raises(Left):
            self.daemon.run()
        messages = [json.loads(line) for line in self.launcher.recv(1 << 20).splitlines()]
        assert messages[0]["kind"] == "hello"
        return messages[1:]

    def close(self) -> None:
        self.daemon._channel.close()
        self.daemon.selector.close()
        self.launcher.close()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    folder = tmp_path / "sockets"
    folder.mkdir()
    with monkeypatch.context() as patch:
        made = Daemon(folder, patch)
        yield made
    made.close()
    assert not folder.exists()


def nothing() -> None:
    """A turn in which the launcher says nothing."""


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_that_waits_ends_in_order_when_it_is_asked_to(daemon, capfd, number):
    daemon.turns = [nothing, send(number), nothing, nothing]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        daemon.run()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert daemon.ended == 128 + number  # it does not wait for its launcher again
    assert len(daemon.turns) == 2
    assert capfd.readouterr().err.endswith(f": {number.name}; ending\n")


def test_so_does_one_whose_nodes_have_ended(daemon):
    daemon.nodes["actor/0"] = daemon.node
    daemon.node.has_ended = True
    daemon.turns = [nothing, send(signal.SIGTERM), nothing]
    messages = daemon.run()
    assert daemon.ended == 128 + signal.SIGTERM
    assert [message["kind"] for message in messages] == ["exit"]


def test_while_a_node_runs_its_launcher_decides(daemon):
    daemon.nodes["actor/0"] = daemon.node
    daemon.turns = [nothing, send(signal.SIGTERM), nothing]
    daemon.run()
    assert daemon.ended == 0 and daemon.turns == []
    assert daemon.node.calls[-1] == "destroy"


def test_a_daemon_that_was_asked_to_end_does_not_wait_for_another_launcher(daemon):
    """As where a cluster evicts the pods of a host and of the launcher together."""
    daemon.nodes["actor/0"] = daemon.node
    daemon.turns = [
        nothing,
        send(signal.SIGTERM),
        nothing,
        lambda: daemon.launcher.shutdown(socket.SHUT_WR),
    ]
    daemon.run()
    assert daemon.ended == 128 + signal.SIGTERM and daemon.turns == []


def test_a_node_goes_on_from_the_steps_that_the_launcher_knows_of(daemon):
    daemon.nodes["actor/0"] = node = daemon.node
    node.alive = False

    def act_and_end() -> None:
        node.heartbeat.acted += 20
        node.has_ended = True

    start = {"node": "actor/0", "life": 3}
    daemon.turns = [
        lambda: daemon.say("start", **start, acted=100),
        *[nothing] * 8,
        act_and_end,
        lambda: daemon.say("start", **start, acted=100),  # it knows less than the daemon
        *[nothing] * 8,
    ]
    messages = daemon.run()
    reports = [message["nodes"] for message in messages if message["kind"] == "report"]
    assert {report["actor/0"][4] for report in reports if report} == {100, 120}
    assert [message["acted"] for message in messages if message["kind"] == "exit"] == [120]


def test_a_lost_launcher_is_waited_for_again(daemon):
    daemon.turns = [lambda: daemon.launcher.shutdown(socket.SHUT_WR)]
    daemon.run()
    assert daemon.ended == ["distrl", "host-daemon"]


def test_a_launcher_that_says_nothing_for_long_is_lost(daemon, capfd):
    daemon.turns = [nothing] * 100  # 20 s
    daemon.run()
    assert daemon.ended == ["distrl", "host-daemon"]
    assert 45 <= len(daemon.turns) <= 50
    assert "no message from the launcher for 10 s; ending" in capfd.readouterr().err


def test_a_pause_of_the_whole_program_is_no_silence(daemon):
    """As of a job that is suspended: the launcher has said nothing meanwhile."""

    def pause() -> None:
        daemon.now += 3600.0

    daemon.turns = [nothing, pause, nothing, lambda: daemon.say("ping"), pause, nothing]
    daemon.run()
    assert daemon.ended == 0 and daemon.turns == []


def test_signs_of_life_are_sent_while_stacks_are_read(daemon, monkeypatch):
    monkeypatch.setattr(channel, "ALIVE_S", 0.01)
    daemon.launcher.settimeout(5.0)
    heard = bytearray()

    def show_stacks(also_if_stopped):
        while b'"alive"' not in heard:
            heard.extend(daemon.launcher.recv(1 << 16))

    daemon.node.show_stacks = show_stacks
    daemon.nodes["actor/0"] = daemon.node
    daemon.turns = [lambda: daemon.say("stacks", node="actor/0", also_if_stopped=True)]
    with pytest.raises(Left):
        daemon.daemon.run()
    assert b'"alive"' in heard


def test_what_the_system_refuses_is_tried_again(daemon, capfd):
    daemon.nodes["actor/0"] = node = daemon.node
    node.refusals = {"collect": 3, "kill": 2, "usage": 1}
    daemon.turns = [nothing] * 12 + [lambda: daemon.say("kill", node="actor/0")] + [nothing] * 5
    messages = daemon.run()
    assert daemon.ended == 0
    kinds = [message["kind"] for message in messages]
    assert kinds.count("exit") == 1 and "broken" not in kinds
    reports = [message["nodes"] for message in messages if message["kind"] == "report"]
    assert reports[0] == {}  # the sign of life comes all the same
    assert reports[1]["actor/0"][3]["cpu"] == 1.0
    said = capfd.readouterr().err
    for what in ("collecting actor/0", "kill of actor/0", "reading what actor/0 uses"):
        refused = f"{what} failed: [Errno 24] Too many open files; trying again"
        assert said.count(refused) == said.count(f"{what} works again") == 1


def test_a_wait_that_is_refused_is_tried_again(daemon, capfd):
    def refuse() -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    daemon.turns = [nothing, refuse, refuse, nothing]
    daemon.run()
    assert daemon.ended == 0
    assert "waiting for events failed: [Errno 12] Cannot allocate memory" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOMEM, "No memory"), "failed 10 times in a row: [Errno 12] No memory"),
        (KeyError("x"), "failed: KeyError: 'x'"),
    ],
)
def test_a_step_that_cannot_be_done_ends_the_daemon_and_its_nodes(daemon, capfd, error, cause):
    def refuse() -> None:
        raise error

    daemon.nodes["actor/0"] = daemon.node
    daemon.node.refusals = {"destroy": 1}  # nor does this keep the rest from being done
    daemon.turns = [refuse] * 10 + [nothing]
    daemon.run()
    assert daemon.ended == ["distrl", "host-daemon"]
    said = capfd.readouterr().err
    assert f"waiting for events {cause}; ending its nodes" in said
    assert "ending actor/0 failed: [Errno 24] Too many open files\n" in said


@pytest.mark.parametrize(
    ("error", "passing"), [(OSError(errno.EADDRINUSE, "in use"), True), (KeyError("x"), False)]
)
def test_what_the_system_refuses_may_pass(daemon, monkeypatch, error, passing):
    def refuse(node: str) -> None:
        raise error

    monkeypatch.setattr(daemon.daemon, "_on_wake", refuse)
    daemon.turns = [lambda: daemon.say("wake", node="actor/0"), nothing]
    (broken,) = [message for message in daemon.run() if message["kind"] == "broken"]
    assert broken["error"] == f"{type(error).__name__}: {error}" and broken["passing"] is passing


def test_a_port_that_is_taken_is_named(daemon, monkeypatch):
    host_program = pytest.importorskip("distrl.launch.hosts.host_program")
    monkeypatch.setattr(host_program, "HostProgram", lambda *arguments: None)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        begin = {"payload": "", "nodes": [], "tunnel_port": port, "credentials": ""}
        daemon.turns = [lambda: daemon.say("begin", **begin), nothing]
        (broken,) = [message for message in daemon.run() if message["kind"] == "broken"]
    assert broken["error"] == (
        f"OSError: cannot listen on port {port} (--tunnel_port): Address already in use"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", needs_ipv6("::1")])
def test_the_other_hosts_may_connect_by_either_version_of_ip(daemon, monkeypatch, host):
    host_program = pytest.importorskip("distrl.launch.hosts.host_program")
    program = types.SimpleNamespace(ports={})
    monkeypatch.setattr(host_program, "HostProgram", lambda *arguments: program)
    reached = []

    def connect() -> None:
        port = daemon.daemon._listener.getsockname()[1]
        with socket.create_connection((host, port), 20.0):
            reached.append(port)

    begin = {"payload": "", "nodes": [], "tunnel_port": 0, "credentials": ""}
    daemon.turns = [lambda: daemon.say("begin", **begin), connect, nothing]
    (ready,) = [message for message in daemon.run() if message["kind"] == "ready"]
    daemon.daemon._listener.close()
    assert reached == [ready["tunnel_port"]]


class FakeTunnel(NoTunnel):
    """Reports what it is told to, one report for each byte of `reports`."""

    def __init__(self) -> None:
        self.reports, self._near = socket.socketpair()
        self.reached: list[tuple[str, int, str]] = []
        self.required: list[Any] = []

    def start(self, *arguments: Any) -> None:
        self.required = arguments[-1]

    def forward_to(self, forwards: Any, required: Any) -> None:
        self.required = sorted(required)

    def report(self, *news: Any) -> None:
        self.reached.append(news)
        self.reports.sendall(b".")

    def fileno(self) -> int:
        return self._near.fileno()

    def news(self) -> tuple[str, int, str]:
        if not self._near.recv(1):
            raise ConnectionError("it has ended")
        return self.reached.pop(0)


@pytest.fixture
def tunnel(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTunnel]:
    """That of a daemon which can be wired."""
    made = FakeTunnel()
    monkeypatch.setattr(daemon_module, "SealedTunnel", lambda: made)
    monkeypatch.setattr(processes, "check_can_fork", lambda: None)  # nothing is forked
    program = types.SimpleNamespace(
        own_nodes=list, wire=lambda stopper: None, forwards=lambda addresses: {}, open_ports={}
    )
    daemon.daemon._program, daemon.daemon._sealed = program, ""
    with socket.socket() as daemon.daemon._listener:
        yield made
    made.reports.close()
    made._near.close()


def test_a_host_is_up_once_it_reaches_those_that_it_must(daemon, tunnel):
    required = [["h1", 7420], ["h3", 7420]]
    reports = [("h1", 7420, "no answer"), ("h3", 7420, ""), ("h2", 7420, ""), ("h1", 7420, "")]
    daemon.turns = [lambda: daemon.say("wire", remote_addresses={}, required=required)]
    for report in [*reports, ("h1", 7420, "no answer"), ("h1", 7420, "")]:
        daemon.turns += [nothing, functools.partial(tunnel.report, *report)]
    messages = daemon.run()
    assert tunnel.required == required
    kinds = [message["kind"] for message in messages if message["kind"] in ("reach", "wired")]
    assert kinds == ["reach"] * 4 + ["wired"] + ["reach"] * 2
    told = [(m["host"], m["port"], m["reason"]) for m in messages if m["kind"] == "reach"]
    assert told[:4] == reports


def test_a_host_that_must_be_reached_is_back_at_another_port(daemon, tunnel):
    def rewire(*required: list[Any]) -> None:
        daemon.say("rewire", remote_addresses={}, required=required)

    at = {name: [name, 7420] for name in ("h1", "h3")}
    daemon.turns = [lambda: daemon.say("wire", remote_addresses={}, required=list(at.values()))]
    daemon.turns += [nothing, functools.partial(tunnel.report, "h3", 7420, ""), nothing]
    daemon.turns += [functools.partial(rewire, ["h1", 7421], at["h3"]), nothing]
    daemon.turns += [functools.partial(tunnel.report, "h1", 7421, ""), nothing]
    daemon.turns += [functools.partial(rewire, ["h1", 7422], at["h3"]), nothing]
    kinds = [message["kind"] for message in daemon.run()]
    assert [kind for kind in kinds if kind in ("reach", "wired")] == ["reach", "reach", "wired"]
    assert tunnel.required == [("h1", 7422)]


def test_a_host_that_must_be_reached_no_more_is_not_waited_for(daemon, tunnel):
    daemon.turns = [lambda: daemon.say("wire", remote_addresses={}, required=[["h1", 7420]])]
    daemon.turns += [nothing, lambda: daemon.say("rewire", remote_addresses={}, required=[])]
    assert "wired" in [message["kind"] for message in daemon.run()]


def test_one_that_must_reach_no_other_is_up_at_once(daemon, tunnel, capfd):
    daemon.turns = [lambda: daemon.say("wire", remote_addresses={}, required=[]), nothing]
    daemon.turns += [tunnel.reports.close, nothing]
    assert "wired" in [message["kind"] for message in daemon.run()]
    assert "its tunnel to the other hosts has ended; ending" in capfd.readouterr().err
