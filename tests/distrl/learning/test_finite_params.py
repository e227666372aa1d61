"""A learner's newest parameters, which may be held back while an update is computed."""

import itertools

import jax
import numpy as np
import pytest

from distrl import presets
from distrl.errors import Stopped
from distrl.learner import Learner
from distrl.learning import finite_params
from distrl.learning.random_batches import NoReplay, random_batch
from distrl.replay.buffer import Dataset
from distrl.runtime.time_account import OTHER, PUBLISH, current_account
from distrl.types import Sample

AGENT = presets.experiment("CartPole-v1", "dqn").make_agent()
KEYS = np.arange(4, dtype=np.uint64)
BATCH = Sample(random_batch(AGENT, 1, len(KEYS)), KEYS, 0)


class Batches(NoReplay):
    """A table that has so many batches at a time, then stops the program.

    Attributes:
      published: versions that its learner has published.
      seen: the newest of them whenever a batch was asked for.
      states: what the learner's time was accounted to when it published them.
    """

    def __init__(self, *counts):
        self._counts = list(counts)
        self.published, self.seen, self.states = [0], [], []

    def can_sample(self):
        return self._counts[0] > 0

    def sample(self, timeout):
        self.seen.append(self.published[-1])
        if self._counts[0] == 0:
            self._counts.pop(0)
        if not self._counts:
            raise Stopped("the program stops")
        self._counts[0] -= 1
        return BATCH

    def make_dataset(self, timeout):
        return Dataset(self.sample, timeout)


def make_learner(table, is_late=True):
    learner = Learner(AGENT, table, seed=0)

    def changed():
        table.published.append(learner.variables[0])
        account = current_account()
        table.states.append(account.switch(OTHER))
        account.switch(table.states[-1])

    learner.published.on_change = changed
    learner.published.is_late = is_late
    return learner


def run(learner):
    learner.run(lambda: False, lambda report: None)


def test_parameters_are_published_when_the_next_update_has_begun():
    tables = {is_late: Batches(3, 2) for is_late in (False, True)}
    learners = {is_late: make_learner(table, is_late) for is_late, table in tables.items()}
    for learner in learners.values():
        run(learner)
    assert tables[False].published == tables[True].published == [0, 1, 2, 3, 4, 5]
    assert tables[False].seen == [0, 1, 2, 3, 4, 5]
    assert tables[True].seen == [0, 0, 1, 3, 3, 5]  # all are, before it waits for a batch
    states = [(state.params, state.agent) for state in (each.state() for each in learners.values())]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert {*tables[False].states, *tables[True].states} == {PUBLISH}


def test_short_updates_publish_no_more_often_than_they_may(monkeypatch):
    table, times = Batches(5, 2, 2), itertools.count(0.0, 0.4)
    learner = make_learner(table, is_late=False)
    learner.published.interval = 1.0
    now = [0.0]
    monkeypatch.setattr(finite_params.time, "monotonic", lambda: now[0])
    update = learner.update

    def timed(sample):
        now[0] = next(times)
        update(sample)

    learner.update = timed
    run(learner)
    # The first, the one of a second later, and what is there before each wait.
    assert table.published == [0, 1, 4, 5, 7, 9]
    assert table.seen == [0, 1, 1, 1, 4, 5, 5, 7, 7, 9]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_held_back_is_published_when_the_learner_ends(error):
    """Otherwise the final parameters would be older than the last checkpoint."""
    learner = make_learner(Batches(5))

    def fail(version, *rest):
        if version == 3:
            raise error

    learner.on_update = fail
    with pytest.raises(error):
        run(learner)
    assert learner.variables[0] == learner.state().version == 3


def test_a_restored_state_replaces_what_is_held_back():
    learner = make_learner(Batches())
    first = learner.state()
    learner.update(BATCH)
    assert learner.published.holds
    learner.restore(first)
    assert not learner.published.holds and learner.variables[0] == 0
