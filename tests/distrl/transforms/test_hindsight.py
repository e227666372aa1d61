"""Hindsight: by hand, counts over many transitions, what DQN learns from it, and refusals."""

import collections
import dataclasses
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.a2c import A2CConfig
from distrl.agents.agent import PRIORITIES
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.tunable import Tunable
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import check_order
from distrl.transforms.frame_stack import FrameStack
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
    return jax.tree.map(np.asarray, _jitted(hindsight)(np.array([0, seed], np.uint32), batch))


@functools.cache
def _jitted(hindsight):
    return jax.jit(lambda key, batch: hindsight.unroll((), (), key, batch))


def column(*values):
    return np.array(values, np.float32)[:, None]


# One stream: the end of an episode that was cut, a whole one, and the start of another one.
KINDS = column(MID, MID, LAST, FIRST, MID, MID, LAST, FIRST, MID)
DISCOUNT = column(1, 1, 0, 1, 1, 1, 1, 1, 1)
ACHIEVED = column(0, 1, 2, 3, 4, 5, 6, 7, 8)


def transitions(trajectory, b=0, real_only=True):
    """A stream's transitions in a relabelled batch: (state, action, reward, discount, state, goal).

    Asserts that each has its own rows, FIRST and LAST, and one goal for both.
    """
    step, found = jax.tree.map(lambda x: x[:, b], trajectory.timestep), []
    achieved, goal = (
        step.observation[key][:, 0].tolist() for key in ("achieved_goal", "desired_goal")
    )
    assert step.step_type[1::2].tolist() == [LAST] * (len(goal) // 2)
    for t in range(0, len(goal), 2):
        if step.step_type[t] != LAST:
            assert (step.step_type[t], step.reward[t], step.discount[t]) == (FIRST, 0, 1)
            assert step.prev_action[t] == 0
            assert goal[t] == goal[t + 1]
        elif real_only:
            continue
        reward, discount = float(step.reward[t + 1]), float(step.discount[t + 1])
        action = int(trajectory.action[t, b])
        found.append((achieved[t], action, reward, discount, achieved[t + 1], goal[t]))
    return found


def test_final_by_hand():
    """Every transition's goal is its episode's last step; only goals and rewards change."""
    batch = make_batch(KINDS, DISCOUNT, ACHIEVED)
    out = apply(Hindsight(reward, strategy="final", probability=1.0), batch)
    action = batch.action[:, 0].tolist()
    # The environment goes on at its goals: bootstrapped, but for the episode that truly ended.
    assert transitions(out) == [
        (0, action[0], -1, 1, 1, 2),
        (1, action[1], 0, 0, 2, 2),
        (3, action[3], -1, 1, 4, 6),
        (4, action[4], -1, 1, 5, 6),
        (5, action[5], 0, 1, 6, 6),
        (7, action[7], 0, 1, 8, 8),
    ]
    assert out.timestep.step_type[::2, 0].tolist() == [0, 0, LAST, 0, 0, 0, LAST, 0]
    pairs = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]
    for name in ("action", "extras", "version"):
        jax.tree.map(
            lambda new, old: np.testing.assert_array_equal(new, old[pairs]),
            getattr(out, name),
            getattr(batch, name),
        )
    for name in ("state", "stream_id", "life", "probability"):
        jax.tree.map(np.testing.assert_array_equal, getattr(out, name), getattr(batch, name))
    seen = out.timestep.observation["observation"]
    np.testing.assert_array_equal(seen, batch.timestep.observation["observation"][pairs])
    np.testing.assert_array_equal(
        out.timestep.prev_action[1::2][[0, 1, 3, 4, 5, 7]],
        batch.timestep.prev_action[1:][[0, 1, 3, 4, 5, 7]],
    )
    for new, was in zip(jax.tree.leaves(out), jax.tree.leaves(batch), strict=True):
        assert new.dtype == was.dtype


