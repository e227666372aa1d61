"""Actors in threads keep a budget together, and the learner uses up what they made."""

import concurrent.futures
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from distrl.agents.structs import extras_struct, state_struct
from distrl.budget import ActingBudget
from distrl.envs import PythonEnvironment
from distrl.errors import PeerError
from distrl.goal import Goal
from distrl.learner import Learner
from distrl.programs.program import NodeHandle
from distrl.programs.running import acting_budget
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.specs import trajectory_struct, zeros
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.types import Inference

STEP = 8  # environments of an actor


class Monitor:
    """The monitor's calls, without a network."""

    def __init__(self, budget: ActingBudget):
        self._budget = budget
        self.finish = budget.finish

    def lease(self, task, actor, life, counts, step, wanted):
        return list(self._budget.lease(actor, life, *counts, step, wanted))


class StubActor:
    """Counts what an actor would have done."""

    acted = episodes = 0

    def step(self, rng: random.Random) -> None:
        ended = rng.random() < 0.3
        self.acted += STEP - rng.randint(0, 2)
        self.episodes += rng.randint(0, STEP) if ended else 0


@pytest.mark.parametrize("goal", [Goal(max_env_steps=20_000), Goal(max_episodes=2_000)], ids=str)
def test_actors_share_a_budget(monkeypatch, goal):
    monkeypatch.setattr(acting_budget, "Peer", lambda monitor: monitor)
    monkeypatch.setattr(acting_budget, "_ASK_S", 0.001)
    budget = ActingBudget(goal, 3)
    actors = [StubActor() for _ in range(3)]

    def act(index: int) -> None:
        rng, stop = random.Random(index), threading.Event()
        lease = acting_budget.ActorLease(
            Monitor(budget), "task", f"actor/{index}", 0, STEP, 0, stop
        )
        while lease.allows(actors[index]):
            actors[index].step(rng)
            if index == 0:
                stop.wait(0.0005)  # a slow one
        assert lease.over
        assert not budget.over
        everyone.wait(20.0)
        lease.finish(0)

    everyone = threading.Barrier(3)
    threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert budget.over
    done = sum(actor.acted if goal.max_env_steps else actor.episodes for actor in actors)
    limit = goal.max_env_steps or goal.max_episodes
    assert limit <= done < limit + STEP


def test_the_learner_uses_up_what_is_in_the_table_and_ends():
    agent = CheckingConfig(recurrent=False).make(PythonEnvironment(CountingEnvironment).spec())
    struct = trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))
    config = ReplayConfig(unroll_length=1, max_size=64)
    replay = LocalReplayBuffer(LocalTable(struct, config, 4), struct, config, 4)

    def insert(count: int) -> None:
        ids = np.arange(count, dtype=np.int32)
        timestep, action = zeros(struct.timestep, count), zeros(struct.action, count)
        for _ in range(2):
            replay.add(ids, timestep, Inference(action, zeros(struct.extras, count), 0, ()))

    waits, over = threading.Event(), threading.Event()

    def acting_over() -> bool:
        waits.set()
        return over.is_set()

    def act() -> None:
        waits.wait(10.0)
        insert(11)
        over.set()

    threading.Thread(target=act, daemon=True).start()
    learner = Learner(agent, replay, seed=0, timeout=30.0)
    reports = []
    assert learner.run(lambda: False, reports.append, acting_over=acting_over)
    assert learner.version == reports[-1]["learner_steps"] == 2
    assert replay.info().size == 11 - 2 * 4
    assert Learner(agent, replay, seed=0, last=0).run(lambda: False, print) is False


class DeadlineExceededError(Exception):
    """What a call raises whose deadline has passed."""


def test_the_learner_asks_on_when_the_clock_is_set(monkeypatch):
    """All deadlines pass at once; another learner's life would cost updates."""
    clock, calls = [1.0], []
    monkeypatch.setattr(acting_budget.time, "monotonic", lambda: clock[0])

    def ask(task: str) -> concurrent.futures.Future:
        calls.append(concurrent.futures.Future())
        return calls[-1]

    client = SimpleNamespace(futures=SimpleNamespace(acting_over=ask))
    watch = acting_budget.ActingWatch(NodeHandle("monitor/0", client, 60.0), "task", None)

    def answer(seconds: float, error: Exception | None = None) -> bool:
        assert not watch()  # asks
        clock[0] += seconds
        calls[-1].set_exception(error) if error else calls[-1].set_result((False, 0))
        return watch()

    for seconds in (20.0, 20.0, 10.0):
        assert not answer(seconds, DeadlineExceededError())
    assert not answer(5.0)
    assert not answer(50.0, DeadlineExceededError())
    with pytest.raises(PeerError, match=r"monitor/0.acting_over\(\) failed"):
        answer(10.0, DeadlineExceededError())
    assert len(calls) == 6
