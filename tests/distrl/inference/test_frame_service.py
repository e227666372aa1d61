"""An inference service at a socket: lost connections, silence, strangers and changed bytes."""

import os
import socket
import threading
import time

import numpy as np
import pytest

from distrl.errors import DeadlineExceeded, PeerError, Stopped
from distrl.frame_sockets import frames, greetings
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer, RemoteInferencer
from distrl.runtime.messages import MessageError
from distrl.types import StepType
from tests.support.inference import KEY, frame_client, frame_server, make, timestep
from tests.support.waiting import in_thread

ROWS = 2
STREAMS = np.arange(ROWS, dtype=np.int32)


@pytest.fixture
def served():
    """A server's address, its messages, and what answers."""
    agent, inferencer = make(served=True)
    messages = InferenceMessages(agent)
    server = InferenceServer(inferencer, messages, 16, 20.0)
    with frame_server(server, messages, ROWS) as address:
        yield address, messages, server


def test_a_lost_connection_fails_its_call_and_the_next_one_connects(served):
    address, messages, server = served
    client = frame_client(address, messages, ROWS)
    remote = RemoteInferencer(client, messages)
    remote.inference(STREAMS, timestep(ROWS, StepType.FIRST))
    client._calls._sock.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(PeerError, match="the inferencer at unix:"):
        remote.inference(STREAMS, timestep(ROWS))
    assert remote.inference(STREAMS, timestep(ROWS)).extras["seen"].tolist() == [1, 1]
    assert server.requests == 2
    client.close()


def test_the_first_call_waits_for_the_server(served, tmp_path):
    _, messages, server = served
    address = f"unix:{tmp_path}/later"
    remote = RemoteInferencer(frame_client(address, messages, ROWS), messages)
    answers = []
    caller, raised = in_thread(
        lambda: answers.append(remote.inference(STREAMS, timestep(ROWS, StepType.FIRST)))
    )
    from distrl.inference.frame_service import FrameInferenceServer

    later = FrameInferenceServer(server, messages, ROWS, address, KEY)
    caller.join(20.0)
    later.close()
    assert len(answers) == 1 and not raised


def test_silence_has_a_deadline_and_a_stop_ends_a_wait(served, tmp_path):
    _, messages, _ = served
    address = f"unix:{tmp_path}/silent"
    listener = frames.listen(address)
    client = frame_client(address, messages, ROWS, timeout=0.3)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match=r"has not answered in 0\.3 s"):
            client.request_version(3)
    stop = threading.Event()
    stop.set()
    began = time.monotonic()
    with pytest.raises(Stopped):
        frame_client(address, messages, ROWS, timeout=60.0, stop=stop).request_version(3)
    assert time.monotonic() - began < 30.0
    listener.close()


def test_strangers_and_changed_frames_reach_nothing(served):
    address, messages, _ = served
    with pytest.raises((PeerError, DeadlineExceeded)):
        frame_client(address, messages, ROWS, timeout=1.0, key="another key").request_version(1)
    rng = np.random.default_rng(0)
    good = messages.pack_request(STREAMS, timestep(ROWS), 0, True)
    for _ in range(100):
        data = np.frombuffer(good, np.uint8).copy()
        data[rng.integers(16, size=3)] = rng.integers(256, size=3)  # its header
        message = [
            ("inference",),
            ("inference", 1),
            ("request_version", "x"),
            ("request_version",),
            (),
            7,
        ][rng.integers(6)]
        greeting = greetings.greeting(KEY, os.urandom(greetings.ID_BYTES), "")
        connection = frames.connect(address, greeting, 5.0)
        connection.send(message, [data[: rng.integers(1, len(data) + 1)]])
        try:
            answer, _ = connection.receive(10_000)
            assert answer[0] in ("ok", "error")
        except (OSError, MessageError):  # cut off
            assert message != ("inference",)
        connection.close()
    client = frame_client(address, messages, ROWS)
    RemoteInferencer(client, messages).inference(STREAMS, timestep(ROWS, StepType.FIRST))
    client.close()


def test_requests_larger_than_a_caller_may_send_end_the_connection(served):
    address, messages, server = served
    large = frame_client(address, messages, ROWS)
    with pytest.raises(PeerError):
        RemoteInferencer(large, messages).inference(
            np.arange(ROWS + 1, dtype=np.int32), timestep(ROWS + 1)
        )
    assert server.requests == 0