def test_the_environment_may_end_at_its_goal():
    """Only the transition that reaches its new goal has no future."""
    settings = {"strategy": "final", "probability": 1.0, "ends_at_goal": True}
    out = apply(Hindsight(reward, **settings), make_batch(KINDS, DISCOUNT, ACHIEVED))
    assert [row[3] for row in transitions(out)] == [1, 0, 1, 1, 0, 0]
    kinds = column(FIRST, MID, MID, MID, LAST)  # the goal is achieved on the way, too
    batch = make_batch(kinds, np.ones((5, 1)), column(7, 1, 7, 3, 7))
    assert [row[2:4] for row in transitions(apply(Hindsight(reward, **settings), batch))] == [
        (-1, 1), (0, 0), (-1, 1), (0, 0)
    ]  # fmt: skip
    goes_on = Hindsight(reward, strategy="final", probability=1.0)
    assert [row[2:4] for row in transitions(apply(goes_on, batch))] == [
        (-1, 1), (0, 1), (-1, 1), (0, 1)
    ]  # fmt: skip


def test_reached_may_be_another_function_than_the_rewards():
    near = lambda achieved, desired: jnp.abs(achieved - desired).max(axis=-1) < 1.5  # noqa: E731
    dense = lambda achieved, desired: -jnp.abs(achieved - desired).max(axis=-1)  # noqa: E731
    batch = make_batch(column(FIRST, MID, MID, MID, LAST), np.ones((5, 1)), column(0, 1, 2, 3, 4))
    settings = {"strategy": "final", "probability": 1.0, "ends_at_goal": True}
    out = transitions(apply(Hindsight(dense, reached=near, **settings), batch))
    assert [row[2:4] for row in out] == [(-3, 1), (-2, 1), (-1, 0), (0, 0)]


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


@pytest.mark.parametrize("ends_at_goal", [False, True])
@pytest.mark.parametrize("strategy", ["future", "final"])
def test_each_transition_draws_its_own_goal_from_its_episodes_future(strategy, ends_at_goal):
    """Counts over 4,400 transitions, of which no two achieve the same."""
    length, streams = 11, 500
    kinds, discounts = windows(np.random.default_rng(1), length, streams)
    batch = make_batch(kinds, discounts, np.arange(kinds.size).reshape(kinds.shape))
    out = apply(Hindsight(reward, strategy, 0.8, ends_at_goal), batch)
    relabelled, of_last, chosen, both = [], [], collections.Counter(), collections.Counter()
    for b in range(streams):
        row, achieved = 0, batch.timestep.observation["achieved_goal"][:, b, 0].tolist()
        before = None
        for t, new in enumerate(transitions(out, b, real_only=False)):
            if kinds[t, b] == LAST:
                before = None
                continue
            end = next(r for r in range(t + 1, length + 1) if r == length or kinds[r, b] == LAST)
            row += 1
            state, action, got, discount, after, goal = new
            assert (state, action, after) == (achieved[t], batch.action[t, b], achieved[t + 1])
            relabelled.append(goal != 99)
            if t + 1 == end:
                of_last.append(goal != 99)
            if before is not None:
                both[before, goal != 99] += 1
            before = goal != 99
            if goal == 99:
                old = batch.timestep
                assert (got, discount) == (old.reward[t + 1, b], old.discount[t + 1, b])
                continue
            later = achieved[t + 1 : end + 1]
            assert goal in (later if strategy == "future" else later[-1:])
            assert got == (0 if goal == after else -1)
            ended = ends_at_goal and goal == after
            assert discount == (0 if ended else discounts[t + 1, b])
            if end - t == 4:
                chosen[later.index(goal)] += 1
        assert row == np.count_nonzero(kinds[:-1, b] != LAST)
    assert len(relabelled) > 4_000
    assert np.mean(relabelled) == pytest.approx(0.8, abs=0.02)
    assert np.mean(of_last) == pytest.approx(0.8, abs=0.03)
    # Neighbours are independent.
    assert both[True, True] / both.total() == pytest.approx(0.64, abs=0.03)
    assert both[False, False] / both.total() == pytest.approx(0.04, abs=0.02)
    if strategy == "future":
        share = np.array([chosen[k] for k in range(4)]) / chosen.total()
        np.testing.assert_allclose(share, 0.25, atol=0.06)


