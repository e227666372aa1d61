"""Lockstep: its schedule never deadlocks, and determines what is learned."""

import concurrent.futures
import dataclasses
import functools
import random
import threading
import time
import uuid

import numpy as np
import pytest
from dm_env import specs as dm_specs
from hypothesis import given, settings
from hypothesis import strategies as st

from distrl import specs
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.lockstep import LockstepReader, LockstepSchedule, LockstepVariables, LockstepWriter
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.types import Inference, StepType

QUEUE = ReplayConfig(unroll_length=3, max_size=64)
UNIFORM = ReplayConfig(
    "uniform", 3, 64, min_size_to_sample=8, samples_per_insert=2, error_buffer=40
)
PRIORITIZED = ReplayConfig(
    "prioritized", 3, 64, min_size_to_sample=8, samples_per_insert=2, error_buffer=40
)
STRICT = dataclasses.replace(UNIFORM, strict_ratio=True)


def test_the_least_error_buffer_suffices():
    replay = ReplayConfig("uniform", 3, 64, 50, samples_per_insert=0.1, error_buffer=30.8)
    LockstepSchedule(replay, batch_size=30, num_actors=1, num_envs=8)
    less = dataclasses.replace(replay, error_buffer=30.7)
    with pytest.raises(ConfigError, match=r"error_buffer=30\.7 must be at least 30\.8"):
        LockstepSchedule(less, batch_size=30, num_actors=1, num_envs=8)


