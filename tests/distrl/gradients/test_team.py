"""A learner with gradient workers learns what it learns alone, whatever becomes of the workers."""

import threading

import jax
import numpy as np
import pytest

from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.gradients.member import deadline
from distrl.gradients.team import GradientTeam
from distrl.gradients.update import SplitUpdate
from distrl.learner import Learner
from distrl.types import Sample
from tests.distrl.learner_group.test_devices import DISCRETE, LENGTH, Prioritized, make_batch
from tests.support.gradient_workers import share_gradients, thread_workers
from tests.support.waiting import until

BATCH = 5  # does not split evenly
AGENT = DQNConfig(NetworkConfig(hidden_sizes=(8,)), target_period=3).make(DISCRETE)
BATCHES = [make_batch(AGENT, seed, BATCH) for seed in range(4)]


def make_learner(workers, members=None, timeout=30.0, printer=lambda line: None):
    gradients = workers[0]._gradients if workers else share_gradients(AGENT, LENGTH, BATCH)
    team = GradientTeam(
        gradients,
        "task",
        workers,
        range(len(workers)) if members is None else members,
        timeout=timeout,
        start_timeout=60.0,
        printer=printer,
    )
    update = SplitUpdate(AGENT, team)
    return Learner(AGENT, Prioritized(), seed=3, split_update=update), team


def learn(learner, updates, first=0):
    for i in range(first, first + updates):
        keys = np.arange(BATCH, dtype=np.uint64) + i
        learner.update(Sample(BATCHES[i % len(BATCHES)], keys))


def check_same(learner, updates):
    alone = Learner(AGENT, Prioritized(), seed=3)
    learn(alone, updates)
    for got, want in zip(
        jax.tree.leaves((learner.state()[:3], learner._replay.sent)),
        jax.tree.leaves((alone.state()[:3], alone._replay.sent)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_workers_that_die_fail_and_dawdle_change_nothing():
    lines = []
    with thread_workers(AGENT, LENGTH, BATCH, 2) as workers:
        first, second = workers
        learner, team = make_learner(workers, printer=lines.append)
        learn(learner, 3)
        assert (first.computed, second.computed) == (3, 3)

        first.dying = True  # in the middle of a share
        learn(learner, 1, first=3)
        assert (team.lost, team.late, team.local) == (1, 0, 0)  # the other has computed two
        assert second.computed == 5
        first.restart(life=1)
        while team.report()["gradient_workers_ready"] != 2:
            learn(learner, 1, first=learner.version)
        before = first.computed
        learn(learner, 2, first=learner.version)
        assert first.computed == before + 2  # it is back

        second.failing = True
        learn(learner, 1, first=learner.version)
        assert team.lost == 2
        second.failing = False
        while team.report()["gradient_workers_ready"] != 2:
            learn(learner, 1, first=learner.version)

        second.held.clear()  # its share is late, and computed by the other
        learn(learner, 1, first=learner.version)
        assert (team.lost, team.late) == (2, 1)
        second.held.set()
        learn(learner, 4, first=learner.version)
        before = second.computed
        learn(learner, 1, first=learner.version)
        assert second.computed == before + 1
        check_same(learner, learner.version)
    assert [line.split(":")[0] for line in lines[:2]] == [
        "gradient_worker/0 has ended",
        "gradient_worker/1 failed",
    ]
    assert "gradient_worker/1 has not answered within" in lines[2]


@pytest.mark.full
def test_workers_of_another_machine_get_only_what_has_changed():
    with thread_workers(AGENT, LENGTH, BATCH, 1, remote=True) as workers:
        learner, _ = make_learner(workers)
        learn(learner, 6)
        check_same(learner, 6)
        first, *others = workers[0].sizes
        network = sum(leaf.nbytes for leaf in jax.tree.leaves(learner.state().params["network"]))
        # At first the target network too; later only the network, and after three updates both.
        assert others[0] < first - 0.8 * network
        assert others[0] == pytest.approx(others[1], abs=50)
        assert others[2] > others[1] + 0.8 * network


@pytest.mark.full
def test_a_team_that_loses_all_its_workers_computes_itself():
    with thread_workers(AGENT, LENGTH, BATCH, 2) as workers:
        learner, team = make_learner(workers)
        learn(learner, 2)
        team.assign([1])
        learn(learner, 4, first=2)
        assert team.report()["gradient_workers"] == 1
        workers[0].life = workers[1].life = None
        learn(learner, 1, first=6)
        team.assign([])
        learn(learner, 2, first=7)
        assert team.local >= 3
        check_same(learner, 9)


def test_workers_compile_other_shares_one_at_a_time_while_the_others_compute():
    asked, go_on = [], threading.Event()

    def slow(worker):
        prepare = worker.prepare

        def prepared(request):
            asked.append(worker.name)
            return worker._calls.submit(lambda: go_on.wait(60) and prepare(request).result())

        worker.prepare = prepared

    with thread_workers(AGENT, LENGTH, BATCH, 3) as workers:
        learner, team = make_learner(workers)
        learn(learner, 2)
        for worker in workers:
            slow(worker)
        team.assign([0, 1])
        before = workers[1].computed
        learn(learner, 3, first=2)
        assert set(asked) == {"gradient_worker/0"}
        assert workers[1].computed == before + 9  # the shares of three
        assert (team.late, team.local) == (0, 0)
        go_on.set()

        def learn_one():
            learn(learner, 1, first=learner.version)
            return team._count == 2

        until(learn_one, "shares of two", 60.0)
        check_same(learner, learner.version)


def test_a_share_is_late_after_five_usual_times():
    assert deadline([], 30.0) == 30.0
    assert deadline([0.01, 0.02, 5.0], 30.0) == 1.0
    assert deadline([2.0, 3.0, 4.0], 30.0) == 15.0
    assert deadline([20.0], 30.0) == 30.0
