"""Hindsight: by hand, against an independent relabelling row by row, shares, and refusals."""

import collections
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import check_order
from distrl.transforms.hindsight import Hindsight
from distrl.transforms.observations import ObservationNormalizer
from distrl.transforms.rewards import RewardScale
from distrl.types import StepType, Trajectory

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
GOAL = dm_specs.Array((2,), np.float32)
SPEC = EnvironmentSpec(
    {"observation": dm_specs.Array((3,), np.float32), "achieved_goal": GOAL, "desired_goal": GOAL},
    dm_specs.DiscreteArray(5, np.int32),
)


def reward(achieved, desired):
    return jnp.where((achieved == desired).all(axis=-1), 0.0, -1.0)


def make_batch(step_type, discount, achieved, seed=0):
    """step_type, discount and (the first number of) achieved are [T + 1, B]."""
    rng = np.random.default_rng(seed)
    step_type = np.asarray(step_type, np.int8)
    shape = step_type.shape
    timestep = specs.zeros(specs.timestep_struct(SPEC), *shape)._replace(
        step_type=step_type,
        discount=np.asarray(discount, np.float32),
        reward=np.where(step_type == FIRST, 0, rng.normal(size=shape)).astype(np.float32),
        observation={
            "observation": rng.normal(size=(*shape, 3)).astype(np.float32),
            "achieved_goal": np.stack([achieved, np.zeros(shape)], -1).astype(np.float32),
            "desired_goal": np.full((*shape, 2), 99, np.float32),
        },
        prev_action=rng.integers(1, 5, size=shape, dtype=np.int32),
    )
    return Trajectory(
        timestep=timestep,
        action=rng.integers(5, size=shape, dtype=np.int32),
        extras={"log_prob": rng.normal(size=shape).astype(np.float32)},
        version=rng.integers(100, size=shape, dtype=np.int32),
        state=(rng.normal(size=(shape[1], 4)).astype(np.float32),),
        stream_id=np.arange(shape[1], dtype=np.int32),
        life=np.ones(shape[1], np.int32),
        probability=np.ones(shape[1], np.float32),
    )


def apply(hindsight, batch, seed=0):
    key = np.array([0, seed], np.uint32)
    return jax.tree.map(
        np.asarray, jax.jit(lambda k, b: hindsight.unroll((), (), k, b))(key, batch)
    )


def column(*values):
    return np.array(values, np.float32)[:, None]


# One stream: the end of an episode that was cut, a whole one, and the start of another one.
KINDS = column(MID, MID, LAST, FIRST, MID, MID, LAST, FIRST, MID)
DISCOUNT = column(1, 1, 0, 1, 1, 1, 1, 1, 1)
ACHIEVED = column(0, 1, 2, 3, 4, 5, 6, 7, 8)


def test_final_by_hand():
    """Every segment's goal is its last step's; only rewards, goals and ends change."""
    batch = make_batch(KINDS, DISCOUNT, ACHIEVED)
    out = apply(Hindsight(reward, strategy="final", probability=1.0), batch)
    step, old = out.timestep, batch.timestep
    first = float(old.reward[0, 0])  # of a transition that lies outside
    np.testing.assert_allclose(step.reward[:, 0], [first, -1, 0, 0, -1, -1, 0, 0, 0], rtol=1e-6)
    assert step.step_type[:, 0].tolist() == [MID, MID, LAST, FIRST, MID, MID, LAST, FIRST, LAST]
    # The environment goes on at its goals: bootstrapped, but for the episode that truly ended.
    assert step.discount[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert step.observation["desired_goal"][:, 0, 0].tolist() == [2, 2, 2, 6, 6, 6, 6, 8, 8]
    unchanged = {
        **out._asdict(),
        "timestep": (
            step.prev_action, step.observation["observation"], step.observation["achieved_goal"]
        ),
    }  # fmt: skip
    expected = {
        **batch._asdict(),
        "timestep": (
            old.prev_action, old.observation["observation"], old.observation["achieved_goal"]
        ),
    }  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, unchanged, expected)
    for new, was in zip(jax.tree.leaves(out), jax.tree.leaves(batch), strict=True):
        assert (new.dtype, new.shape) == (was.dtype, was.shape)


def test_final_by_hand_where_the_environment_ends_at_its_goal():
    out = apply(
        Hindsight(reward, strategy="final", probability=1.0, ends_at_goal=True),
        make_batch(KINDS, DISCOUNT, ACHIEVED),
    )
    assert out.timestep.discount[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0]


