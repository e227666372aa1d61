"""Transforms: acting and learning see the same; each step is counted once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.actor import Actor
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.structs import extras_struct, state_struct
from distrl.envs import PythonEnvironment
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.replay.config import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.specs import EnvironmentSpec, trajectory_struct, zeros
from distrl.testing import COUNT, SEED, CheckingAgent, CountingEnvironment
from distrl.transforms import (
    FrameStack,
    ObservationClip,
    ObservationNormalizer,
    PotentialShaping,
    RewardClip,
    RewardNormalizer,
    RewardScale,
    RewardShaping,
    RewardWeights,
    TransformedAgent,
    statistics,
)
from distrl.transforms.base import specs_seen
from distrl.types import StepType, TimeStep, Trajectory
from distrl.variables.client import VariableClient

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
B, T = 5, 4
SPEC = EnvironmentSpec(
    {
        "position": dm_specs.Array((3,), np.float32, "position"),
        "pixels": dm_specs.BoundedArray((2, 4, 4), np.uint8, 0, 255, "pixels"),
        "map": dm_specs.Array((4, 4), np.float32, "map"),
        "speed": dm_specs.Array((), np.float32, "speed"),
        "kind": dm_specs.DiscreteArray(3, np.int32, "kind"),
    },
    dm_specs.DiscreteArray(3, np.int32, "action"),
)
VECTOR = SPEC._replace(reward=dm_specs.Array((2,), np.float32, "reward"))
KEY = np.array([0, 1], np.uint32)


def random_steps(spec, length, seed=0):
    """Steps [length, B] of streams whose episodes last 1 to 6 steps and end in both ways."""
    rng = np.random.default_rng(seed)
    step_type = np.zeros((length, B), np.int8)
    left = rng.integers(1, 7, B)
    for t in range(1, length):
        ended = step_type[t - 1] == LAST
        left = np.where(ended, rng.integers(1, 7, B), left - 1)
        step_type[t] = np.where(ended, FIRST, np.where(left <= 0, LAST, MID))
    first = step_type == FIRST

    def values(leaf):
        shape = (length, B, *leaf.shape)
        if np.issubdtype(leaf.dtype, np.floating):
            return (3 * rng.normal(size=shape) + 2).astype(leaf.dtype)
        return rng.integers(0, 3, shape).astype(leaf.dtype)

    def unless_first(leaf):
        return np.where(first.reshape(*first.shape, *[1] * (leaf.ndim - 2)), 0, leaf).astype(
            leaf.dtype
        )

    discount = np.where((step_type == LAST) & (rng.random(step_type.shape) < 0.5), 0, 1)
    return TimeStep(
        step_type,
        unless_first(values(spec.reward)),
        discount.astype(np.float32),
        jax.tree.map(values, spec.observation),
        unless_first(values(spec.action)),
    )


def as_batch(timestep, state=()):
    length = timestep.step_type.shape[0]
    integers = np.zeros((length, B), np.int32)
    action = np.concatenate([timestep.prev_action[1:], integers[:1]])
    ids = np.arange(B, dtype=np.int32)
    return Trajectory(
        timestep, action, {"log_prob": np.zeros((length, B), np.float32)}, integers, state, ids,
        ids, np.ones(B, np.float32),
    )  # fmt: skip


def some_statistics(transform, spec):
    initial = transform.initial_statistics(spec)
    if not jax.tree.leaves(initial):
        return ()
    batch = as_batch(random_steps(spec, 30, seed=9))
    return jax.jit(transform.merge_statistics)(initial, jax.jit(transform.batch_statistics)(batch))


def height(observation):
    return observation["position"][..., 0] + observation["speed"]


STEPS = {
    "observation_normalizer": (ObservationNormalizer(clip=1.5), SPEC),
    "some observations": (ObservationNormalizer(clip=None, leaves=("speed", "map")), SPEC),
    "observation_clip": (ObservationClip(2.0), SPEC),
    "reward_clip": (RewardClip(1.5), SPEC),
    "reward_scale": (RewardScale(0.25), SPEC),
    "reward_normalizer": (RewardNormalizer(clip=1.0), SPEC),
    "reward_weights": (RewardWeights((0.5, -2.0)), VECTOR),
    "reward_shaping": (
        RewardShaping(lambda before, action, reward, after: reward * action + height(after)
                      - 2 * height(before)),
        SPEC,
    ),
    "potential_shaping": (PotentialShaping(height, 0.9), SPEC),
    "frame_stack": (FrameStack(3), SPEC),
    "some frames": (FrameStack(2, leaves=("pixels",)), SPEC),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_learning_sees_what_acting_saw_bit_for_bit(case):
    """Whatever the windows, over the ends of episodes; and it is what the spec says."""
    transform, spec = STEPS[case]
    merged = some_statistics(transform, spec)
    step, unroll = jax.jit(transform.step), jax.jit(transform.unroll)
    steps = random_steps(spec, 6 * T + 1)
    initial = transform.initial_state(spec, B)
    state, states, acted = initial, [], []
    for t in range(6 * T + 1):
        now = jax.tree.map(lambda x, t=t: x[t], steps)
        reset = now.step_type == FIRST  # as an inferencer does it
        state = jax.tree.map(
            lambda old, new, reset=reset: np.where(
                reset.reshape(-1, *[1] * (old.ndim - 1)), new, old
            ),
            state,
            initial,
        )
        states.append(state)
        seen, state = step(merged, state, now)
        acted.append(seen)
    acted = jax.tree.map(lambda *rows: np.stack(rows), *acted)
    for start in range(0, 6 * T, T):
        window = slice(start, start + T + 1)
        batch = as_batch(jax.tree.map(lambda x, w=window: x[w], steps), states[start])
        learned = unroll(merged, states[start], KEY, batch).timestep
        want = jax.tree.map(lambda x, w=window: x[w], acted)
        if "shaping" in case:  # the compiler fuses a user's products with the sums after them
            np.testing.assert_allclose(learned.reward, want.reward, rtol=1e-5, atol=1e-5)
            want = want._replace(reward=learned.reward)
        jax.tree.map(np.testing.assert_array_equal, learned, want)
    expected = zeros(transform.spec(spec).observation, 6 * T + 1, B)
    for name, leaf in acted.observation.items():
        assert leaf.shape == expected[name].shape, name
        assert leaf.dtype == expected[name].dtype, name
    assert acted.reward.shape == (6 * T + 1, B)
    assert acted.reward.dtype == np.float32
    np.testing.assert_array_equal(acted.reward[steps.step_type == FIRST], 0)


def test_frames_by_hand():
    """Episodes 1 2 | 3 4 5: the first frame is repeated, and nothing crosses the boundary."""
    spec = SPEC._replace(observation=dm_specs.Array((1,), np.float32, "x"))
    frames = np.repeat(np.array([1, 2, 3, 4, 5], np.float32)[:, None, None], B, axis=1)
    steps = random_steps(spec, 5)._replace(
        step_type=np.repeat(np.array([FIRST, LAST, FIRST, MID, MID], np.int8)[:, None], B, axis=1),
        observation=frames,
    )
    stack = FrameStack(3)
    batch = as_batch(steps, stack.initial_state(spec, B))
    seen = stack.unroll((), batch.state, KEY, batch).timestep.observation
    want = [[1, 1, 1], [1, 1, 2], [3, 3, 3], [3, 3, 4], [3, 4, 5]]
    np.testing.assert_array_equal(seen[:, 0], want)
    # The window that begins in the middle takes the older frames from the state.
    before = {"observation": np.repeat(np.array([3, 4], np.float32)[None, :, None], B, axis=0)}
    later = as_batch(jax.tree.map(lambda x: x[4:], steps))
    np.testing.assert_array_equal(
        stack.unroll((), before, KEY, later).timestep.observation[0, 0], [3, 4, 5]
    )


def test_frames_are_stacked_along_the_channels():
    shapes = {name: leaf.shape for name, leaf in FrameStack(4).spec(SPEC).observation.items()}
    assert shapes == {
        "position": (12,), "pixels": (8, 4, 4), "map": (4, 4, 4), "speed": (4,), "kind": (),
    }  # fmt: skip
    pixels = FrameStack(4).spec(SPEC).observation["pixels"]
    np.testing.assert_array_equal(pixels.maximum, 255)
    assert pixels.dtype == np.uint8


def test_shaping_by_hand():
    """A potential gives gamma * f(after) - f(before); 0 comes after a true end."""
    spec = SPEC._replace(observation=dm_specs.Array((1,), np.float32, "x"))
    steps = random_steps(spec, 5)._replace(
        step_type=np.repeat(np.array([FIRST, LAST, FIRST, MID, LAST], np.int8)[:, None], B, 1),
        discount=np.repeat(np.array([1, 0, 1, 1, 1], np.float32)[:, None], B, 1),
        reward=np.repeat(np.array([0, 1, 0, 1, 1], np.float32)[:, None], B, 1),
        observation=np.repeat(np.array([1, 2, 4, 8, 16], np.float32)[:, None, None], B, 1),
    )
    shaping = PotentialShaping(lambda observation: observation[..., 0], 0.5)
    batch = as_batch(steps, shaping.initial_state(spec, B))
    reward = shaping.unroll((), batch.state, KEY, batch).timestep.reward
    np.testing.assert_array_equal(reward[:, 0], [0, 1 - 1, 0, 1 + 4 - 4, 1 + 8 - 8])


def test_normalized_observations_and_rewards_by_hand():
    normalizer, scaler = ObservationNormalizer(clip=None), RewardNormalizer(clip=None)
    steps = random_steps(SPEC, 40)
    batch = as_batch(steps)
    now = normalizer.unroll(some_statistics(normalizer, SPEC), (), KEY, batch).timestep
    data = random_steps(SPEC, 30, seed=9)  # what some_statistics saw
    for name in ("position", "map", "speed"):
        rows = data.observation[name][:-1].reshape(-1, *data.observation[name].shape[2:])
        rows = rows.astype(np.float64)
        want = (steps.observation[name] - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-8)
        np.testing.assert_allclose(now.observation[name], want, rtol=1e-5, atol=1e-6)
    for name in ("pixels", "kind"):
        assert now.observation[name] is steps.observation[name]
    now = scaler.unroll(some_statistics(scaler, SPEC), (), KEY, batch).timestep
    rewards = data.reward[1:][data.step_type[:-1] != LAST].astype(np.float64)
    want = steps.reward / np.sqrt(np.mean(rewards**2) + 1e-8)
    np.testing.assert_allclose(now.reward, want, rtol=1e-5)


@pytest.mark.parametrize("transform", [ObservationNormalizer(clip=None), RewardNormalizer()])
def test_before_any_data_nothing_is_changed(transform):
    batch = as_batch(random_steps(SPEC, 9))
    now = transform.unroll(transform.initial_statistics(SPEC), (), KEY, batch).timestep
    jax.tree.map(np.testing.assert_array_equal, now, batch.timestep)


def test_rewards_that_are_always_one_stay_one():
    scaler, steps = RewardNormalizer(), random_steps(SPEC, 40)
    batch = as_batch(steps._replace(reward=(steps.step_type != FIRST).astype(np.float32)))
    now = scaler.unroll(jax.jit(scaler.batch_statistics)(batch), (), KEY, batch).timestep
    np.testing.assert_allclose(now.reward, batch.timestep.reward, rtol=1e-6)


def test_every_step_of_a_stream_is_counted_once():
    """Through pool, inferencer, queue and learner; two sizes of batch, over many episodes."""
    environment = PythonEnvironment(CountingEnvironment)
    spec = environment.spec()
    transforms = (ObservationNormalizer(), RewardNormalizer())
    agent = TransformedAgent(
        CheckingAgent(specs_seen(transforms, spec)[-1], recurrent=True), transforms, spec
    )
    config = ReplayConfig(unroll_length=T, max_size=60)
    struct = trajectory_struct(spec, extras_struct(agent), state_struct(agent))
    replay = LocalReplayBuffer(LocalTable(struct, config, 6), struct, config, 6)
    learner = Learner(agent, replay, seed=0)
    inferencer = Inferencer(agent, VariableClient(learner, 7), seed=0, max_streams=4)
    actor = Actor(environment.make_pool(4, 4, seeds=[3, 4, 5, 6]), inferencer, replay)
    observations, rewards = [], []
    for _ in range(20):
        while not replay.can_sample():
            actor.step()
        sample = replay.sample(1.0)
        learner.update(sample)
        step = sample.trajectory.timestep
        observations.append(step.observation[:-1].reshape(-1, 4))
        rewards.append(step.reward[1:][step.step_type[:-1] != LAST])
    observations, rewards = np.concatenate(observations), np.concatenate(rewards)
    assert len(observations) == 20 * 6 * T
    for seed in np.unique(observations[:, SEED]):
        counts = observations[observations[:, SEED] == seed, COUNT]
        np.testing.assert_array_equal(np.sort(counts), np.arange(len(counts)))
    by_transform = learner.variables[1]["statistics"]
    seen = by_transform["observation_normalizer"]
    assert float(seen.rows.hi) == len(observations)
    pooled = observations.astype(np.float64)
    np.testing.assert_allclose(statistics.mean(seen)["observation"], pooled.mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.variance(seen)["observation"], pooled.var(0), rtol=1e-6)
    seen = by_transform["reward_normalizer"]
    assert float(seen.rows.hi) == len(rewards) == learner.trained_steps
    np.testing.assert_allclose(statistics.mean(seen), rewards.mean(dtype=np.float64), rtol=1e-6)


TRANSFORMS = (
    PotentialShaping(lambda observation: jnp.sum(observation["position"], axis=-1), 0.99),
    ObservationNormalizer(leaves=("position", "speed")),
    RewardNormalizer(),
    RewardClip(2.0),
    FrameStack(3, leaves=("position", "speed")),
)
ACTING = SPEC._replace(observation={k: SPEC.observation[k] for k in ("position", "speed", "kind")})


def transformed_impala(core):
    seen = specs_seen(TRANSFORMS, ACTING)[-1]
    config = IMPALAConfig(NetworkConfig(core=core, hidden_sizes=(8,), core_size=8))
    return TransformedAgent(config.make(seen), TRANSFORMS, ACTING)


class Trained:
    """An agent that saw one batch, and its functions compiled."""

    def __init__(self, core):
        self.agent = agent = transformed_impala(core)
        self.transform = jax.jit(agent.transform)
        self.merge = jax.jit(agent.merge_statistics)
        self.learner_step = jax.jit(agent.learner_step)
        self.compute_gradients = jax.jit(agent.compute_gradients)
        fresh = jax.jit(agent.initial_params)(KEY)
        self.learner_state = jax.jit(agent.initial_learner_state)(fresh)
        _, batch_statistics = self.transform(fresh, self.learner_state, self.batch(0))
        self.fresh = fresh
        self.params = {**fresh, "statistics": self.merge(fresh["statistics"], batch_statistics)}

    def batch(self, seed):
        return as_batch(random_steps(ACTING, T + 1, seed), self.agent.initial_state(B))


@pytest.fixture(scope="module")
def trained():
    return Trained("none")


@pytest.mark.full
def test_the_learner_finds_the_actors_log_probabilities_at_equal_version():
    """With an LSTM that is fed the rewards, behind every kind of transform that remembers."""
    recurrent = Trained("lstm")
    agent, params = recurrent.agent, recurrent.params
    act = jax.jit(agent.actor_step)
    network = agent.agent.network

    @jax.jit
    def recompute(params, batch):
        policy, _, _ = network.unroll(params, batch.timestep, batch.state)
        return network.distribution.log_prob(policy, batch.action)

    initial = agent.initial_state(B)
    steps = random_steps(ACTING, 3 * T + 1, seed=5)
    state, states, actions, log_probs = initial, [], [], []
    for t in range(3 * T + 1):
        now = jax.tree.map(lambda x, t=t: x[t], steps)
        if t:  # the raw data are given; what was done is the agent's
            prev = np.where(now.step_type == FIRST, 0, actions[-1]).astype(np.int32)
            steps.prev_action[t] = prev
            now = now._replace(prev_action=prev)
        reset = now.step_type == FIRST
        state = jax.tree.map(
            lambda old, new, reset=reset: np.where(
                reset.reshape(-1, *[1] * (old.ndim - 1)), new, old
            ),
            state,
            initial,
        )
        states.append(state)
        output, state = act(np.array([7, t], np.uint32), params, now, state)
        actions.append(np.asarray(output.action))
        log_probs.append(np.asarray(output.extras["log_prob"]))
    for start in range(0, 3 * T, T):
        rows = slice(start, start + T + 1)
        batch = as_batch(jax.tree.map(lambda x, rows=rows: x[rows], steps), states[start])
        batch = batch._replace(action=np.stack(actions[rows]))
        seen, _ = recurrent.transform(params, recurrent.learner_state, batch)
        recomputed = recompute(params["agent"], seen)
        np.testing.assert_allclose(recomputed, np.stack(log_probs[rows]), rtol=1e-5, atol=1e-6)


def close(x, y):
    """But for what compilers make of sums; an optimiser divides small gradients by themselves."""
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_a_step_is_its_three_methods_with_the_old_statistics(trained):
    agent, params, learner_state = trained.agent, trained.params, trained.learner_state
    batch = trained.batch(8)
    after, after_state, logs = trained.learner_step(params, learner_state, batch)
    grads, more_logs = trained.compute_gradients(params, learner_state, batch)
    assert jax.tree.structure(grads) == jax.tree.structure(params)

    @jax.jit
    def rest(params, learner_state, grads):
        after, opt_state, logs = agent.apply_gradients(params, learner_state, grads)
        return after, agent.update_learner_state(after, opt_state, learner_state), logs

    parts, parts_state, parts_logs = rest(params, learner_state, grads)
    jax.tree.map(
        close, (after, after_state, logs), (parts, parts_state, {**more_logs, **parts_logs})
    )
    assert (np.asarray(after_state.key) != np.asarray(learner_state.key)).any()
    rows = after["statistics"]["observation_normalizer"].rows.hi
    assert float(rows) == 2 * T * B
    # The inner agent learned from what the old statistics made of the batch.
    seen, _ = trained.transform(params, learner_state, batch)
    want, _ = jax.jit(agent.agent.compute_gradients)(params["agent"], learner_state.agent, seen)
    jax.tree.map(close, grads["agent"], want)


def test_gradients_of_two_batches_merge_into_the_statistics_of_both(trained):
    batches = [trained.batch(seed) for seed in (3, 4)]
    one, two = (
        trained.compute_gradients(trained.params, trained.learner_state, batch)[0]["statistics"]
        for batch in batches
    )
    both = trained.merge(one, two)["observation_normalizer"]
    pooled = np.concatenate([b.timestep.observation["position"][:-1] for b in batches])
    pooled = pooled.reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(statistics.mean(both)["position"], pooled.mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.variance(both)["position"], pooled.var(0), rtol=1e-6)


def test_evaluation_uses_the_statistics_as_they_are(trained):
    agent = trained.agent
    now = jax.tree.map(lambda x: x[0], random_steps(ACTING, 1))
    state = agent.initial_state(B)
    act = jax.jit(lambda params: agent.actor_step(KEY, params, now, state, evaluation=True))
    greedy, after = act(trained.params)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    raw, _ = act(trained.fresh)
    assert not np.array_equal(greedy.extras["log_prob"], raw.extras["log_prob"])


def test_an_agent_without_memory_stays_without():
    agent = TransformedAgent(
        IMPALAConfig().make(ACTING), (RewardScale(0.1), RewardClip(1.0)), ACTING
    )
    assert agent.initial_state(3) == ()
    assert agent.initial_params(KEY)["statistics"] == {}


def test_other_parameters_other_draws():
    agent = TransformedAgent(IMPALAConfig().make(ACTING), (RewardScale(),), ACTING)
    draw = jax.jit(lambda key: agent.initial_learner_state(agent.initial_params(key)).key)
    keys = {
        tuple(np.asarray(draw(key)).tolist()) for key in np.arange(6, dtype=np.uint32).reshape(3, 2)
    }
    assert len(keys) == 3


def test_scaled_rewards_are_what_impala_learns_from():
    """Clipped, then scaled; its loss is that of rewards clipped and scaled by hand."""
    plain = IMPALAConfig().make(ACTING)
    agent = TransformedAgent(plain, (RewardClip(1.0), RewardScale(0.1)), ACTING)
    params = jax.jit(agent.initial_params)(KEY)
    learner_state = jax.jit(agent.initial_learner_state)(params)
    batch = as_batch(random_steps(ACTING, T + 1))
    by_hand = np.clip(batch.timestep.reward, -1, 1) * np.float32(0.1)
    assert (by_hand != batch.timestep.reward).any()
    grads, logs = jax.jit(agent.compute_gradients)(params, learner_state, batch)
    batch = batch._replace(timestep=batch.timestep._replace(reward=by_hand))
    want, want_logs = jax.jit(plain.compute_gradients)(params["agent"], None, batch)
    same = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)  # noqa: E731
    jax.tree.map(same, (grads["agent"], logs), (want, want_logs))
