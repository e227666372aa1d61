"""What a client of servers' tables can still sample."""

import pytest

from distrl.replay.remote import supply
from distrl.replay.remote.supply import Supply
from distrl.replay.table.info import TableInfo


def queue(inserts, samples):
    return TableInfo("q", inserts - samples, 100, inserts, samples)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(supply.time, "monotonic", lambda: now[0])
    return now


def test_a_batch_that_does_not_come_is_promised_again_after_more_inserts(clock):
    """As of two servers with 8 and 4 unrolls, each of which gives 8 at a time."""
    made = Supply(queue(0, 0))
    assert not made.has(12, queue(11, 0))
    assert made.has(12, queue(12, 0))
    clock[0] += 11.0
    assert not made.has(12, queue(12, 0))
    assert not made.has(12, queue(12, 0))  # nothing more has come
    assert made.has(12, queue(24, 0))
    clock[0] += 9.0
    assert made.has(12, queue(24, 0))
    made.take(12)
    assert made.has(12, queue(24, 12))
    made.take(12)
    assert not made.has(12, queue(24, 24))


def test_a_server_that_counts_from_its_checkpoint_again_has_what_is_there(clock):
    made = Supply(queue(0, 0))
    for _ in range(10):
        made.take(12)
    assert made.has(12, queue(132, 120))
    assert not made.has(12, queue(4, 0))  # of a new server
    assert made.has(12, queue(12, 0))
    made.take(12)
    assert not made.has(12, queue(12, 12))
    assert made.has(12, queue(24, 12))
