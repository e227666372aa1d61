"""Parameters at a socket: what relays get, lost connections, silence and strangers."""

import contextlib
import os
import socket
import tempfile
import threading

import numpy as np
import pytest

from distrl.errors import DeadlineExceeded, PeerError
from distrl.frame_sockets import frames, greetings
from distrl.runtime.messages import MessageError
from distrl.variables.frames import FrameVariableClient, FrameVariableServer
from distrl.variables.relay import VariableRelay
from tests.support.waiting import in_thread

KEY = "the key of a program"


class Versions:
    """Versions of a task's parameters: as many bytes of the version's number as it says."""

    def __init__(self, nbytes):
        self.version, self.nbytes, self.calls = 0, nbytes, 0

    def get_variables(self, newer_than, task):
        self.calls += 1
        if task != "task":
            raise KeyError(task)
        if newer_than == self.version:
            return None
        return self.version, bytes([self.version]) * self.nbytes


@contextlib.contextmanager
def served(versions):
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/parameters"
        server = FrameVariableServer(versions.get_variables, address, KEY)
        try:
            yield address
        finally:
            server.close()


def client(address, timeout=20.0, key=KEY):
    return FrameVariableClient(address, key, timeout, threading.Event())


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 5_000_001])
def test_each_version_arrives_whole_and_once(nbytes):
    versions = Versions(nbytes)
    with served(versions) as address:
        reader = client(address)
        assert reader.get_variables(-1, "task") == (0, b"\0" * nbytes)
        assert reader.get_variables(0, "task") is None
        versions.version = 7
        assert reader.get_variables(0, "task") == (7, b"\7" * nbytes)
        versions.version = 3  # a learner that has resumed
        assert reader.get_variables(7, "task") == (3, b"\3" * nbytes)
        reader.close()


def test_a_relay_passes_on_what_it_fetches_by_frames():
    versions = Versions(64)
    with served(versions) as address:
        reader = client(address)

        class OfTask:
            def get_variables(self, newer_than):
                return reader.get_variables(newer_than, "task")

        relay = VariableRelay(OfTask(), interval=0.0)
        assert relay.get_variables(-1) == (0, b"\0" * 64)
        versions.version = 1
        assert relay.get_variables(0) == (1, b"\1" * 64)
        assert relay.fetched == 2
        relay.close()
        reader.close()


def test_an_error_and_a_lost_connection_fail_their_call_only():
    versions = Versions(8)
    with served(versions) as address:
        reader = client(address)
        with pytest.raises(PeerError, match="KeyError: 'another'"):
            reader.get_variables(-1, "another")
        reader._calls._sock.sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(PeerError, match="the parameters at unix:"):
            reader.get_variables(-1, "task")
        assert reader.get_variables(-1, "task") == (0, b"\0" * 8)
        reader.close()


def test_silence_has_a_deadline(tmp_path):
    address = f"unix:{tmp_path}/silent"
    listener = frames.listen(address)
    with pytest.raises(DeadlineExceeded, match=r"has not answered in 0\.3 s"):
        client(address, timeout=0.3).get_variables(-1, "task")
    listener.close()


def closes(listener, connections):
    """As a tunnel to a server that does not listen yet: closes so many connections, one by one."""
    for _ in range(connections):
        listener.accept()[0].close()


def test_a_call_waits_for_a_server_behind_a_tunnel_that_accepts_for_it(tmp_path):
    address, versions, answers = f"unix:{tmp_path}/parameters", Versions(8), []
    tunnel = frames.listen(address)
    reader = client(address)
    caller, raised = in_thread(lambda: answers.append(reader.get_variables(-1, "task")))
    closes(tunnel, 3)
    server = FrameVariableServer(versions.get_variables, address, KEY)
    tunnel.close()
    caller.join(20.0)
    assert not raised and answers == [(0, b"\0" * 8)]
    assert versions.calls == 1
    reader.close()
    server.close()


def test_the_wait_behind_a_tunnel_has_a_deadline_that_says_why(tmp_path):
    tunnel = frames.listen(f"unix:{tmp_path}/parameters")
    closing, _ = in_thread(lambda: closes(tunnel, 1))
    with pytest.raises(DeadlineExceeded, match=r"has not answered in 0\.5 s: no server: "):
        client(f"unix:{tmp_path}/parameters", timeout=0.5).get_variables(-1, "task")
    closing.join(20.0)
    tunnel.close()


def test_a_call_that_a_server_may_have_begun_is_not_sent_again():
    calls = []

    def dies(newer_than, task):
        calls.append(newer_than)
        reader._calls._sock.sock.shutdown(socket.SHUT_RDWR)

    with tempfile.TemporaryDirectory() as folder:
        server = FrameVariableServer(dies, f"unix:{folder}/parameters", KEY)
        reader = client(f"unix:{folder}/parameters")
        with pytest.raises(PeerError, match="the other end closed the connection"):
            reader.get_variables(-1, "task")
        assert calls == [-1]
        reader.close()
        server.close()


def test_strangers_and_frames_that_are_no_calls_reach_nothing():
    versions = Versions(8)
    with served(versions) as address:
        with pytest.raises((PeerError, DeadlineExceeded)):
            client(address, timeout=1.0, key="another key").get_variables(-1, "task")
        no_calls = [
            (("get", "x", "task"), 0),
            (("get", 1), 0),
            ((), 0),
            (7, 0),
            (("get", -1, "task"), 1),  # with bytes
        ]
        for message, nbytes in no_calls:
            greeting = greetings.greeting(KEY, os.urandom(greetings.ID_BYTES), "")
            connection = frames.connect(address, greeting, 5.0)
            connection.send(message, [np.zeros(nbytes, np.uint8)])
            with pytest.raises((OSError, MessageError)):
                connection.receive(1000)
            connection.close()
        assert versions.calls == 0
        reader = client(address)
        assert reader.get_variables(-1, "task") == (0, b"\0" * 8)
        reader.close()
