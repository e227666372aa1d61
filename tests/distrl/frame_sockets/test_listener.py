"""What the operating system refuses a server of frames costs no client after it."""

import threading

import pytest

from distrl.frame_sockets import frames, listener
from distrl.frame_sockets.calls import FrameCallClient, FrameCallServer

KEY = "key"


@pytest.fixture
def address(tmp_path, monkeypatch):
    """The address of a server that lets one unauthenticated client connect at a time."""
    monkeypatch.setattr(listener, "_UNAUTHENTICATED", 1)
    monkeypatch.setattr(listener, "_RETRY_S", 0.01)
    where = f"unix:{tmp_path}/server"
    answers = {("call",): (("ok",), ())}
    server = FrameCallServer(lambda call, data: answers.get(call), 10, where, KEY, "the test")
    yield where
    server.close()


def call(address):
    client = FrameCallClient("the test", 10, address, KEY, 20.0, threading.Event())
    try:
        return client.call(("call",))[0]
    finally:
        client.close()


def test_a_thread(address, monkeypatch):
    start, refused = threading.Thread.start, []

    def refuse(thread):
        if "serve a client" in thread.name and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert call(address) == ("ok",) and len(refused) == 3


def test_an_option_of_a_connection(address, monkeypatch):
    refused = []

    class Refused(frames.FrameSocket):
        def __init__(self, sock):
            if threading.current_thread().name.startswith("serve") and len(refused) < 3:
                refused.append(sock)
                raise OSError("Invalid argument")
            super().__init__(sock)

    monkeypatch.setattr(frames, "FrameSocket", Refused)
    assert call(address) == ("ok",) and len(refused) == 3
