"""A node whose environments are slow makes progress from one environment's step to the next."""

import contextlib
import time

import pytest

from distrl.envs import PythonEnvironment
from distrl.envs.pool_config import PoolConfig
from distrl.runtime.heartbeat import HeartbeatTable, install_heartbeat_lookup
from distrl.testing import CountingEnvironment

NUM_ENVS = 5
SEEDS = range(NUM_ENVS)


@pytest.fixture
def heartbeat():
    row = HeartbeatTable(["actor/0"]).of("actor/0")
    row.begin(0)
    install_heartbeat_lookup(lambda: (row, True))
    yield row
    install_heartbeat_lookup(lambda: None)


@pytest.mark.parametrize("seconds", [6.0, 0.1])
def test_a_loop(monkeypatch, heartbeat, seconds):
    now, ticks = [1000.0], []

    class Slow(CountingEnvironment):
        def reset(self):
            now[0] += seconds
            return super().reset()

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(type(heartbeat), "tick", lambda self: ticks.append(now[0]))
    config = PoolConfig(kind="loop", step_timeout=float("inf"))
    pool = PythonEnvironment(Slow, pool=config).make_pool(NUM_ENVS, NUM_ENVS, SEEDS)
    began = now[0]
    pool.start()
    assert pool.recv().observation[:, 0].tolist() == list(SEEDS)
    pool.close()
    assert ticks == [began + 6.0 * (k + 1) for k in range(NUM_ENVS) if seconds == 6.0]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_workers(heartbeat, kind):
    ended = []  # when each reset in the pool ended, and before them when it was made

    class WaitsForProgress(CountingEnvironment):
        """Its reset in the pool ends when the node has made progress since the one before."""

        def reset(self):
            if not ended:
                return super().reset()
            deadline = time.monotonic() + 15.0
            while (now := time.monotonic()) - ended[-1] <= (since := heartbeat.at_work()):
                assert now < deadline, f"no progress for {since:.1f} s"
                time.sleep(0.005)
            ended.append(time.monotonic())
            return super().reset()

    heartbeat.tick()
    config = PoolConfig(kind=kind, num_workers=1, step_timeout=20.0)
    environment = PythonEnvironment(WaitsForProgress, pool=config)
    environment.spec()
    ended.append(time.monotonic())
    with contextlib.closing(environment.make_pool(NUM_ENVS, NUM_ENVS, SEEDS)) as pool:
        pool._tick, pool._next_check = 0.05, 0.0
        pool.start()
        assert pool.recv().observation[:, 0].tolist() == list(SEEDS)