def test_probability_0_keeps_every_transition_and_draws_follow_the_key():
    kinds, discounts = windows(np.random.default_rng(0), 11, 50)
    batch = make_batch(kinds, discounts, np.arange(kinds.size).reshape(kinds.shape))
    step = batch.timestep
    out = apply(Hindsight(reward, probability=0), batch)
    assert (out.timestep.observation["desired_goal"][..., 0] == 99).all()
    np.testing.assert_array_equal(out.timestep.reward[1::2], step.reward[1:])
    np.testing.assert_array_equal(out.timestep.discount[1::2], step.discount[1:])
    one, again, other = (apply(Hindsight(reward), batch, seed) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert (one.timestep.reward != other.timestep.reward).any()


def test_dqn_learns_each_transition_under_its_own_goal():
    """The loss is that of the transitions as separate unrolls of one step."""
    kinds, discounts = windows(np.random.default_rng(3), 7, 6)
    batch = make_batch(kinds, discounts, np.arange(kinds.size).reshape(kinds.shape) / 50)
    batch = batch._replace(extras=(), state=())
    agent = DQNConfig(NetworkConfig(hidden_sizes=(8,)), double=False).make(SPEC)
    network, target = (
        jax.jit(agent.initial_params)(jax.random.PRNGKey(seed))["network"] for seed in (0, 1)
    )
    out = apply(Hindsight(reward, ends_at_goal=True), batch)
    real = np.flatnonzero((kinds[:-1] != LAST).ravel())  # (t, b)

    def apart(leaf):  # [2 T, B] to [2, transitions]
        pairs = leaf.reshape(len(leaf) // 2, 2, *leaf.shape[1:]).swapaxes(0, 1)
        return pairs.reshape(2, -1, *leaf.shape[2:])[:, real]

    alone = jax.tree.map(apart, out._replace(stream_id=(), life=(), probability=()))
    alone = alone._replace(probability=np.ones(len(real), np.float32))
    loss, logs = jax.jit(agent.loss)(network, target, out)
    want, want_logs = jax.jit(agent.loss)(network, target, alone)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(logs["td_error"], want_logs["td_error"], rtol=1e-5)
    assert logs[PRIORITIES].shape == (6,)


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
    want = [2, 2, 2, 2, 0, 0, 6, 6, 6, 6, 6, 6, 0, 0, 8, 8]
    assert out["x"][:, 0].tolist() == out["y"][:, 0, 1, 1].tolist() == want


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


@dataclasses.dataclass(frozen=True)
class GoalEnvironment:
    """Only its spec is needed."""

    name: str = "goals"

    def spec(self):
        return SPEC


LSTM = NetworkConfig(core="lstm")
UNROLLS = ReplayConfig("uniform", unroll_length=20, max_size=100, min_size_to_sample=10)
QUEUE = ReplayConfig("queue", unroll_length=20, max_size=512)


@pytest.mark.parametrize(
    ("agent", "replay", "others", "match"),
    [
        (PPOConfig(), QUEUE, (), "hindsight with PPOConfig: it learns from its own policy's act"),
        (IMPALAConfig(), QUEUE, (), "hindsight with IMPALAConfig: .* none of which was chosen for"),
        (A2CConfig(), QUEUE, (), "hindsight with A2CConfig: .* off-policy agent: DQN, DDPG, TD3"),
        (DQNConfig(n_step=3), UNROLLS, (), "agent.n_step=3 .* own goal, .*; use agent.n_step=1"),
        (
            Tunable(DQNConfig(n_step=3), {"learning_rate": (1e-4, 1e-2)}),
            UNROLLS,
            (),
            "agent.n_step=3 .* use agent.n_step=1",
        ),
        (DQNConfig(LSTM), UNROLLS, (), "hindsight with DQNConfig: .* the agent's memory needs"),
        (R2D2Config(), UNROLLS, (), "hindsight with R2D2Config: .* use one without memory"),
        (DQNConfig(), UNROLLS, (FrameStack(2),), "hindsight with frame_stack: .* leave one of"),
    ],
)
def test_what_hindsight_would_corrupt_is_refused(agent, replay, others, match):
    with pytest.raises(ConfigError, match=match) as error:
        Experiment(
            GoalEnvironment(), agent, replay, transforms=(Hindsight(reward), *others),
        )  # fmt: skip
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("strategy", "length", "share"), [("future", 1, 100), ("future", 4, 52), ("final", 1, 100)]
)
def test_unrolls_too_short_for_goals_of_later_steps_are_refused(strategy, length, share):
    def experiment(length):
        replay = dataclasses.replace(UNROLLS, unroll_length=length)
        transforms = (Hindsight(reward, strategy),)
        return Experiment(GoalEnvironment(), DQNConfig(), replay, transforms=transforms)

    least = 5 if strategy == "future" else 2
    match = f"unroll_length={length} .* {share} % of them .* at least {least}, better"
    with pytest.raises(ConfigError, match=match):
        experiment(length)
    experiment(least)


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