def test_a_goal_in_the_midst_by_hand():
    """The goal's row becomes LAST, the row after it FIRST, and the rest keeps its goal."""
    kinds = column(FIRST, MID, MID, MID, MID, LAST)
    batch = make_batch(kinds, column(1, 1, 1, 1, 1, 1), column(0, 1, 2, 3, 4, 5))
    old = batch.timestep
    times = 100  # the same stream over and over: every goal is drawn
    many = jax.tree.map(lambda x: np.repeat(x, times, axis=1), old)
    hindsight = Hindsight(reward, probability=1.0, ends_at_goal=True)
    made = apply(hindsight, batch._replace(timestep=many)).timestep
    seen = {}
    for b in range(times):
        out = jax.tree.map(lambda x, b=b: x[:, b : b + 1], made)
        seen[int(np.argmax(out.step_type[:, 0] == LAST))] = out
    assert sorted(seen) == [1, 2, 3, 4, 5]
    out = seen[2]
    rest = old.reward[4:, 0].tolist()
    assert out.step_type[:, 0].tolist() == [FIRST, MID, LAST, FIRST, MID, LAST]
    assert out.reward[:, 0].tolist() == [0, -1, 0, 0, *rest]
    assert out.discount[:, 0].tolist() == [1, 1, 0, 1, 1, 1]
    assert out.observation["desired_goal"][:, 0, 0].tolist() == [2, 2, 2, 99, 99, 99]
    assert out.prev_action[:, 0].tolist() == [*old.prev_action[:3, 0], 0, *old.prev_action[4:, 0]]
    # What is left is one step: it stays LAST, or the step to the next episode would be learned.
    out = seen[4]
    assert out.step_type[:, 0].tolist() == [FIRST, MID, MID, MID, LAST, LAST]
    assert out.reward[:, 0].tolist() == [0, -1, -1, -1, 0, old.reward[5, 0]]
    assert out.observation["desired_goal"][:, 0, 0].tolist() == [4, 4, 4, 4, 4, 99]


def test_goals_reached_before_by_hand():
    """The goal is achieved at row 4, and was before, at rows 0 and 2."""
    kinds = column(FIRST, MID, MID, MID, LAST)
    batch = make_batch(kinds, column(1, 1, 1, 1, 0), column(7, 1, 7, 3, 7))
    goes_on = Hindsight(reward, strategy="final", probability=1.0)
    out = apply(goes_on, batch).timestep
    assert out.reward[:, 0].tolist() == [0, -1, 0, -1, 0]
    assert out.step_type[:, 0].tolist() == [FIRST, MID, MID, MID, LAST]
    assert out.discount[:, 0].tolist() == [1, 1, 1, 1, 0]
    ends = Hindsight(reward, strategy="final", probability=1.0, ends_at_goal=True)
    out = apply(ends, batch).timestep
    assert out.reward[:, 0].tolist() == [0, -1, 0, 0, batch.timestep.reward[4, 0]]
    assert out.step_type[:, 0].tolist() == [FIRST, MID, LAST, FIRST, LAST]
    assert out.discount[:, 0].tolist() == [1, 1, 0, 1, 0]
    assert out.observation["desired_goal"][:, 0, 0].tolist() == [7, 7, 7, 99, 99]


def test_a_goal_reached_at_once():
    """Nothing moved: the first transition reaches the goal, and is the only one relabelled."""
    batch = make_batch(column(FIRST, MID, MID, LAST), np.ones((4, 1)), column(5, 5, 5, 5))
    out = apply(Hindsight(reward, probability=1.0, ends_at_goal=True), batch).timestep
    assert out.step_type[:, 0].tolist() == [FIRST, LAST, FIRST, LAST]
    assert out.reward[:3, 0].tolist() == [0, 0, 0]
    assert out.discount[:, 0].tolist() == [1, 0, 1, 1]


def test_reached_may_be_another_function_than_the_rewards():
    near = lambda achieved, desired: jnp.abs(achieved - desired).max(axis=-1) < 1.5  # noqa: E731
    dense = lambda achieved, desired: -jnp.abs(achieved - desired).max(axis=-1)  # noqa: E731
    batch = make_batch(column(FIRST, MID, MID, MID, LAST), np.ones((5, 1)), column(0, 1, 2, 3, 4))
    settings = {"strategy": "final", "probability": 1.0, "ends_at_goal": True}
    out = apply(Hindsight(dense, reached=near, **settings), batch).timestep
    assert out.reward[:4, 0].tolist() == [0, -3, -2, -1]
    assert out.step_type[:, 0].tolist() == [FIRST, MID, MID, LAST, LAST]
    never = lambda achieved, desired: jnp.zeros(achieved.shape[:-1], bool)  # noqa: E731
    out = apply(Hindsight(dense, reached=never, **settings), batch).timestep
    assert out.step_type[:, 0].tolist() == [FIRST, MID, MID, MID, LAST]
    assert out.discount[:, 0].tolist() == [1] * 5  # cut off, not ended


