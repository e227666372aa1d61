"""The unroller against a reference that keeps each stream's steps in a list."""

from unittest import mock

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs
from hypothesis import given, settings
from hypothesis import strategies as st

from distrl import specs
from distrl.errors import SpecError
from distrl.replay import step_rows
from distrl.replay.unrolls import Unroller
from distrl.types import TIME_FIELDS, Inference


class Naive:
    """Steps of each stream in a list; a state for each step."""

    def __init__(self, length, period):
        self._length, self._period = length, period
        self._steps: dict[int, list] = {}
        self._lives: dict[int, int] = {}

    def needs_state(self, stream_ids, life):
        return any(
            self._lives.get(i) != life or len(self._steps[i]) % self._period == 0
            for i in stream_ids.tolist()
        )

    def add(self, stream_ids, timestep, inference, life):
        """Returns the finished unrolls as lists of one-stream steps, in the order of the call.

        All steps of a life are kept, so that an unroll is a slice of them.
        """
        timestep = timestep._replace(env_id=())
        finished = []
        for row, i in enumerate(stream_ids.tolist()):
            if self._lives.get(i) != life:
                self._steps[i] = []
                self._lives[i] = life
            step = jax.tree.map(lambda x, row=row: x[row], (timestep, inference.action,
                                                           inference.extras))  # fmt: skip
            step = (*step, np.int32(inference.version))
            state = jax.tree.map(lambda x, row=row: x[row], inference.state)
            self._steps[i].append((step, state))
            start = len(self._steps[i]) - (self._length + 1)
            if start >= 0 and start % self._period == 0:
                finished.append((i, life, self._steps[i][start:]))
        return finished


def assert_same(trajectory, finished):
    if not finished:
        assert trajectory is None
        return
    assert trajectory.stream_id.tolist() == [i for i, _, _ in finished]
    assert trajectory.life.tolist() == [life for _, life, _ in finished]
    for b, (_, _, steps) in enumerate(finished):
        actual = jax.tree.map(lambda x, b=b: x[:, b], [getattr(trajectory, f) for f in TIME_FIELDS])
        expected = jax.tree.map(lambda *x: np.stack(x), *[list(step) for step, _ in steps])
        jax.tree.map(np.testing.assert_array_equal, actual, expected)
        state = jax.tree.map(lambda x, b=b: x[b], trajectory.state)
        jax.tree.map(np.testing.assert_array_equal, state, steps[0][1])


def drive(streams, calls, length, period=None):
    """Makes the calls, (ids, life), to all; with states only where needed.

    One unroller writes steps as rows of bytes while its streams are in lockstep, one by column.
    """
    naive = Naive(length, period or length)
    unrollers = [(rows, Unroller(streams.struct, length, period)) for rows in (0, length + 2)]
    count = 0
    for stream_ids, life in calls:
        wanted = naive.needs_state(stream_ids, life)
        assert all(unroller.needs_state(stream_ids, life) == wanted for _, unroller in unrollers)
        timestep, inference = streams.step(stream_ids, life)
        finished = naive.add(stream_ids, timestep, inference, life)
        if not wanted:
            inference = inference._replace(state=None)
        for least_rows, unroller in unrollers:
            with mock.patch.object(step_rows, "_LEAST_ROWS", least_rows):
                assert_same(unroller.add(stream_ids, timestep, inference, life), finished)
        count += len(finished)
    return count


@pytest.mark.parametrize("length", [1, 2, 5])
def test_lockstep(streams, length):
    stream_ids = np.array([7, 3, 11], np.int32)
    assert drive(streams, [(stream_ids, 0)] * (3 * length + 1), length) == 9


@pytest.mark.parametrize("length, period", [(5, 5), (5, 4), (5, 3), (5, 2), (5, 1), (6, 3), (1, 1)])
def test_lockstep_with_overlap(streams, length, period):
    stream_ids = np.array([7, 3, 11], np.int32)
    windows = 8
    calls = [(stream_ids, 0)] * (length + (windows - 1) * period + 1)
    assert drive(streams, calls, length, period) == 3 * windows


