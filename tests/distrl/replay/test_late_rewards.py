"""Late rewards give the same unrolls as immediate ones."""

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.simulator import Simulator
from distrl.errors import SpecError
from distrl.replay.buffer import ReplayConfig
from distrl.replay.late_rewards import LateRewards, with_final_rewards
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.tee import Tee
from distrl.types import Inference, StepType, TimeStep

LENGTH = 3  # unroll length
STATE = {"h": jax.ShapeDtypeStruct((2,), np.float32)}


class Walk(Simulator):
    """Episodes of random length from 1 on and random rewards, the same for every delay."""

    def __init__(self, seed, delay, size=()):
        self.reward_delay = delay
        self._random = np.random.default_rng(seed)
        self._size = size

    def reset_simulator(self):
        self._length = int(self._random.integers(1, 9))
        self._rewards = self._random.normal(size=(self._length, *self._size)).astype(np.float32)
        self._cut = bool(self._random.integers(2))
        self._time = 0

    def step_simulator(self, env_action):
        self._time += 1
        end = self._time == self._length
        return end and not self._cut, end and self._cut

    def get_state(self):
        return np.array([self._length, self._time], np.float32)

    def get_reward(self, step):
        return self._rewards[step]

    def observation_spec(self):
        return dm_specs.Array((2,), np.float32)

    def action_spec(self):
        return dm_specs.DiscreteArray(1000)

    def reward_spec(self):
        return dm_specs.Array(self._size, np.float32)


def env_spec(delay, size=()):
    env = Walk(0, delay, size)
    return specs.EnvironmentSpec(
        env.observation_spec(),
        env.action_spec(),
        env.reward_spec(),
        env.env_info_spec() or (),
        delay,
    )


class Streams:
    """Batches of the walks' steps, with states and versions, as an actor adds them."""

    def __init__(self, count, delay, size=(), stateful=True):
        self.spec = env_spec(delay, size)
        self.struct = specs.trajectory_struct(
            self.spec, {"value": jax.ShapeDtypeStruct((), np.float32)}, STATE if stateful else ()
        )
        self._walks = [Walk(i, delay, size) for i in range(count)]
        self._steps = [walk.reset() for walk in self._walks]
        self._calls = 0
        self._stateful = stateful

    def take(self, rows):
        """Returns the current step of these walks and its inference; then steps them."""
        now = [(self._steps[i], self._walks[i].env_info()) for i in rows]
        self._calls += 1
        zero = np.zeros(self.spec.reward.shape, np.float32)
        timestep = TimeStep(
            np.array([step.step_type for step, _ in now], np.int8),
            np.stack([zero if step.first() else step.reward for step, _ in now]),
            np.array([1 if step.first() else step.discount for step, _ in now], np.float32),
            np.stack([step.observation for step, _ in now]),
            np.array([self._calls % 7] * len(rows), np.int32),
            np.array(rows, np.int32),
            {name: np.stack([info[name] for _, info in now]) for name in self.spec.env_info},
        )
        values = (np.array(rows) * 1000 + self._calls).astype(np.float32)
        state = {"h": np.stack([values, -values], 1)} if self._stateful else None
        inference = Inference(
            (values % 1000).astype(np.int32), {"value": values}, self._calls, state
        )
        for i in rows:
            self._steps[i] = self._walks[i].step(0)
        return timestep, inference


def buffer(streams):
    config = ReplayConfig(unroll_length=LENGTH, max_size=5000)
    table = LocalTable(streams.struct, config, 1)
    replay = LocalReplayBuffer(table, streams.struct, config, 1)
    return with_final_rewards(replay, streams.struct, streams.spec)


def unrolls(writer):
    """Returns the unrolls by stream, in order."""
    replay = writer._replay if isinstance(writer, LateRewards) else writer
    seen = {}
    while replay.can_sample():
        trajectory = replay.sample(0.0).trajectory
        one = jax.tree.map(np.asarray, trajectory._replace(probability=()))
        seen.setdefault((int(one.stream_id[0]), int(one.life[0])), []).append(one)
    return seen


def calls(kind, count, num_calls, seed=0):
    """Yields the walks of each call."""
    random = np.random.default_rng(seed)
    for _ in range(num_calls):
        if kind == "lockstep":
            yield list(range(count))
        else:
            yield random.permutation(count)[: random.integers(1, count)].tolist()


def run(kind, delay, size=(), stateful=True, num_calls=120, life=lambda call: 0):
    """Returns the late writer, the expected unrolls, and the number of final steps by stream."""
    count = 5
    late, soon = Streams(count, delay, size, stateful), Streams(count, 0, size, stateful)
    late_buffer, soon_buffer = buffer(late), buffer(soon)
    assert isinstance(late_buffer, LateRewards) and not isinstance(soon_buffer, LateRewards)
    ended = {}
    added = {}
    for call, rows in enumerate(calls(kind, count, num_calls)):
        ids = np.array(rows, np.int32) * 3 + 100
        timestep, inference = late.take(rows)
        assert late_buffer.needs_state(ids, life(call)) == stateful
        late_buffer.add(ids, timestep, inference, life(call))
        soon_buffer.add(ids, *soon.take(rows), life(call))
        for i, kind_of_step in zip(ids.tolist(), timestep.step_type):
            key = (i, life(call))
            added[key] = added.get(key, 0) + 1
            if kind_of_step == StepType.LAST:
                ended[key] = added[key]
    final = {key: max(ended.get(key, 0), count - delay) for key, count in added.items()}
    return late_buffer, unrolls(soon_buffer), final


