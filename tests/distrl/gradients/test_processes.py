"""A hundred updates with workers in processes, one of which is killed, are those of one learner."""

import functools
import os
import signal
import socket

import jax
import numpy as np
import pytest

from distrl.agents.impala import IMPALAConfig
from distrl.gradients.service import GradientService
from distrl.gradients.team import GradientTeam
from distrl.gradients.update import SplitUpdate
from distrl.learner import Learner
from distrl.types import Sample
from tests.distrl.learner_group.test_devices import (
    DISCRETE,
    LENGTH,
    SMALL,
    Prioritized,
    make_batch,
)
from tests.support.gradient_workers import share_gradients
from tests.support.nodes import new_client, new_server

AGENT_CONFIG, BATCH = IMPALAConfig(SMALL), 6
UPDATES, KILLED_AT = 100, 40


def serve(port, parent):
    """A worker's process."""
    agent = AGENT_CONFIG.make(DISCRETE)
    service = GradientService(lambda task: share_gradients(agent, LENGTH, BATCH))
    server = new_server(port, prepare=service.prepare, compute=service.compute)
    service.run(lambda: os.getppid() != parent, lambda: None)
    del server  # it served until here


class Process:
    """A `WorkerConnection` to a process that can be killed and started again."""

    def __init__(self, index, start):
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        self.name = f"gradient_worker/{index}"
        self._client = new_client(port, timeout=60.0)
        self._start = functools.partial(start, serve, port, os.getpid())
        self._process, self._lives = self._start(), 0

    def prepare(self, request):
        return self._client.futures.prepare(request)

    def compute(self, request):
        return self._client.futures.compute(request)

    @property
    def life(self):
        return self._lives if self._process.poll() is None else None

    def kill(self):
        self._process.send_signal(signal.SIGKILL)

    def restart(self):
        self._process.wait(10.0)
        self._process, self._lives = self._start(), self._lives + 1


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_hundred_updates_are_those_of_one_learner(elsewhere):
    agent = AGENT_CONFIG.make(DISCRETE)
    batches = [make_batch(agent, seed, BATCH) for seed in range(10)]
    samples = [Sample(batch, np.arange(BATCH, dtype=np.uint64)) for batch in batches]
    gradients = share_gradients(agent, LENGTH, BATCH)
    workers = [Process(index, elsewhere) for index in range(4)]

    def learn(count):
        split_update = team = None
        if count:
            team = GradientTeam(
                gradients,
                f"task of {count}",
                workers[:count],
                range(count),
                timeout=30.0,
                start_timeout=120.0,
            )
            split_update = SplitUpdate(agent, team)
        learner = Learner(agent, Prioritized(), seed=3, split_update=split_update)
        for index in range(UPDATES):
            if count > 1 and index == KILLED_AT:
                workers[0].kill()
            learner.update(samples[index % len(samples)])
        params = jax.tree.map(np.asarray, learner.state().params)
        if team is not None:
            team.close()
        return params, team

    want, _ = learn(0)
    for count in (1, 2, 4):
        got, team = learn(count)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
        assert team.local == 0
        if count > 1:
            assert team.lost <= 1  # it may have died between two updates
            assert team.report()["gradient_workers_ready"] == count - 1
            workers[0].restart()
