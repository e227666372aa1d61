"""CollectionRounds: when they end, what is late, and that one round acts on one version."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distrl.envs import PythonEnvironment
from distrl.errors import DeadlineExceeded, Stopped
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.programs.build import Builder
from distrl.programs.running.acting import make_actor
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.rounds.clients import RoundReader, RoundVariables, RoundWriter
from distrl.rounds.collection import CollectionRounds
from distrl.testing import CheckingConfig, CountingEnvironment
from tests.support.selection import full

UNROLLS = 4  # of an actor in a round


class Table:
    """Actors and the learner of rounds of three actors, by hand."""

    def __init__(self, min_actors, grace=0.0, keep_late=True):
        self.now = 0.0
        self.gone = set()
        self.rounds = CollectionRounds(
            3,
            min_actors,
            grace,
            keep_late,
            clock=lambda: self.now,
            gone=lambda: self.gone,
        )
        self._after = [-1, -1, -1]

    def collect(self, version=0):
        """Returns whether the round that is open, or opens, is over."""
        try:
            self.rounds.collect(version, timeout=0.0)
        except DeadlineExceeded:
            return False
        return True

    def join(self, actor):
        joined = self.rounds.join(actor, self._after[actor])
        if joined is not None:
            self._after[actor] = joined[0]
        return joined

    def finish(self, actor, number):
        """Returns whether what an actor made was kept. Every call comes twice."""
        arguments = (actor, 0, number, UNROLLS)
        answers = {self.rounds.offer(*arguments) for _ in range(2)}
        if answers == {True}:
            for _ in range(2):
                self.rounds.deliver(*arguments)
        return answers == {True}


def test_a_round_ends_when_enough_have_delivered_and_the_grace_time_is_over():
    table = Table(min_actors=2, grace=5.0)
    assert not table.collect(version=7)
    (number, version), *others = [table.join(actor) for actor in range(3)]
    assert version == 7
    assert set(others) == {(number, 7)}
    table.finish(0, number)
    table.now = 100.0
    assert not table.collect()  # one is too few, whatever the time
    table.finish(1, number)
    assert not table.collect()
    table.now = 104.9
    assert not table.collect()
    table.now = 105.0
    assert table.collect()
    assert table.rounds.counts()["rounds"] == 1


def test_a_round_ends_at_once_when_all_have_delivered():
    table = Table(min_actors=1, grace=1e9)
    table.collect()
    number, _ = table.join(0)
    for actor in range(3):
        assert not table.collect()
        table.finish(actor, number)
    assert table.collect()


@pytest.mark.parametrize("keep_late", [True, False])
def test_late_data_is_kept_or_dropped_and_counted(keep_late):
    """An actor that was late joins the round that is open then."""
    table = Table(min_actors=2, keep_late=keep_late)
    table.collect()
    first, _ = table.join(0)
    table.join(1)
    table.join(2)
    table.finish(0, first)
    table.finish(1, first)
    assert table.collect(version=1)
    assert not table.collect(version=1)  # opens the second one
    second, version = table.join(0)
    assert (second, version) == (first + 1, 1)
    assert table.finish(2, first) == keep_late
    assert table.join(2) == (second, 1)
    table.finish(2, second)
    table.finish(0, second)
    assert table.collect()
    counts = table.rounds.counts()
    assert counts["unrolls_in_time"] == 4 * UNROLLS
    assert counts["unrolls_late_kept"] == UNROLLS * keep_late
    assert counts["unrolls_late_dropped"] == UNROLLS * (not keep_late)


@pytest.mark.parametrize("keep_late", [True, False])
def test_a_round_that_has_taken_an_offer_waits_for_what_was_offered(keep_late):
    """Else a dropping round would keep what is inserted after it, beside newer data."""
    table = Table(min_actors=2, keep_late=keep_late)
    table.collect()
    number, _ = table.join(0)
    assert table.rounds.offer(2, 0, number, UNROLLS)
    table.finish(0, number)
    table.finish(1, number)
    assert not table.collect()
    table.rounds.deliver(2, 0, number, UNROLLS)
    assert table.collect()
    counts = table.rounds.counts()
    assert (counts["unrolls_in_time"], counts["unrolls_late_kept"]) == (3 * UNROLLS, 0)


@pytest.mark.parametrize("end", ["rejoins", "leaves"])
def test_no_round_waits_for_what_an_earlier_life_offered(end):
    table = Table(min_actors=2)
    table.collect()
    number, _ = table.join(0)
    assert table.rounds.offer(2, 0, number, UNROLLS)
    table.finish(0, number)
    table.finish(1, number)
    assert not table.collect()
    if end == "rejoins":
        assert table.rounds.join(2, -1) == (number, 0)
    else:
        table.rounds.leave(2)
    assert table.collect()


def test_no_round_waits_for_those_that_left_nor_joins_them_twice():
    table = Table(min_actors=3)
    table.collect()
    number, _ = table.join(0)
    table.finish(0, number)
    assert table.join(0) is None  # not the same again
    table.finish(1, number)
    assert not table.collect()
    table.rounds.leave(2)
    assert table.collect()
    table.collect()
    assert table.join(2) is not None  # it is back
    table.finish(0, number + 1)
    table.finish(1, number + 1)
    assert not table.collect()


@pytest.mark.parametrize("min_actors", [2, 3])
def test_rounds_go_on_with_the_actors_that_scaling_leaves(min_actors):
    table = Table(min_actors, grace=5.0)
    table.collect()
    number, _ = table.join(0)
    assert table.rounds.offer(2, 0, number, UNROLLS)  # and ends before it delivers
    table.finish(0, number)
    assert not table.collect()
    table.gone = {1, 2}
    assert table.collect()
    assert not table.collect()
    table.gone = {1}  # one is back
    for actor in (0, 2):
        assert table.join(actor) is not None
    table.finish(0, number + 1)
    assert not table.collect()
    table.finish(2, number + 1)
    assert table.collect()


def test_rounds_wait_for_actors_that_scaling_adds():
    table = Table(min_actors=2, grace=5.0)
    table.collect()
    number = 1
    assert table.rounds.join(3, -1) == (number, 0)
    for actor in range(3):
        table.finish(actor, number)
    assert not table.collect()
    table.finish(3, number)
    assert table.collect()
    assert not table.collect()
    table.gone = {1, 2, 3}
    table.finish(0, number + 1)
    assert table.collect()


def test_no_round_ends_without_an_actor():
    table = Table(min_actors=1)
    table.gone = {0, 1, 2}
    assert not table.collect()
    table.gone = set()
    for actor in range(3):
        table.rounds.leave(actor)
    assert not table.collect()


def test_an_actor_that_died_in_a_round_makes_its_part_in_its_next_life():
    table = Table(min_actors=3)
    table.collect()
    number, _ = table.join(0)
    table.finish(1, number)
    table.finish(2, number)
    assert not table.collect()
    rejoined = table.rounds.join(0, -1)
    assert rejoined == (number, 0)
    assert table.rounds.offer(0, 1, number, UNROLLS)
    table.rounds.deliver(0, 1, number, UNROLLS)
    assert table.collect()


def test_a_round_of_an_earlier_learner_is_late():
    rounds = CollectionRounds(1, 1, 0.0, False, life=1)
    with pytest.raises(DeadlineExceeded, match=r"waits for 1 of 1 actors .*0 have delivered"):
        rounds.collect(0, timeout=0.0)
    assert not rounds.offer(0, 0, 5, UNROLLS)
    assert rounds.counts()["unrolls_late_dropped"] == UNROLLS


class Versions:
    """A source whose versions are given by call, and a clock that each call advances."""

    def __init__(self, *versions):
        self.left, self.now = list(versions), 0.0

    def clock(self):
        return self.now

    def get_variables(self, newer_than):
        self.now += 0.009
        version = self.left.pop(0)
        return None if version == newer_than else (version, f"params {version}")


@pytest.mark.parametrize(
    ("versions", "asked", "found"),
    [
        ([5, 5], 5, 5),
        ([5, 5, 5, 6], 6, 6),  # a relay that is behind
        ([5, 2], 2, 2),  # the learner has resumed, and has begun a round
        ([2, 5], 4, 5),  # one that asked before the learner has resumed, and is ahead again
        ([5, 5, 5, 5, 5, 5], 6, 5),  # it has resumed: this version may never come
        ([5, 5, 2, 2, 2, 2], 6, 2),
    ],
)
def test_a_round_waits_no_longer_for_its_version_than_a_relay_may_be_behind(versions, asked, found):
    source = Versions(*versions)
    variables = RoundVariables(source, threading.Event(), source.clock)
    variables.request_version(asked)
    for _ in range(2):
        variables.update()
        assert (variables.version, variables.params) == (found, f"params {found}")


def test_counts_continue():
    rounds = CollectionRounds(1, 1, 0.0, True)
    rounds.restore({"rounds": 3, "unrolls_in_time": 12, "learner_steps": 9})
    assert rounds.counts()["rounds"] == 3
    assert rounds.counts()["unrolls_late_kept"] == 0


@pytest.mark.parametrize("late_data", ["drop", full("keep")])
def test_one_round_acts_on_one_version(late_data):
    """Three actors, one of which misses most rounds: what is kept and dropped is what was acted.

    The agent's recurrent state, versions and boundaries are checked as well, at every step.
    """
    made = Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        CheckingConfig(),
        ReplayConfig(unroll_length=5, max_size=64),
        ActorsConfig(num_actors=3, num_envs=UNROLLS, min_actors=2, late_data=late_data),
        learner=LearnerConfig(batch_size=4),
    )
    builder, stop, held = Builder(made), threading.Event(), threading.Event()
    table = LocalTable(builder.struct, made.replay, 4, seed=0)
    rounds = builder.make_rounds(0, frozenset)
    buffers = [LocalReplayBuffer(table, builder.struct, made.replay, 4, stop) for _ in range(4)]
    samples = []

    class Seen(RoundReader):
        def sample(self, timeout):
            samples.append(super().sample(timeout))
            return samples[-1]

    reader = Seen(buffers[3], rounds, stop)
    learner = builder.make_learner(reader, timeout=30.0)
    reader.version = lambda: learner.version
    acted = []  # unrolls, as the actors finish them

    def act(index):
        cut = buffers[index].cut

        def counted(*arguments):
            block = cut(*arguments)
            acted.append(0 if block is None else block.size)
            return block

        buffers[index].cut = counted
        pool = builder.make_actor_pool(index, 0)
        variables = builder.make_variables(learner, stop)
        assert isinstance(variables, RoundVariables)
        writer = RoundWriter(
            buffers[index], rounds, unroll_length=5, actor=index, life=0, stop=stop, timeout=30.0
        )
        inferencer = builder.make_inferencer(variables, UNROLLS, index=index)
        actor = make_actor(
            {"task": builder},
            pool,
            {"task": inferencer},
            {"task": writer},
            index=index,
            first_environment=index * UNROLLS,
        )
        try:
            while not stop.is_set():
                if index == 2:
                    held.wait()
                actor.step()
        except Stopped:
            pass

    with ThreadPoolExecutor(3) as actors:
        futures = [actors.submit(act, index) for index in range(3)]
        try:
            for k in range(60):
                if k % 20 == 7:
                    held.set()
                if k % 20 == 12:
                    held.clear()
                learner.step()
            # What the third one has held since then is late, however busy the machine was before.
            held.set()
            deadline = time.monotonic() + 60.0
            while not any(rounds.counts()[f"unrolls_late_{fate}"] for fate in ("kept", "dropped")):
                assert time.monotonic() < deadline, rounds.counts()
                learner.step()
        finally:
            stop.set()
            held.set()
            for future in futures:  # an actor's error explains the learner's
                future.result(60.0)
    report = learner.take_report()
    assert not {name for name, value in report.items() if name.startswith("wrong_") and value}
    counts = rounds.counts()
    for sample in samples:
        versions = sample.trajectory.version[:-1]
        assert (versions == versions[0]).all()
    kept = counts["unrolls_in_time"] + counts["unrolls_late_kept"]
    assert kept == table.info().inserts
    assert kept + counts["unrolls_late_dropped"] == sum(acted)
    lates = counts["unrolls_late_kept"], counts["unrolls_late_dropped"]
    assert (lates[0] > 0, lates[1] > 0) == (late_data == "keep", late_data == "drop")
    assert np.unique([s.trajectory.stream_id for s in samples]).size >= 2 * UNROLLS
