"""Any limits are refused initially, or run without stalling and within their bounds."""

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from distrl.errors import ConfigError, Stopped
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable

T = 2
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a stall costs seconds: no shrinking
STALL = 5.0  # seconds without an insert or a sample


class Users:
    """Writers and readers of one table, each in a thread with its own client."""

    def __init__(self, make_streams, table, config, batch, check_every):
        self._kind = LocalReplayBuffer if isinstance(table, LocalTable) else SharedReplayBuffer
        self._arguments = (table, make_streams.struct, config, batch)
        self._make_streams = make_streams
        self._check_every = check_every
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self.table = table

    def _start(self, run):
        client = self._kind(*self._arguments, stop=self._over)

        def guarded():
            try:
                run(client)
            except Stopped:
                pass
            except BaseException as error:
                self._failed.append(error)
            finally:
                client.close()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def run(self, writers, readers, streams, unrolls):
        """Runs until each stream of each writer has inserted `unrolls`."""

        def write(first):
            ids = np.arange(first, first + streams, dtype=np.int32)
            return lambda client: self._make_streams().add_to(client, ids, unrolls * T + 1)

        def read(client):
            number = 0
            while not self._over.is_set():
                sample = client.sample(None)
                if number % self._check_every == 0:
                    self._make_streams.check(sample.trajectory)
                number += 1

        writing = [self._start(write(streams * i)) for i in range(writers)]
        reading = [self._start(read) for _ in range(readers)]
        try:
            self._watch(writing)
        finally:
            self._over.set()
            for thread in writing + reading:
                thread.join(20.0)
        assert not self._failed, self._failed
        assert not any(thread.is_alive() for thread in writing + reading)

    def _watch(self, writing):
        before, since = (0, 0), time.monotonic()
        while any(thread.is_alive() for thread in writing):
            writing[0].join(0.05)
            for thread in writing:
                thread.join(0.0)
            info = self.table.info()
            now = (info.inserts, info.samples)
            if now != before:
                before, since = now, time.monotonic()
            assert not self._failed, self._failed
            assert time.monotonic() - since < STALL, info


class Watch:
    """Checks each insert and sample of a local table."""

    def __init__(self, table):
        self.worst = np.inf
        counts, insert, sample = table._store.counts, table._store.insert, table._store.sample

        def watched_insert(block):
            limits = counts.limits
            if limits and counts.size + block.size > limits.min_size_to_sample:
                error = (counts.inserts + block.size) * limits.samples_per_insert - counts.samples
                self.worst = min(self.worst, limits.max_diff - error)
            insert(block)

        def watched_sample(count):
            batch = sample(count)
            if counts.limits:
                self.worst = min(self.worst, counts.error - counts.limits.min_diff)
            return batch

        table._store.insert, table._store.sample = watched_insert, watched_sample


RATIOS = st.sampled_from([None, 0.1, 0.25, 0.5, 1.0, 1.5, 3.0, 8.0])


@st.composite
def cases(draw):
    """Draws a configuration with a batch size and users; None if it is refused."""
    batch = draw(st.integers(1, 6), "batch")
    users = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5)))
    kind = draw(st.sampled_from(["queue", "uniform", "prioritized"]))
    size, ratio = draw(st.integers(1, 12)), draw(RATIOS)
    try:
        if kind == "queue":
            config = ReplayConfig("queue", T, max_size=size)
        else:
            min_size = draw(st.integers(1, size))
            error = ratio and draw(st.one_of(st.none(), st.floats(0.5, 20.0)))
            config = ReplayConfig(kind, T, size, min_size, ratio, error)
        config.check(batch)
    except ConfigError:
        return None
    return config, batch, users


def run_case(make_streams, backend, case, inserts, check_every):
    """Runs a case on "local" or "shared"."""
    if case is None:  # refused
        return
    config, batch, (writers, readers, streams) = case
    struct = make_streams.struct
    unrolls = -(-inserts // (writers * streams))
    if backend == "local":
        table = LocalTable(struct, config, batch, seed=0)
        watch = Watch(table)
        Users(make_streams, table, config, batch, check_every).run(
            writers, readers, streams, unrolls
        )
        worst = watch.worst
    else:
        table = SharedTable.create(struct, config, batch, f"limits-{os.getpid()}", seed=0)
        try:
            Users(make_streams, table, config, batch, check_every).run(
                writers, readers, streams, unrolls
            )
            worst = min(table.observed_margins())
        finally:
            table.close()
    assert table.info().inserts == unrolls * writers * streams
    assert worst >= -1e-6


@pytest.mark.full
@pytest.mark.parametrize("backend", ["local", "shared"])
@settings(max_examples=12, deadline=None, phases=PHASES)
@given(case=cases())
def test_any_limits_are_refused_or_run(make_streams, backend, case):
    run_case(make_streams, backend, case, inserts=400, check_every=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["local", "shared"])
@settings(max_examples=6, deadline=None, phases=PHASES)
@given(case=cases().filter(bool))
def test_any_limits_run_for_long(make_streams, backend, case):
    run_case(make_streams, backend, case, inserts=100_000, check_every=200)
