"""What a client of an inference service in shared memory learns about its service."""

import threading
import time

import pytest

from distrl.errors import PeerError, Stopped
from distrl.programs import inference_clients
from distrl.programs.inference_clients import SlotService
from distrl.programs.program import NodeHandle
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import HeartbeatTable, install_heartbeat_lookup
from distrl.shared_memory.process import Process


class File:
    """A file of slots without slots."""

    server = None


@pytest.fixture
def stop(monkeypatch):
    event = threading.Event()
    monkeypatch.setattr(node_context, "stop_event", lambda: event)
    return event


@pytest.fixture
def heartbeat():
    table = HeartbeatTable(["actor/0", "inferencer/0"])
    own = table.of("actor/0")
    install_heartbeat_lookup(lambda: (own, True))
    yield table.of("inferencer/0")
    install_heartbeat_lookup(lambda: None)


def service(timeout=0.2):
    return SlotService(NodeHandle("inferencer/0", None), File(), timeout)


def test_a_wait_ends_with_the_program(stop, heartbeat):
    heartbeat.begin(0)
    asked = service()
    asked.check("inference", time.monotonic())
    stop.set()
    with pytest.raises(Stopped, match="inference: the program stops"):
        asked.check("inference", time.monotonic())


def test_a_wait_for_a_service_that_is_up_has_a_deadline(stop, heartbeat):
    heartbeat.begin(0)
    asked = service()
    asked.check("inference", time.monotonic())
    with pytest.raises(PeerError, match=r"inferencer/0 has not answered in 0\.2 s"):
        asked.check("inference", time.monotonic() - 0.3)


def test_a_restart_is_waited_for(stop, heartbeat, monkeypatch):
    monkeypatch.setattr(inference_clients, "RESTART_TIMEOUT_S", 50.0)
    heartbeat.begin(0)
    asked, began = service(), time.monotonic() - 0.1
    asked.check("inference", began)
    heartbeat.end(comes_back=True)
    asked.check("inference", began - 10.0)
    heartbeat.begin(1)
    asked.check("inference", began - 20.0)  # the new one has all the time
    assert asked.life == 1
    heartbeat.end(comes_back=True)
    asked.check("inference", began)
    asked._since -= 60.0
    with pytest.raises(PeerError, match=r"inferencer/0 has not been restarted in 50 s"):
        asked.check("inference", began - 60.0)
    heartbeat.end(comes_back=False)
    with pytest.raises(PeerError, match=r"inferencer/0 has ended"):
        asked.check("inference", began)


def test_without_our_launcher_the_process_is_looked_at(stop):
    asked = service()
    asked.check("inference", time.monotonic())
    asked._file.server = Process.this()
    asked.check("inference", time.monotonic())
    asked._file.server = Process(2**22 + 1, 1)
    with pytest.raises(PeerError, match=r"inferencer/0 has ended"):
        asked.check("inference", time.monotonic())
