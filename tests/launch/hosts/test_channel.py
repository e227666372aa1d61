"""What a launcher and its agents say to each other, and how they look at each other's code."""

import os
import selectors
import socket
import time

import pytest

from distrl.launch.hosts import channel as lines_module
from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.code_identity import difference, identity


class Ends:
    """A `JsonLineChannel`, and the other end as a socket."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.other, own = socket.socketpair()
        self.other.settimeout(5.0)
        self.taken, self.ended = [], []
        reader = os.dup(own.fileno())
        self.lines = JsonLineChannel(
            self.selector, reader, own.detach(), self.taken.append, self.ended.append
        )

    def turn(self, true):
        deadline = time.monotonic() + 5.0
        while not true():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.1):
                key.data()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.lines.close()
    made.other.close()


def test_messages_come_whole_however_they_are_cut(ends):
    for byte in b'{"kind": "a", "n": 1}\n{"kind": "b"}\n':
        ends.other.sendall(bytes([byte]))
    ends.turn(lambda: len(ends.taken) == 2)
    assert ends.taken == [{"kind": "a", "n": 1}, {"kind": "b"}]


def test_more_than_a_pipe_holds_goes_when_it_is_read(ends):
    ends.lines.send("big", data="x" * 3_000_000)
    assert ends.lines.waiting() > 0
    got = 0
    while got < 3_000_000:
        for key, _ in ends.selector.select(0.0):
            key.data()
        got += len(ends.other.recv(1 << 20))
    assert ends.lines.waiting() == 0 and not ends.ended


@pytest.mark.parametrize("sent", [b"hello\n", b"[1]\n", b"{}\n", b"\xff\n"])
def test_what_is_no_message_ends_it(ends, sent):
    ends.other.sendall(sent)
    ends.turn(lambda: ends.ended)
    assert "no message" in ends.ended[0] and not ends.taken


def test_a_line_without_end_ends_it(ends, monkeypatch):
    monkeypatch.setattr(lines_module, "LIMIT", 1000)
    ends.other.sendall(b"x" * 2000)
    ends.turn(lambda: ends.ended)
    assert ends.ended == ["it sent a line without end"]


def test_the_end_is_told_once_and_nothing_can_be_said_after_it(ends):
    ends.other.close()
    ends.turn(lambda: ends.ended)
    ends.lines.send("more")
    assert ends.ended == ["the connection was closed"]
    assert not ends.lines.fds()


def test_other_code_and_other_versions_are_named():
    ours = identity()
    assert difference("h2", dict(ours), ours) is None
    assert difference("h2", {**ours, "jax": "0.0.1"}, ours) == (
        f"host h2 has jax 0.0.1; here it is {ours['jax']}: give all hosts the same versions"
    )
    assert "host h2 has other code of distrl" in str(difference("h2", {**ours, "code": "0"}, ours))
    without = {name: version for name, version in ours.items() if name != "numpy"}
    assert "host h2 has numpy none" in str(difference("h2", without, ours))