def windows(rng, length, batch_size):
    """Step types and discounts [T + 1, B] of episodes of 1 to 5 steps, cut anywhere."""
    columns = []
    for _ in range(batch_size):
        kinds, discounts = [], []
        while len(kinds) < length + 7:
            steps = rng.integers(1, 6)
            kinds += [FIRST] + [MID] * (steps - 1) + [LAST]
            discounts += [1] * steps + [rng.integers(2)]
        start = rng.integers(6)
        columns.append((kinds[start : start + length + 1], discounts[start : start + length + 1]))
    kinds, discounts = zip(*columns, strict=True)
    return np.array(kinds).T, np.array(discounts).T


def rows_by_hand(step, start, end, k, ends_at_goal):
    """Rows of one stream's segment as tuples, once its goal is what was achieved at row k.

    k None: as they were. `step` has lists.
    """
    kinds, discounts, rewards, actions, achieved = step
    rows = [[kinds[t], discounts[t], rewards[t], actions[t], 99.0] for t in range(start, end + 1)]
    if k is not None:
        if ends_at_goal:
            k = next(t for t in range(start + 1, k + 1) if achieved[t] == achieved[k])
        for t in range(start, k + 1):
            rows[t - start][4] = achieved[k]
            if t > start:
                rows[t - start][2] = 0.0 if achieved[t] == achieved[k] else -1.0
        rows[k - start][0] = LAST
        if ends_at_goal:
            rows[k - start][1] = 0.0
        if k < end and kinds[k + 1] != LAST:
            rows[k + 1 - start] = [FIRST, 1.0, 0.0, 0, 99.0]
    return tuple(map(tuple, rows))


def lists(timestep, b, key):
    fields = (timestep.step_type, timestep.discount, timestep.reward, timestep.prev_action)
    return [x[:, b].tolist() for x in (*fields, timestep.observation[key][..., 0])]


def segments_by_hand(kinds):
    """(first row, last row) of the episodes' parts."""
    found, start = [], 0
    for t, kind in enumerate(kinds):
        if kind == LAST or t == len(kinds) - 1:
            found.append((start, t))
            start = t + 1
    return found


@pytest.mark.parametrize("ends_at_goal", [False, True])
@pytest.mark.parametrize("strategy", ["future", "final"])
@pytest.mark.parametrize("achieved_values", [1000, 3])
def test_every_segment_is_relabelled_by_one_of_its_own_steps(
    strategy, ends_at_goal, achieved_values
):
    rng = np.random.default_rng(1)
    kinds, discounts = windows(rng, 11, 400)
    achieved = rng.integers(achieved_values, size=kinds.shape)
    if achieved_values == 1000:  # no two alike
        achieved = np.arange(kinds.size).reshape(kinds.shape)
    batch = make_batch(kinds, discounts, achieved)
    hindsight = Hindsight(reward, strategy, 0.7, ends_at_goal)
    out = apply(hindsight, batch)
    relabelled = whole = 0
    chosen = collections.Counter()
    for b in range(kinds.shape[1]):
        old = lists(batch.timestep, b, "achieved_goal")
        new = rows_by_hand(lists(out.timestep, b, "desired_goal"), 0, 11, None, False)
        goals = out.timestep.observation["desired_goal"][:, b, 0].tolist()
        new = [(*row[:4], goal) for row, goal in zip(new, goals, strict=True)]
        for start, end in segments_by_hand(old[0]):
            rows = tuple(new[start : end + 1])
            ks = range(start + 1, end + 1) if strategy == "future" else [end] * (end > start)
            options = {k: rows_by_hand(old, start, end, k, ends_at_goal) for k in ks}
            kept = rows_by_hand(old, start, end, None, ends_at_goal)
            assert rows in (kept, *options.values())
            if not options:
                assert rows == kept
                continue
            whole += 1
            relabelled += rows != kept
            if end - start == 4 and achieved_values == 1000:
                chosen.update(k - start for k, option in options.items() if option == rows)
    assert relabelled / whole == pytest.approx(0.7, abs=0.05)
    if chosen and strategy == "future":
        share = np.array([chosen[k] for k in (1, 2, 3, 4)]) / chosen.total()
        np.testing.assert_allclose(share, 0.25, atol=0.12)