def test_overlapping_unrolls_start_a_period_apart(streams):
    """Counted by each stream's steps; the stored state is that before the first step."""
    unroller = Unroller(streams.struct, 5, 2)
    everyone, seen = np.array([4, 9], np.int32), []
    for call in range(24):
        some = everyone if call < 12 else everyone[:1]  # in lockstep, then apart
        trajectory = unroller.add(some, *streams.step(some))
        if trajectory is not None:
            seen += streams.check(trajectory, period=2)
    assert [start for stream, _, start in seen if stream == 4] == list(range(0, 19, 2))
    assert [start for stream, _, start in seen if stream == 9] == [0, 2, 4, 6]


def test_with_overlap_a_new_life_drops_what_is_unfinished(streams):
    two = np.array([0, 1], np.int32)
    calls = [(two, 0)] * 6 + [(two, 1)] * 8 + [(two[:1].copy(), 2)] * 5 + [(two, 2)] * 6
    # Steps 0-4 and 1-5, 0-4 to 3-7; life 2: stream 0 has eleven steps, stream 1 six.
    assert drive(streams, calls, 4, 1) == 2 * 2 + 2 * 4 + 7 + 2


@settings(max_examples=100, deadline=None)
@given(data=st.data(), length=st.integers(1, 5))
def test_any_streams_in_any_order(make_streams, data, length):
    period = data.draw(st.integers(1, length))
    known = data.draw(
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6, unique=True)
    )
    chosen = st.lists(st.sampled_from(known), min_size=1, unique=True)
    calls = data.draw(st.lists(st.tuples(chosen, st.integers(0, 5)), max_size=40))
    # Lives rise occasionally.
    life, out = 0, []
    for stream_ids, rise in calls:
        life += rise == 5
        out.append((np.array(stream_ids, np.int32), life))
    drive(make_streams(), out, length, period)


def test_lockstep_then_apart(streams):
    everyone = np.array([4, 5, 6, 7], np.int32)
    calls = [(everyone, 0)] * 8 + [(everyone[::2].copy(), 0), (everyone[1:].copy(), 0)] * 9
    assert drive(streams, calls, 3) > 8
    for period in (1, 2):
        assert drive(type(streams)(), calls, 3, period) > 8


def test_the_ids_may_come_in_one_array_that_changes(streams):
    unroller = Unroller(streams.struct, 2)
    reused = np.array([0, 1], np.int32)
    seen = []
    for call in range(10):
        reused[:] = [0, 1] if call % 2 else [2, 3]
        trajectory = unroller.add(reused, *streams.step(reused))
        if trajectory is not None:
            seen += streams.check(trajectory)
    assert sorted(seen) == [(i, 0, k) for i in range(4) for k in (0, 2)]


def test_a_new_life_drops_what_is_unfinished(streams):
    two = np.array([0, 1], np.int32)
    calls = [(two, 0)] * 5 + [(two, 1)] * 6 + [(two[:1].copy(), 2)] * 4 + [(two, 2)] * 5
    assert drive(streams, calls, 4) == 2 + 2 + 3  # life 2: stream 0 twice, stream 1 once


def test_small_steps_of_many_versions_and_any_strides():
    """As rows of bytes: values that are not contiguous, and a version for each stream."""
    spec = specs.EnvironmentSpec(
        dm_specs.Array((3,), np.float32), dm_specs.DiscreteArray(2, np.int32)
    )
    struct = specs.trajectory_struct(spec, {}, ())
    unroller = Unroller(struct, 9)
    ids = np.arange(2, dtype=np.int32)
    timestep = specs.zeros(struct.timestep, 2)
    for step in range(10):
        observation = np.arange(6, dtype=np.float32).reshape(3, 2).T + step
        versions = np.array([step, 2 * step], np.int32)
        trajectory = unroller.add(
            ids,
            timestep._replace(observation=observation),
            Inference(np.full(2, step % 2, np.int32), {}, versions),
        )
    assert trajectory.timestep.observation[:, 1].tolist() == [
        [1 + step, 3 + step, 5 + step] for step in range(10)
    ]
    assert trajectory.version.tolist() == [[step, 2 * step] for step in range(10)]
    assert trajectory.action[:, 0].tolist() == [0, 1] * 5


