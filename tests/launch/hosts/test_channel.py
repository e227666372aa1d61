"""The channel between a launcher and a host daemon, and the comparison of their code."""

import json
import os
import selectors
import socket
import threading
import time
from importlib import metadata

import pytest

from distrl.launch.hosts import channel
from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.code_identity import difference, identity
from distrl.runtime.provenance import SUITES


class Ends:
    """A `JsonLineChannel`, and the other end as a socket."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.other, near = socket.socketpair()
        self.other.settimeout(5.0)
        self.messages, self.closed = [], []
        reader = os.dup(near.fileno())
        self.channel = JsonLineChannel(
            self.selector, reader, near.detach(), self.messages.append, self.closed.append
        )

    def run_until(self, condition):
        deadline = time.monotonic() + 5.0
        while not condition():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.1):
                key.data()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.channel.close()
    made.other.close()


def test_messages_arrive_complete_however_they_are_split(ends):
    for byte in b'{"kind": "a", "n": 1}\n{"kind": "b"}\n':
        ends.other.sendall(bytes([byte]))
    ends.run_until(lambda: len(ends.messages) == 2)
    assert ends.messages == [{"kind": "a", "n": 1}, {"kind": "b"}]


def test_signs_of_life_are_sent_while_the_loop_does_not_run(ends, monkeypatch):
    monkeypatch.setattr(channel, "ALIVE_S", 0.01)
    received = b""
    with ends.channel.kept_alive():
        while received.count(b"\n") < 2:
            received += ends.other.recv(1 << 16)
        ends.channel.send("big", data="x" * 1_000_000)  # a part, and the thread sends the rest
        while b"}" not in received[-2:] or b"xxx" not in received:
            received += ends.other.recv(1 << 16)
    ends.channel.send("last")
    ends.run_until(lambda: ends.channel.unsent() == 0)
    ends.channel.close()
    while data := ends.other.recv(1 << 16):
        received += data
    kinds = [json.loads(line)["kind"] for line in received.splitlines()]
    assert kinds[:2] == ["alive"] * 2 and kinds[-1] == "last"
    assert set(kinds) == {"alive", "big", "last"} and kinds.count("big") == 1


def test_a_connection_that_breaks_under_signs_of_life_is_seen_by_the_loop(ends, monkeypatch):
    monkeypatch.setattr(channel, "ALIVE_S", 0.01)
    with ends.channel.kept_alive():
        ends.other.close()
        deadline = time.monotonic() + 5.0
        while any(thread.name == "alive" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    ends.run_until(lambda: ends.closed)


def test_more_than_a_pipe_holds_is_sent_when_it_is_read(ends):
    ends.channel.send("big", data="x" * 3_000_000)
    assert ends.channel.unsent() > 0
    got = 0
    while got < 3_000_000:
        for key, _ in ends.selector.select(0.0):
            key.data()
        got += len(ends.other.recv(1 << 20))
    assert ends.channel.unsent() == 0 and not ends.closed


@pytest.mark.parametrize("sent", [b"hello\n", b"[1]\n", b"{}\n", b"\xff\n", b"[" * 200_000 + b"\n"])
def test_a_malformed_message_closes_it(ends, sent):
    ends.other.sendall(sent)
    ends.run_until(lambda: ends.closed)
    assert "malformed message" in ends.closed[0] and not ends.messages


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_endless_line_closes_it(ends, end):
    ends.channel.limit = 1000
    ends.other.sendall(b"x" * 2000 + end)
    ends.run_until(lambda: ends.closed)
    assert ends.closed == ["it sent an endless line"]


def test_the_end_is_reported_once_and_nothing_is_sent_after_it(ends):
    ends.other.close()
    ends.run_until(lambda: ends.closed)
    ends.channel.send("more")
    assert ends.closed == ["the connection was closed"]
    assert not ends.channel.fds()


def test_other_code_and_other_versions_are_named():
    ours = identity()
    assert difference("h2", dict(ours), ours) is None
    assert difference("h2", {**ours, "jax": "0.0.1"}, ours) == (
        f"host h2 has jax 0.0.1; here it is {ours['jax']}: install the same versions on all hosts"
    )
    assert "host h2 has different code of distrl" in str(
        difference("h2", {**ours, "code": "0"}, ours)
    )
    without = {name: version for name, version in ours.items() if name != "numpy"}
    assert "host h2 has numpy none" in str(difference("h2", without, ours))
    # One that the program may not need; a host that lacks what it needs says so itself.
    lacks = {name: version for name, version in ours.items() if name not in SUITES}
    assert difference("h2", lacks, {**ours, "minigrid": "3.0.0"}) is None


def test_an_environment_of_another_version_is_other_code(monkeypatch):
    here = metadata.version

    def there(name: str) -> str:
        return "2.3.7" if name == "mujoco" else here(name)

    ours = {**identity(), "mujoco": "3.1.0"}
    monkeypatch.setattr(metadata, "version", there)
    assert difference("h2", identity(), ours) == (
        "host h2 has mujoco 2.3.7; here it is 3.1.0: install the same versions on all hosts"
    )
    monkeypatch.setattr(metadata, "version", lambda name: "9" if name == "distrl" else here(name))
    assert "distrl" not in identity()  # only its code counts: a checkout need not be installed
