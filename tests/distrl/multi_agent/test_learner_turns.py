"""Learners that take turns in one process learn what each learns alone, bit by bit."""

import threading

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.errors import DeadlineExceeded
from distrl.learner import Learner
from distrl.multi_agent.learner_turns import Turn, drop_batches, run_in_turn
from distrl.replay.buffer import ReplayReader
from distrl.specs import EnvironmentSpec
from distrl.types import Sample
from tests.support.product_agent import ProductConfig, batch_of

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
AGENT = ProductConfig().make(SPEC)


class Batches(ReplayReader):
    """Gives numbered batches; after the last one there are no more."""

    is_prioritized = False

    def __init__(self, seed: int, count: int, ready: int = 1):
        """Args: ready: a batch is there from the n-th question after the one before."""
        self.left = [batch_of(AGENT, 10 * seed + k) for k in range(count)]
        self.order: list[int] = []
        self._ready, self._asked = ready, 0

    def sample(self, timeout):
        self._asked = 0
        return Sample(self.left.pop(0), np.arange(2, dtype=np.uint64))

    def can_sample(self):
        self._asked += 1
        return bool(self.left) and self._asked >= self._ready

    def has_more(self):
        return bool(self.left)

    def discard(self, keys, oldest):
        raise AssertionError("no bound on age")

    def update_priorities(self, keys, priorities):
        raise AssertionError("no table with priorities")


def learners(readers):
    return [Learner(AGENT, reader, seed=seed) for seed, reader in enumerate(readers)]


def make():
    return [Batches(0, 6), Batches(1, 3, ready=3)]


def test_two_learners_in_turn_learn_what_each_learns_alone():
    alone = learners(make())
    for learner, count in zip(alone, (6, 3), strict=True):
        for _ in range(count):
            learner.step()
    readers, reports = make(), {"a": [], "b": []}
    together = learners(readers)
    turns = [
        Turn(name, learner, reports[name].append, lambda: True)
        for name, learner in zip("ab", together, strict=True)
    ]
    assert sorted(run_in_turn(turns, threading.Event(), 10.0)) == ["a", "b"]
    for one, other in zip(alone, together, strict=True):
        states = [learner.state()._replace(waited=0.0) for learner in (one, other)]
        jax.tree.map(np.testing.assert_array_equal, *states)
    assert [reports[name][-1]["learner_steps"] for name in "ab"] == [6, 3]
    assert together[0].counts()["seconds_waiting"] >= 0


def test_a_learner_with_all_its_updates_takes_no_more_turns():
    readers = make()
    first = Learner(AGENT, readers[0], seed=0, last=2)
    second = Learner(AGENT, readers[1], seed=1, last=3)
    turns = [
        Turn("a", first, lambda report: None),
        Turn("b", second, lambda report: None),
    ]
    assert run_in_turn(turns, threading.Event(), 10.0) == []
    assert (first.version, second.version) == (2, 3)


class OfOneActor(Batches):
    """Batches of tables with room for two; an actor fills both, and waits for room in either."""

    def __init__(self, count: int):
        super().__init__(0, count)
        self.taken = 0
        self.beside: OfOneActor = self

    def sample(self, timeout):
        self.taken += 1
        return super().sample(timeout)

    def can_sample(self):
        return bool(self.left) and self.taken < self.beside.taken + 2


def beside(last, others_last):
    """Returns two learners with tables of one actor."""
    readers = [OfOneActor(9), OfOneActor(9)]
    readers[0].beside, readers[1].beside = readers[1], readers[0]
    made = [
        Learner(AGENT, reader, seed=0, last=limit)
        for reader, limit in zip(readers, (last, others_last), strict=True)
    ]
    for learner in made:
        learner.drops_when_done = True
    return readers, made


@pytest.mark.parametrize("last", [2, 0])
def test_a_learner_with_all_its_updates_drops_what_comes_while_another_learns(last):
    readers, (first, second) = beside(last, 7)
    heard, reports = [], []
    turns = [
        Turn("a", first, reports.append, flush=lambda: heard.append(reports[-1]["learner_steps"])),
        Turn("b", second, lambda report: None),
    ]
    assert run_in_turn(turns, threading.Event(), 10.0) == []
    assert (first.version, second.version) == (last, 7)
    assert heard == [last]  # at once
    assert readers[0].taken > last
    assert first.trained_steps * 7 == second.trained_steps * last


def test_learners_that_are_done_drop_what_comes_until_the_stop():
    readers, learners = beside(1, 1)
    stop = threading.Event()
    turns = [Turn(name, each, lambda report: None) for name, each in zip("ab", learners)]
    assert run_in_turn(turns, stop, 10.0) == []
    can_sample = readers[0].can_sample

    def can_sample_until_both_are_empty():
        if not (readers[0].left or readers[1].left):
            stop.set()
        return can_sample()

    readers[0].can_sample = can_sample_until_both_are_empty
    drop_batches(turns, stop)
    assert [reader.left for reader in readers] == [[], []]
    assert [each.version for each in learners] == [1, 1]


def test_what_a_table_without_a_ratio_gives_for_ever_is_not_dropped():
    readers, (learner, _) = beside(0, 0)
    assert learner.can_step()
    asked = []
    readers[0].has_more = lambda: bool(asked.append("has_more"))
    assert not learner.can_step()
    assert not learner.can_step()
    assert len(asked) == 1  # of a server, perhaps: not in each turn of the others


def test_one_that_acts_for_itself_only_takes_nothing_more():
    reader = Batches(0, 3)
    learner = Learner(AGENT, reader, seed=0, last=1)
    turn = Turn("a", learner, lambda report: None)
    assert run_in_turn([turn], threading.Event(), 10.0) == []
    assert not learner.can_step()
    drop_batches([turn], threading.Event())  # returns: there are none
    assert len(reader.left) == 2


def test_no_batch_in_time_and_the_stop_end_the_turns():
    reader = Batches(0, 0)
    turn = Turn("a", Learner(AGENT, reader, seed=0), lambda report: None)
    with pytest.raises(DeadlineExceeded, match=r"waited for a batch of a: nothing in 0\.05 s"):
        run_in_turn([turn], threading.Event(), 0.05)
    stop = threading.Event()
    stop.set()
    assert run_in_turn([turn], stop, 0.05) == []
