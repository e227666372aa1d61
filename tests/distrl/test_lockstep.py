"""Lockstep: a score in which nobody waits for ever, and what follows from it."""

import concurrent.futures
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


def test_the_score_of_a_queue_by_hand():
    lockstep_schedule = LockstepSchedule(
        QUEUE, batch_size=8, num_actors=2, num_envs=2
    )  # 4 unrolls a round
    assert [lockstep_schedule.updates(n) for n in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [lockstep_schedule.version(n) for n in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [lockstep_schedule.rounds(u) for u in range(3)] == [2, 4, 6]
    assert [lockstep_schedule.inserts(actor, 3) for actor in range(2)] == [12, 14]


def test_the_score_of_a_table_that_samples_each_unroll_twice():
    lockstep_schedule = LockstepSchedule(UNIFORM, batch_size=4, num_actors=2, num_envs=2)
    assert [lockstep_schedule.updates(n) for n in range(6)] == [0, 0, 0, 2, 4, 6]
    assert [lockstep_schedule.rounds(u) for u in range(5)] == [3, 3, 4, 4, 5]
    assert lockstep_schedule.samples(3) == 8


@settings(deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 4),
    st.sampled_from([QUEUE, UNIFORM, PRIORITIZED]),
)  # fmt: skip
def test_nobody_waits_for_ever_and_what_is_asked_for_is_kept(batch, actors, envs, replay):
    """Plays the score by turns, as far behind or ahead as each may be."""
    try:
        lockstep_schedule = LockstepSchedule(replay, batch, actors, envs)
    except ConfigError:
        return
    inserts = samples = updates = 0
    turn, number = 0, 0
    for _ in range(2000):
        moved = False
        if inserts >= lockstep_schedule.rounds(updates) * lockstep_schedule.streams:
            # The learner may run ahead of who acts: it keeps what they will still ask for.
            updates += 1
            samples += batch
            moved = True
        elif inserts == lockstep_schedule.inserts(
            turn, number
        ) and samples >= lockstep_schedule.samples(number):
            # It has inferred the next round's first step already.
            assert lockstep_schedule.version(number + 1) <= updates
            assert updates - lockstep_schedule.version(number) < lockstep_schedule.versions_kept
            inserts += envs
            turn = (turn + 1) % actors
            number += turn == 0
            moved = True
        assert moved, (inserts, samples, updates, number, turn)


def play(replay: ReplayConfig, seed: int, updates: int) -> list[np.ndarray]:
    """Real actors and a learner in threads that dawdle; what the learner sampled."""
    actors, envs, batch = 3, 2, 6
    lockstep_schedule = LockstepSchedule(replay, batch, actors, envs)
    spec = specs.EnvironmentSpec(dm_specs.Array((1,), np.float32), dm_specs.DiscreteArray(2))
    struct = specs.trajectory_struct(spec, (), ())
    table = SharedTable.create(struct, replay, batch, f"lockstep-{uuid.uuid4().hex}", 5)
    stop = threading.Event()
    dawdle = random.Random(seed)
    versions = [0]
    made = threading.Condition()

    class Learned:
        def get_variables_at(self, number):
            with made:
                there = made.wait_for(lambda: versions[-1] >= number, 0.5)
            return (number, None) if there else None

    def act(index: int) -> None:
        own = SharedReplayBuffer(table.name, struct, replay, batch, stop)
        client = LockstepWriter(own, lockstep_schedule, replay.unroll_length, index)
        variables = LockstepVariables(
            Learned(), lockstep_schedule, replay.unroll_length, stop, 30.0
        )
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
                if dawdle.random() < 0.05:
                    time.sleep(dawdle.random() * 0.004)  # what a busy machine does
        except Exception:
            if not stop.is_set():
                raise

    def learn() -> list[np.ndarray]:
        own = SharedReplayBuffer(table.name, struct, replay, batch, stop)
        client = LockstepReader(own, lockstep_schedule)
        found = []
        for _ in range(updates):
            sample = client.sample(30.0)
            trajectory = sample.trajectory
            found.append(
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
        return found

    with concurrent.futures.ThreadPoolExecutor(actors + 1) as pool:
        acting = [pool.submit(act, index) for index in range(actors)]
        try:
            found = pool.submit(learn).result(60)
        finally:
            stop.set()
        for each in acting:
            each.result(10)
    table.close()
    return found


@pytest.mark.parametrize("replay", [QUEUE, UNIFORM, PRIORITIZED], ids=lambda r: r.table)
def test_what_is_sampled_follows_from_counts_alone(replay):
    first, second = play(replay, 1, 40), play(replay, 2, 40)
    np.testing.assert_array_equal(first, second)
    if replay.table == "queue":
        lockstep_schedule = LockstepSchedule(replay, 6, 3, 2)
        for update, row in enumerate(first):
            _, ids, versions, _ = row.reshape(4, 6)
            assert ids.tolist() == [0, 1, 2, 3, 4, 5]
            assert (versions == lockstep_schedule.version(update)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay": ReplayConfig("uniform", 3, 64)}, "Set replay.samples_per_insert"),
        (
            {"replay": ReplayConfig("uniform", 3, 64, 8, 2, 16)},
            "error_buffer=16 must be at least 24",
        ),
        ({"replay": ReplayConfig(backend="reverb")}, "a Reverb server takes what comes first"),
    ],
)
def test_what_cannot_be_played_is_refused(changes, message):
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