def assert_equal(actual, expected, final):
    """Asserts that every unroll of final steps is there, and no other."""
    for key, steps in final.items():
        due = (steps - 1) // LENGTH
        assert len(actual.get(key, [])) == due
        for one, other in zip(actual.get(key, []), expected[key]):
            jax.tree.map(np.testing.assert_array_equal, one, other)
            assert jax.tree.map(lambda x: x.dtype, one) == jax.tree.map(lambda x: x.dtype, other)


@pytest.mark.parametrize("kind", ["lockstep", "asynchronous"])
@pytest.mark.parametrize("delay", [1, 2, 3, 4, 5])
def test_unrolls_are_those_of_rewards_at_once(kind, delay):
    replay, expected, final = run(kind, delay)
    replay.flush()
    actual = unrolls(replay)
    assert sum(map(len, actual.values())) > 70
    assert_equal(actual, expected, final)


@pytest.mark.parametrize("kind", ["lockstep", "asynchronous"])
def test_vector_rewards_and_no_state(kind):
    replay, expected, final = run(kind, 2, size=(3,), stateful=False)
    replay.flush()
    assert_equal(unrolls(replay), expected, final)


@pytest.mark.parametrize("kind", ["lockstep", "asynchronous"])
def test_release_makes_at_most_one_unroll_of_a_stream_at_a_time(kind):
    """Also behind a `Tee`."""
    replay, expected, final = run(kind, 5)
    actual = unrolls(replay)
    tee, more = Tee(None, [(replay, True)]), True
    while more:
        more = tee.release()
        made = unrolls(replay)
        assert all(len(every) == 1 for every in made.values())
        for key, every in made.items():
            actual.setdefault(key, []).extend(every)
    assert_equal(actual, expected, final)


def test_adding_goes_on_after_a_flush():
    late, soon = Streams(2, 3), Streams(2, 0)
    replay, plain = buffer(late), buffer(soon)
    ids = np.array([4, 9], np.int32)
    for call in range(100):
        replay.add(ids, *late.take([0, 1]))
        plain.add(ids, *soon.take([0, 1]))
        if call % 5 == 0:
            replay.flush()
    actual, expected = unrolls(replay), unrolls(plain)
    for key, every in expected.items():
        assert len(every) - 1 <= len(actual[key]) <= len(every)
        jax.tree.map(np.testing.assert_array_equal, actual[key], every[: len(actual[key])])


def test_streams_in_lockstep_stay_in_lockstep():
    """Each call is forwarded as one call with all streams, after the first few."""
    streams = Streams(4, 3)
    replay = buffer(streams)
    sizes = []
    inner = replay._replay.add
    replay._replay.add = lambda ids, *rest: (sizes.append(len(ids)), inner(ids, *rest))
    ids = np.arange(4, dtype=np.int32)
    for _ in range(50):
        replay.add(ids, *streams.take([0, 1, 2, 3]))
    assert sizes == [4] * 47


def test_a_new_life_drops_what_is_held():
    """Life 1 begins at step 0 of its streams: nothing of life 0 is in its unrolls."""
    delay = 4
    streams, again = Streams(3, delay), Streams(3, delay)
    plain = Streams(3, 0)
    replay, expected = buffer(streams), buffer(plain)
    ids = np.arange(3, dtype=np.int32)
    for _ in range(11):
        replay.add(ids, *streams.take([0, 1, 2]), 0)
    for _ in range(60):
        replay.add(ids, *again.take([0, 1, 2]), 1)
        expected.add(ids, *plain.take([0, 1, 2]), 1)
    actual, due = unrolls(replay), unrolls(expected)
    assert all(len(actual[i, 0]) == (11 - delay - 1) // LENGTH for i in range(3))
    for i in range(3):
        assert len(actual[i, 1]) == (60 - delay - 1) // LENGTH
        for one, other in zip(actual[i, 1], due[i, 1]):
            jax.tree.map(np.testing.assert_array_equal, one, other)


def test_what_is_refused():
    streams = Streams(2, 2)
    replay = buffer(streams)
    ids = np.arange(2, dtype=np.int32)
    timestep, inference = streams.take([0, 1])
    with pytest.raises(SpecError, match=r"state: the inference for streams \[0, 1\] has none"):
        replay.add(ids, timestep, inference._replace(state=None))
    with pytest.raises(SpecError, match=r"env_info: expected 'late_reward', got nothing"):
        replay.add(ids, timestep._replace(env_info=()), inference)
    with pytest.raises(SpecError, match=r"late_reward'\]: expected float32\[2, 3\]"):
        replay.add(ids, timestep._replace(env_info={"late_reward": np.zeros((2, 2))}), inference)
    with pytest.raises(SpecError, match=r"timestep.observation: expected float32\[2, 2\]"):
        bad = timestep._replace(observation=timestep.observation.astype(np.float64))
        replay.add(ids, bad, inference)
    early = np.zeros((2, 3), np.float32)
    early[1, 1] = 7.0  # at FIRST no reward is owed to anyone
    with pytest.raises(SpecError, match=r"stream 1, step 0 of its episode: part 1 is 7"):
        replay.add(ids, timestep._replace(env_info={"late_reward": early}), inference)
    undeclared = streams.spec._replace(env_info=())
    with pytest.raises(SpecError, match=r"must declare env_info 'late_reward' as float32\[3\]"):
        with_final_rewards(replay, streams.struct, undeclared)
