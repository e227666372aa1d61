"""What heartbeats say about a wait for the work of other nodes."""

import time

import pytest

from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.errors import DeadlineExceeded
from distrl.experiment import Experiment
from distrl.programs.running.progress import (
    NodeProgress,
    gone_nodes,
    steps_of,
    unrolls_of_first_batch,
)
from distrl.replay.config import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.runtime.heartbeat import GONE, HeartbeatTable, install_heartbeat_lookup
from distrl.runtime.patience import Patience
from distrl.testing import CheckingConfig, CountingEnvironment

NAMES = ("actor/0", "actor/1")


class Actors:
    """Two actors with their heartbeats, and time that passes when the test says so."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic_ns", lambda: int(self.now * 1e9))
        self.table = HeartbeatTable([*NAMES, "learner/0"])
        self.rows = self.table.group("actor")
        assert list(self.rows) == list(NAMES)

    def begin(self):
        for row in self.rows.values():
            row.begin(0)

    def act(self, steps, seconds):
        """Lets seconds pass in which each actor takes some steps."""
        self.now += seconds
        for row in self.rows.values():
            row.tick()
            row.acted += steps

    def gone_nodes(self):
        install_heartbeat_lookup(lambda: (self.table.of("learner/0"), True))
        try:
            return gone_nodes("actor")
        finally:
            install_heartbeat_lookup(lambda: None)

    def progress(self, task=None):
        return NodeProgress(self.rows, task, lambda: self.now)


@pytest.fixture
def actors(monkeypatch):
    return Actors(monkeypatch)


def experiment(**replay):
    return Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        CheckingConfig(),
        replay=ReplayConfig(**{"unroll_length": 20, "max_size": 128, **replay}),
        actors=ActorsConfig(num_actors=2, num_envs=4),
        learner=LearnerConfig(batch_size=64),
    )


def test_who_works_or_is_restarted_is_busy(actors):
    progress = actors.progress()
    assert not progress.present()  # not started yet
    actors.begin()
    assert (progress.present(), progress.busy()) == (True, False)
    actors.rows["actor/1"].tick()
    assert progress.busy()
    actors.rows["actor/1"].wait()
    assert not progress.busy()
    actors.rows["actor/1"].end(True)
    assert progress.busy()
    for row in actors.rows.values():
        row.end(False)
    assert actors.rows["actor/0"].status == GONE
    assert (progress.present(), progress.busy()) == (False, False)


def test_nobody_waits_for_who_is_lost_with_its_host(actors):
    actors.begin()
    gone = actors.gone_nodes()
    assert gone() == frozenset()
    actors.rows["actor/1"].end(True, host_lost=True)
    progress = actors.progress()
    assert (progress.present(), progress.busy(), gone()) == (True, False, {1})
    assert progress.describe() == (
        "of 2 nodes (actor/0 to actor/1), 0 at work, 1 waiting, 1 lost with their hosts"
    )
    actors.rows["actor/0"].end(True, host_lost=True)
    assert (progress.present(), progress.busy()) == (False, False)
    actors.rows["actor/1"].begin(1)
    assert (progress.present(), gone()) == (True, {0})


def test_a_running_node_on_another_host_counts_as_busy(actors):
    actors.rows["actor/0"].mirror_status(1, 0)
    assert actors.progress().busy()


def test_steps_and_lives_are_signs(actors):
    actors.begin()
    progress = actors.progress()
    before = progress.signs()
    assert progress.signs() == before
    actors.rows["actor/0"].acted = 4
    after = progress.signs()
    actors.rows["actor/0"].begin(1)
    assert len({before, after, progress.signs()}) == 3


def test_the_first_batch_is_estimated(actors):
    """Of 64 unrolls: 8 rounds of 8 streams, 160 steps each; 0.5 s a step."""
    actors.begin()
    progress = actors.progress(experiment().only_task)
    actors.now += 60.0
    assert progress.describe() == "of 2 nodes (actor/0 to actor/1), 0 at work, 2 waiting"
    progress.signs()
    actors.act(4, 1.0)
    progress.signs()  # the rate counts from here: compiling came before
    for _ in range(30):
        actors.act(4, 0.5)
    assert progress.describe() == (
        "first batch in about 64 s: 8 of 64 unrolls; of 2 nodes (actor/0 to actor/1), 2 at work, "
        "0 waiting; 248 environment steps taken, 16 per second"
    )
    for _ in range(130):
        actors.act(4, 0.5)
    assert progress.describe().startswith("of 2 nodes")  # it could have come


def test_overlapping_unrolls_need_fewer_steps(actors):
    actors.begin()
    replay = {"table": "uniform", "min_size_to_sample": 16, "period": 5}
    progress = actors.progress(experiment(**replay).only_task)
    actors.act(4, 0.0)
    progress.signs()
    for _ in range(20):
        actors.act(4, 60.0)
    assert "first batch in about 4 min: 8 of 16 unrolls" in progress.describe()


@pytest.mark.parametrize(
    ("replay", "unrolls"),
    [
        (ReplayConfig("queue"), 8),
        (ReplayConfig("uniform", min_size_to_sample=50), 50),
        (ReplayConfig("uniform", min_size_to_sample=50, samples_per_insert=2.0), 50),
        (
            ReplayConfig(
                "uniform", min_size_to_sample=50, samples_per_insert=2.0, error_buffer=2.0
            ),
            53,
        ),
    ],
)
def test_the_inserts_that_a_first_batch_needs(replay, unrolls):
    """By the table itself."""
    assert unrolls_of_first_batch(replay, 8) == unrolls
    limits = replay.limits(8) if replay.table != "queue" else None
    if limits is not None:
        assert unrolls * limits.samples_per_insert - 8 >= limits.min_diff


def test_a_learner_waits_while_actors_work_and_fails_when_none_does(actors):
    """A wait of real milliseconds; the actors stop working after the fourth look."""
    setting = experiment()
    struct, replay = setting.trajectory_struct(), setting.replay
    buffer = LocalReplayBuffer(LocalTable(struct, replay, 64), struct, replay, 64)
    actors.begin()
    learner = actors.table.of("learner/0")
    learner.begin(0)
    looks = []

    class Looked(NodeProgress):
        def busy(self):
            looks.append(learner.at_work())
            row = actors.rows["actor/0"]
            row.tick() if len(looks) < 5 else row.wait()
            return super().busy()

    install_heartbeat_lookup(lambda: (learner, True))
    try:
        with pytest.raises(DeadlineExceeded, match=r"samples: table .*: no sign of progress in 0"):
            buffer.sample(Patience(0.01, Looked(actors.rows)))
    finally:
        install_heartbeat_lookup(lambda: None)
    assert len(looks) >= 5
    assert set(looks) == {None}  # it waits: whoever waits for it must not take that for work
    assert learner.at_work() is not None


def test_the_steps_of_a_group(actors):
    assert steps_of("actor")() == 0  # without a launcher
    actors.begin()
    install_heartbeat_lookup(lambda: (actors.table.of("learner/0"), True))
    try:
        steps = steps_of("actor")
    finally:
        install_heartbeat_lookup(lambda: None)
    actors.act(5, 1.0)
    actors.rows["actor/0"].acted += 1
    assert steps() == 11