def test_the_schedule_of_a_queue_by_hand():
    schedule = LockstepSchedule(QUEUE, batch_size=8, num_actors=2, num_envs=2)  # 4 unrolls a round
    assert [schedule.updates(n) for n in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [schedule.version(n) for n in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [schedule.rounds(u) for u in range(3)] == [2, 4, 6]
    assert [schedule.inserts(actor, 3) for actor in range(2)] == [12, 14]


def test_the_schedule_of_a_table_that_samples_each_unroll_twice():
    schedule = LockstepSchedule(UNIFORM, batch_size=4, num_actors=2, num_envs=2)
    assert [schedule.updates(n) for n in range(6)] == [0, 0, 0, 2, 4, 6]
    assert [schedule.rounds(u) for u in range(5)] == [3, 3, 4, 4, 5]
    assert schedule.samples(3) == 8


@pytest.mark.parametrize(("replay", "updates"), [(QUEUE, 2), (UNIFORM, 6)])
def test_the_learner_ends_with_the_last_round_that_all_actors_complete(replay, updates):
    class Full:
        def wait_for_counts(self, done, what, timeout):
            assert done(10**6, 10**6)

        def sample(self, timeout):
            return None

    schedule = LockstepSchedule(replay, 8 if replay is QUEUE else 4, num_actors=2, num_envs=2)
    reader = LockstepReader(Full(), schedule)
    assert reader.has_more()
    reader.end_after(7)
    reader.end_after(5)  # another actor ends earlier
    made = 0
    while reader.has_more():
        reader.sample(1.0)
        made += 1
    assert made == updates == schedule.updates(5)


def test_priorities_change_between_a_rounds_inserts_and_the_next_sample():
    """Not while actors insert: a new unroll's priority is the largest that there is."""
    events = []

    class Recording:
        def wait_for_counts(self, done, what, timeout):
            events.append("inserted")

        def update_priorities(self, keys, priorities):
            events.append(("priorities", *priorities))

        def sample(self, timeout):
            events.append("sampled")

    schedule = LockstepSchedule(PRIORITIZED, batch_size=4, num_actors=2, num_envs=2)
    reader = LockstepReader(Recording(), schedule)
    reader.sample(1.0)
    reader.update_priorities(np.array([7], np.uint64), np.array([2.0]))
    assert events == ["inserted", "sampled"]
    reader.sample(1.0)
    reader.sample(1.0)
    assert events[2:] == ["inserted", ("priorities", 2.0), "sampled", "inserted", "sampled"]


def test_an_actor_knows_its_rounds():
    class Nowhere:
        def add(self, *args):
            pass

        def wait_for_counts(self, done, what):
            pass

    schedule = LockstepSchedule(QUEUE, batch_size=8, num_actors=2, num_envs=2)
    writer = LockstepWriter(Nowhere(), schedule, QUEUE.unroll_length, 0)
    rounds = [writer.rounds]
    for _ in range(8):
        writer.add(None, None, None)
        rounds.append(writer.rounds)
    assert rounds == [0, 0, 0, 0, 1, 1, 1, 2, 2]  # an unroll of 3 transitions has 4 rows


@settings(deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 4),
    st.sampled_from([QUEUE, UNIFORM, PRIORITIZED, STRICT]),
)  # fmt: skip
def test_no_schedule_deadlocks_and_requested_versions_are_kept(batch, actors, envs, replay):
    """Simulates the schedule, with each part as far behind or ahead as it may be."""
    try:
        schedule = LockstepSchedule(replay, batch, actors, envs)
    except ConfigError:
        return
    limits = replay.limits(batch)
    inserts = samples = updates = 0
    actor, round_index = 0, 0
    for _ in range(2000):
        moved = False
        if inserts >= schedule.rounds(updates) * schedule.streams:
            # The learner may run ahead of the actors: it keeps versions that they still request.
            updates += 1
            samples += batch
            moved = True
        elif inserts == schedule.inserts(actor, round_index) and samples >= schedule.samples(
            round_index
        ):
            # It has inferred the next round's first step already.
            assert schedule.version(round_index + 1) <= updates
            assert updates - schedule.version(round_index) < schedule.versions_kept
            inserts += envs
            actor = (actor + 1) % actors
            round_index += actor == 0
            moved = True
        assert moved, (inserts, samples, updates, round_index, actor)
        if replay.table != "queue":  # the table lets them
            diff = inserts * limits.samples_per_insert - samples
            assert diff <= limits.max_diff and (samples == 0 or diff >= limits.min_diff)


def play(replay: ReplayConfig, seed: int, updates: int) -> list[np.ndarray]:
    """Runs actors and a learner in threads with random delays; returns the learner's samples."""
    actors, envs, batch = 3, 2, 6
    schedule = LockstepSchedule(replay, batch, actors, envs)
    spec = specs.EnvironmentSpec(dm_specs.Array((1,), np.float32), dm_specs.DiscreteArray(2))
    struct = specs.trajectory_struct(spec, (), ())
    table = SharedTable.create(struct, replay, batch, f"lockstep-{uuid.uuid4().hex}", 5)
    stop = threading.Event()
    delays = random.Random(seed)
    versions = [0]
    made = threading.Condition()

    class Source:
        def get_variables_at(self, number):
            with made:
                exists = made.wait_for(lambda: versions[-1] >= number, 0.5)
            return (number, None) if exists else None

    def act(index: int) -> None:
        replay_client = SharedReplayBuffer(table.name, struct, replay, batch, stop)
        client = LockstepWriter(replay_client, schedule, replay.unroll_length, index)
        variables = LockstepVariables(Source(), schedule, replay.unroll_length, stop, 30.0)
        ids = np.arange(index * envs, (index + 1) * envs, dtype=np.int32)
        step = 0
        try:
            while not stop.is_set():
                variables.update()
                timestep = specs.zeros(specs.timestep_struct(spec), envs)._replace(
                    step_type=np.full(envs, StepType.MID, np.int8),
                    observation=np.full((envs, 1), step, np.float32),
                )
                action = np.zeros(envs, np.int32)
                client.add(ids, timestep, Inference(action, (), variables.version, ()))
                step += 1
                if delays.random() < 0.05:
                    time.sleep(delays.random() * 0.004)  # as on a busy machine
        except Exception:
            if not stop.is_set():
                raise

    def learn() -> list[np.ndarray]:
        replay_client = SharedReplayBuffer(table.name, struct, replay, batch, stop)
        client = LockstepReader(replay_client, schedule)
        samples = []
        for _ in range(updates):
            sample = client.sample(30.0)
            trajectory = sample.trajectory
            samples.append(
                np.concatenate(
                    [sample.key, trajectory.stream_id, trajectory.version[0],
                     trajectory.timestep.observation[0, :, 0]]
                )
            )  # fmt: skip
            if client.is_prioritized:
                client.update_priorities(sample.key, 1.0 + trajectory.stream_id)
            with made:
                versions.append(versions[-1] + 1)
                made.notify_all()
        stop.set()
        return samples

    with concurrent.futures.ThreadPoolExecutor(actors + 1) as pool:
        acting = [pool.submit(act, index) for index in range(actors)]
        try:
            samples = pool.submit(learn).result(60)
        finally:
            stop.set()
        for each in acting:
            each.result(10)
    table.close()
    return samples


@pytest.mark.parametrize("replay", [QUEUE, UNIFORM, PRIORITIZED, STRICT])
def test_what_is_sampled_follows_from_counts_alone(replay):
    first, second = play(replay, 1, 40), play(replay, 2, 40)
    np.testing.assert_array_equal(first, second)
    if replay.table == "queue":
        schedule = LockstepSchedule(replay, 6, 3, 2)
        for update, row in enumerate(first):
            _, ids, versions, _ = row.reshape(4, 6)
            assert ids.tolist() == [0, 1, 2, 3, 4, 5]
            assert (versions == schedule.version(update)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": ReplayConfig("uniform", 3, 64)}, "Set replay.samples_per_insert"),
        (
            {"replay": ReplayConfig("uniform", 3, 64, 8, 2, 16)},
            "error_buffer=16 must be at least 24",
        ),
        (
            {"replay": ReplayConfig("uniform", 3, 64, 8, 2, 16, strict_ratio=True)},
            "error_buffer=16 must be at least 24",
        ),
        ({"replay": ReplayConfig(backend="reverb")}, "a Reverb server uses what arrives first"),
    ],
)
def test_settings_without_a_schedule_are_refused(changes, message):
    from distrl.envs import PythonEnvironment
    from distrl.experiment import ActorsConfig, LearnerConfig
    from distrl.testing import CheckingConfig, CountingEnvironment

    with pytest.raises(ConfigError, match=message):
        Experiment(
            PythonEnvironment(CountingEnvironment, "counting"),
            CheckingConfig(),
            actors=ActorsConfig(2, 4),
            learner=LearnerConfig(batch_size=8),
            lockstep=True,
            **changes,
        )


def test_unrolls_are_longer_than_rewards_are_late():
    """The actors would wait for updates from unrolls that they hold back."""
    from distrl.envs import PythonEnvironment
    from distrl.experiment import ActorsConfig, LearnerConfig
    from distrl.testing import CheckingConfig, LateCountingEnvironment

    def check(delay, length):
        environment = PythonEnvironment(functools.partial(LateCountingEnvironment, delay=delay))
        replay = ReplayConfig(unroll_length=length)
        parts = {"actors": ActorsConfig(2, 4), "learner": LearnerConfig(batch_size=8)}
        Experiment(environment, CheckingConfig(), replay, lockstep=True, **parts)

    check(2, 3)
    for delay in (3, 4):
        with pytest.raises(ConfigError, match=f"stored {delay} steps .*=3 .* at least {delay + 1}"):
            check(delay, 3)
