"""Calls of a server that answers too late, or never."""

import threading
from types import SimpleNamespace

import pytest

from distrl.errors import ServerSilent, Stopped
from distrl.replay.reverb.calls import ServerCalls


@pytest.fixture
def server():
    return ServerCalls(SimpleNamespace(server_address="h1:7"), "table")


def late():
    raise RuntimeError("Deadline Exceeded")


def test_a_server_that_does_not_answer_is_silent(server):
    answered = threading.Event()
    for call in (late, answered.wait):  # with a deadline of its own, and without
        said = "^a removal of table 'table' at h1:7: the server did not answer in -0.9 s$"
        with pytest.raises(ServerSilent, match=said):
            server.call(call, "a removal", None, -0.9)
    answered.set()


def test_the_stop_of_the_program_ends_a_call(server):
    answered, stop = threading.Event(), threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        server.call(answered.wait, "a removal", stop, 600.0)
    answered.set()