@pytest.mark.parametrize("period, starts", [(None, [0, 3, 6]), (2, [0, 2, 4, 6])])
def test_a_finished_block_stays_as_it_is(streams, period, starts):
    """It is returned without a copy: later steps must not modify it."""
    unroller = Unroller(streams.struct, 3, period)
    two = np.array([0, 1], np.int32)
    kept = []
    for _ in range(10):
        trajectory = unroller.add(two, *streams.step(two))
        if trajectory is not None:
            kept.append(trajectory)
    assert [streams.check(t, period)[0][2] for t in kept] == starts


def test_a_missing_state_is_named(streams):
    unroller = Unroller(streams.struct, 3)
    two = np.array([0, 1], np.int32)
    timestep, inference = streams.step(two, with_state=False)
    assert unroller.needs_state(two)
    with pytest.raises(SpecError, match=r"state.*\[0, 1\].*needs_state"):
        unroller.add(two, timestep, inference)


def test_a_stateless_agent_never_needs_a_state():
    spec = specs.EnvironmentSpec(
        dm_specs.Array((3,), np.float32), dm_specs.DiscreteArray(2, np.int32)
    )
    struct = specs.trajectory_struct(spec, {}, ())
    unroller = Unroller(struct, 2)
    ids = np.arange(2, dtype=np.int32)
    timestep = specs.zeros(struct.timestep, 2)
    inference = Inference(np.zeros(2, np.int32), {}, 4)
    for call in range(3):
        assert not unroller.needs_state(ids)
        trajectory = unroller.add(ids, timestep, inference)
        assert (trajectory is not None) == (call == 2)
    assert trajectory.state == () and trajectory.extras == {}
    assert trajectory.timestep.env_id == ()
    assert (trajectory.version == 4).all()


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda t, i: (t._replace(reward=t.reward.astype(np.float64)), i),
            r"timestep\.reward: expected float32\[2\], got float64\[2\]",
        ),
        (
            lambda t, i: (t._replace(observation=t.reward), i),
            r"timestep\.observation: expected the structure .*step",
        ),
        (
            lambda t, i: (t, i._replace(action=i.action[:, None])),
            r"action: expected int32\[2\], got int32\[2, 1\]",
        ),
        (
            lambda t, i: (t, i._replace(extras={"value": i.extras["value"]})),
            r"extras: expected the structure .*logits",
        ),
        (
            lambda t, i: (t, i._replace(action=[0, 1])),
            r"action: expected the structure",
        ),
        (
            lambda t, i: (t, i._replace(extras={**i.extras, "value": 1.0})),
            r"extras\['value'\]: expected float32\[2\], got a float",
        ),
    ],
)
def test_what_breaks_its_spec_is_named(streams, change, message, apart):
    unroller = Unroller(streams.struct, 3)
    two, other = np.array([0, 1], np.int32), np.array([2, 1], np.int32)
    for stream_ids in (two, other) if apart else (two,):
        unroller.add(stream_ids, *streams.step(stream_ids))
    with pytest.raises(SpecError, match=message):
        unroller.add(two, *change(*streams.step(two)))


def test_stream_ids_are_checked(streams):
    unroller = Unroller(streams.struct, 3)
    with pytest.raises(SpecError, match=r"stream_ids: expected int32\[2\], got int64\[2\]"):
        unroller.add(np.arange(2), *streams.step(np.arange(2)))