def test_probability_0_changes_nothing_and_draws_follow_the_key():
    kinds, discounts = windows(np.random.default_rng(0), 11, 50)
    batch = make_batch(kinds, discounts, np.arange(kinds.size).reshape(kinds.shape))
    jax.tree.map(
        np.testing.assert_array_equal, apply(Hindsight(reward, probability=0), batch), batch
    )
    one, again, other = (apply(Hindsight(reward), batch, seed) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert (one.timestep.step_type != other.timestep.step_type).any()


def test_goals_may_be_nests_and_scalars():
    nest = {"x": dm_specs.Array((), np.int32), "y": dm_specs.Array((2, 2), np.float32)}
    env_spec = SPEC._replace(observation={"now": nest, "then": nest})
    same = lambda a, d: jnp.where(a["x"] == d["x"], 0.0, -1.0)  # noqa: E731
    hindsight = Hindsight(same, "final", 1.0, achieved_key="now", desired_key="then")
    assert hindsight.spec(env_spec) is env_spec
    batch = make_batch(KINDS, DISCOUNT, ACHIEVED)
    now = {
        "x": ACHIEVED.astype(np.int32),
        "y": np.broadcast_to(ACHIEVED[..., None, None], (9, 1, 2, 2)),
    }
    then = jax.tree.map(np.zeros_like, now)
    timestep = batch.timestep._replace(observation={"now": now, "then": then})
    out = apply(hindsight, batch._replace(timestep=timestep)).timestep.observation["then"]
    assert out["x"][:, 0].tolist() == out["y"][:, 0, 1, 1].tolist() == [2, 2, 2, 6, 6, 6, 6, 8, 8]


def test_environments_and_functions_that_do_not_suit_are_refused():
    array = SPEC._replace(observation=GOAL)
    with pytest.raises(ConfigError, match=r"must be a dict with 'achieved_goal'.*it has no dict"):
        Hindsight(reward).spec(array)
    with pytest.raises(ConfigError, match="'goal'; it has observation, achieved_goal, desired_g"):
        Hindsight(reward, desired_key="goal").spec(SPEC)
    with pytest.raises(ConfigError, match="must have one structure, shapes and dtypes; got"):
        Hindsight(reward, achieved_key="observation").spec(SPEC)
    with pytest.raises(ConfigError, match=r"reward: for goals \[3, 2, ...\] it must give \[3, 2\]"):
        Hindsight(lambda a, d: -jnp.abs(a - d)).spec(SPEC)
    with pytest.raises(ConfigError, match=r"reached: for goals .* must give \[3, 2\], and gives"):
        Hindsight(reward, reached=lambda a, d: a == d).spec(SPEC)
    with pytest.raises(ConfigError, match=r"reward: it must take two goals .* in JAX; Tracer"):
        Hindsight(lambda a, d: np.linalg.norm(a - d, axis=-1)).spec(SPEC)
    vector = SPEC._replace(reward=dm_specs.Array((2,), np.float32))
    pair = lambda a, d: -jnp.abs(a - d)  # noqa: E731
    assert Hindsight(pair).spec(vector) is vector
    with pytest.raises(ConfigError, match=r"reached: a function is needed .* vector, \[2\]"):
        Hindsight(pair, ends_at_goal=True).spec(vector)


@pytest.mark.parametrize("other", [RewardScale(0.1), ObservationNormalizer()])
def test_it_comes_before_what_changes_goals_or_rewards(other):
    hindsight = Hindsight(reward)
    check_order((hindsight, other))
    with pytest.raises(ConfigError, match=f"{other.name} before hindsight: .* in raw units"):
        check_order((other, hindsight))


@pytest.mark.parametrize(
    "setting",
    [{"reward": -1.0}, {"reached": 3}, {"strategy": "next"}, {"probability": 1.5}],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=f"hindsight.{field}: expected .* got") as error:
        Hindsight(**{"reward": reward, **setting})
    assert "\n" not in str(error.value)


NO_BACKEND = """
import jax.numpy as jnp, numpy as np
from dm_env import specs as dm_specs
from jax._src import xla_bridge
from distrl.specs import EnvironmentSpec
from distrl.transforms.hindsight import Hindsight

goal = dm_specs.Array((2,), np.float32)
spec = EnvironmentSpec({"a": goal, "d": goal}, dm_specs.DiscreteArray(5, np.int32))
reward = lambda a, d: jnp.where((a == d).all(axis=-1), 0.0, -1.0)
Hindsight(reward, achieved_key="a", desired_key="d").spec(spec)
assert not xla_bridge.backends_are_initialized()
"""


def test_the_check_of_the_functions_makes_no_backend():
    done = subprocess.run(
        [sys.executable, "-c", NO_BACKEND], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
