"""A relay of parameters fetches each version once, for all readers."""

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from distrl.shared_memory.board import Board
from distrl.shared_memory.process import Process
from distrl.shared_memory.published import PublishedVersions, read_version, shared_memory_domain
from distrl.variables import packed
from distrl.variables.relay import VariableRelay

DOMAIN = shared_memory_domain()


class Service:
    def __init__(self):
        self.version = 0
        self.sent = []

    def get_variables(self, newer_than):
        if newer_than == self.version:
            return None
        self.sent.append(self.version)
        return self.version, bytes([self.version])


def test_each_version_is_fetched_once():
    service = Service()
    relay = VariableRelay(service, interval=0.0)
    held = [-1] * 16
    for version in range(5):
        service.version = version
        for reader in range(16):
            answer = relay.get_variables(held[reader])
            assert answer == (version, bytes([version]))
            held[reader] = version
            assert relay.get_variables(version) is None
    assert service.sent == list(range(5)) and relay.fetched == 5


def test_concurrent_readers_share_a_call():
    service, answer_now = Service(), threading.Event()
    get_variables = service.get_variables

    def get_late(newer_than):
        assert answer_now.wait(30.0)
        return get_variables(newer_than)

    service.get_variables = get_late
    relay = VariableRelay(service, interval=60.0)
    with ThreadPoolExecutor(8) as readers:
        calls = [readers.submit(relay.get_variables, -1) for _ in range(8)]
        assert not wait(calls, 0.3).done  # all have called by now
        answer_now.set()
        assert [each.result(30.0) for each in calls] == [(0, b"\0")] * 8
    assert service.sent == [0]
    service.version = 1
    assert relay.get_variables(-1) == (0, b"\0")  # within the interval
    assert relay.get_variables(0) is None


def test_a_learner_that_resumed_from_an_older_version_is_followed():
    service = Service()
    service.version = 7
    relay = VariableRelay(service, interval=0.0)
    assert relay.get_variables(-1) == (7, b"\7")
    service.version = 3  # it has resumed from a checkpoint
    assert relay.get_variables(7) == (3, b"\3")


def test_readers_on_its_host_have_a_board_that_is_kept_up_to_date():
    service = Service()
    name = f"test-relay-{os.getpid()}"
    make_board = functools.partial(Board.create, name, Process.this())
    relay = VariableRelay(service, 0.0, make_board=make_board)
    relay.refresh()
    assert service.sent == []  # nobody reads
    version, path = relay.get_variables(-1, DOMAIN)
    board = Board.open(path)
    try:
        assert (version, board.read(-1), relay.get_variables(0, DOMAIN)) == (0, (0, b"\0"), None)
        service.version = 1
        relay.refresh()
        assert board.read(0) == (1, b"\1") and board.read(1) is None
        assert relay.get_variables(0, "elsewhere") == (1, b"\1")
    finally:
        relay.close()
    assert board.is_closed and not os.path.exists(path)
    assert relay.get_variables(0, DOMAIN) == (1, b"\1")


@pytest.fixture
def relay_of_files(monkeypatch):
    """A relay whose parameters, of one byte, are large, and its service."""
    monkeypatch.setattr(packed, "_LEAST_FILE", 1)
    service = Service()
    files = PublishedVersions(f"test-relay-{os.getpid()}", Process.this())
    relay = VariableRelay(service, 0.0, files)
    yield relay, service
    relay.close()


def test_readers_on_its_host_map_the_same_file(relay_of_files):
    relay, service = relay_of_files
    for version in range(3):
        service.version = version
        (number, path), again = relay.get_variables(-1, DOMAIN), relay.get_variables(-1, DOMAIN)
        assert again == (version, path) and number == version
        assert read_version(path).tobytes() == bytes([version])
        assert relay.get_variables(-1, "elsewhere") == (version, bytes([version]))
        assert relay.get_variables(version, DOMAIN) is None
    assert service.sent == [0, 1, 2]
    relay.close()
    assert not os.path.exists(path)
    assert relay.get_variables(-1, DOMAIN) == (2, b"\2")
    assert service.sent == [0, 1, 2]  # it may be gone


def test_a_resumed_learner_s_versions_take_the_place_of_those_before(relay_of_files):
    relay, service = relay_of_files
    for version in (6, 7):
        service.version = version
        relay.get_variables(-1)
    service.version = 6
    relay.get_variables(7)
    service.version, service.get_variables = 7, lambda newer_than: (7, b"other")
    assert read_version(relay.get_variables(6, DOMAIN)[1]).tobytes() == b"other"
