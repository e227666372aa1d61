"""Whole episodes as unrolls, against a reference that keeps each stream's steps in a list."""

import jax
import numpy as np
import pytest

from distrl.errors import SpecError
from distrl.replay.episode_unrolls import EpisodeUnroller
from distrl.types import TIME_FIELDS, StepType
from tests.support.replay import EPISODE


def drive(streams, calls, length):
    """Makes the calls, (ids, life); returns the (stream, life, first step) of each episode."""
    unroller = EpisodeUnroller(streams.struct, length)
    steps: dict[tuple[int, int], list] = {}
    episodes = []
    for ids, life in calls:
        wanted = unroller.needs_state(ids, life)
        timestep, inference = streams.step(ids, life)
        assert wanted or not (timestep.step_type == StepType.FIRST).any()
        given = inference if wanted else inference._replace(state=None)
        trajectory = unroller.add(ids, timestep, given, life)
        row = 0
        for i, stream in enumerate(ids.tolist()):
            step = (timestep._replace(env_id=()), inference.action, inference.extras)
            step = (*jax.tree.map(lambda x, i=i: x[i], step), np.int32(inference.version))
            kept = steps.setdefault((stream, life), [])
            if timestep.step_type[i] == StepType.FIRST:
                kept.clear()
                kept.append(jax.tree.map(lambda x, i=i: x[i], inference.state))
            if kept:
                kept.append(step)
            if timestep.step_type[i] != StepType.LAST or not kept:
                continue
            state, *episode = kept
            kept.clear()
            padded = episode + [episode[-1]] * (length + 1 - len(episode))
            want = jax.tree.map(lambda *x: np.stack(x), *[list(each) for each in padded])
            got = [getattr(trajectory, field) for field in TIME_FIELDS]
            got = jax.tree.map(lambda x, row=row: x[:, row], got)
            jax.tree.map(np.testing.assert_array_equal, got, want)
            got = jax.tree.map(lambda x, row=row: x[row], trajectory.state)
            jax.tree.map(np.testing.assert_array_equal, got, state)
            assert (trajectory.stream_id[row], trajectory.life[row]) == (stream, life)
            episodes.append((stream, life, int(want[0].observation["step"][0, 0])))
            row += 1
        assert trajectory is None if row == 0 else len(trajectory.life) == row
    return episodes


@pytest.mark.parametrize("length", [EPISODE - 1, 11])
def test_lockstep(streams, length):
    calls = [(np.array([7, 3, 11], np.int32), 0)] * (3 * EPISODE + 2)
    want = [(stream, 0, step) for step in (0, 7, 14) for stream in (7, 3, 11)]
    assert drive(streams, calls, length) == want


def test_any_streams_in_any_order(streams):
    rng = np.random.default_rng(0)
    calls = []
    for life in range(3):
        calls += [
            (rng.permutation(9)[: rng.integers(1, 9)].astype(np.int32), life) for _ in range(60)
        ]
    assert len(drive(streams, calls, 8)) > 60


def test_an_episode_in_which_a_life_began_is_dropped(streams):
    ids = np.array([4], np.int32)
    unroller = EpisodeUnroller(streams.struct, 8)
    for call in range(2 * EPISODE):
        life = int(call >= 3)
        timestep, inference = streams.step(ids)  # the environment is not interrupted
        trajectory = unroller.add(ids, timestep, inference, life)
        assert (trajectory is not None) == (call == 2 * EPISODE - 1)
    assert trajectory.life.tolist() == [1]
    assert trajectory.action[:EPISODE, 0].tolist() == list(range(7, 14))


def test_streams_that_are_not_kept_have_versions_of_their_own(streams):
    """As behind late rewards, where each step has the version that it was made with."""
    ids = np.array([4, 5], np.int32)
    unroller = EpisodeUnroller(streams.struct, 8)
    for call in range(2 * EPISODE):
        timestep, inference = streams.step(ids)
        inference = inference._replace(version=np.array([call, 10 + call], np.int32))
        trajectory = unroller.add(ids, timestep, inference, int(call >= 3))
        assert (trajectory is not None) == (call == 2 * EPISODE - 1)
    assert trajectory.version[:EPISODE, 0].tolist() == list(range(7, 14))
    assert trajectory.version[:EPISODE, 1].tolist() == list(range(17, 24))


def test_an_episode_that_is_too_long_is_refused(streams):
    calls = [(np.array([5], np.int32), 0)] * EPISODE
    with pytest.raises(SpecError, match=r"stream 5 .* more than replay.unroll_length=4 transit"):
        drive(streams, calls, 4)
