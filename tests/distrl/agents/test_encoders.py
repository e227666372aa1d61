"""SAC, TD3 and DDPG with pixels and with memory: the shared part against NumPy, its gradients."""

import dataclasses

import haiku as hk
import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.components import ComponentConfig, components_of
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep
from tests.support.selection import full

FIRST, LAST = int(StepType.FIRST), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
ACTION = dm_specs.BoundedArray((2,), np.float32, np.array([-2.0, 0.0]), np.array([2.0, 10.0]))
VECTORS = EnvironmentSpec(dm_specs.Array((3,), np.float32), ACTION)
IMAGES = EnvironmentSpec(
    {"camera": dm_specs.BoundedArray((8, 8, 3), np.uint8, 0, 255),
     "arm": dm_specs.Array((2,), np.float32)},
    ACTION,
)  # fmt: skip
LSTM = NetworkConfig(hidden_sizes=(4,), activation="relu", core="lstm", core_size=5)
TD3 = TD3Config((6,), discount=0.9, policy_delay=1, target_noise=0.0, network=LSTM, burn_in=2)
AGENTS = [SACConfig((6,)), TD3Config((6,), policy_delay=1), DDPGConfig((6,))]
T, B = 6, 12


def make(config, spec=VECTORS):
    """The agent, parameters, learner state with other targets, and a batch."""
    agent = config.make(spec)
    params, other = (jax.jit(agent.initial_params)(np.array([0, key], np.uint32)) for key in (1, 2))
    state = agent.initial_learner_state(other)
    first = agent.initial_learner_state(params)
    return agent, params, first._replace(target=state.target), random_batch(agent, T, B)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(params, name, x):
    return x @ np.asarray(params[name]["w"], float) + np.asarray(params[name]["b"], float)


def features(encoder, batch):
    """The memory's outputs [T + 1, B, 5], stream by stream and step by step."""
    step, outputs = batch.timestep, np.zeros((T + 1, B, 5))
    for b in range(B):
        h, c = (np.asarray(x[b], float) for x in batch.state)
        for t in range(T + 1):
            if step.step_type[t, b] == FIRST:
                h, c = np.zeros(5), np.zeros(5)
            x = np.maximum(dense(encoder, "torso/~/linear_0", step.observation[t, b]), 0)
            unit = (step.prev_action[t, b] - [0, 5]) / [2, 5]
            x = np.concatenate([x, unit, np.clip(step.reward[t, b, None], -1, 1), h])
            i, g, f, o = np.split(dense(encoder, "core/linear", x), 4)
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
            h = outputs[t, b] = sigmoid(o) * np.tanh(c)
    return outputs


def mlp(params, name, x):
    x = np.maximum(dense(params, f"{name}torso/~/linear_0", x), 0)
    (head,) = (key for key in params if key.startswith(name) and key.endswith("_head"))
    return dense(params, head, x)


def values(critics, x, unit):
    x = np.concatenate([unit, x], -1)
    return np.stack([mlp(critics, f"critic_{i}/", x)[..., 0] for i in (0, 1)], -1)


def test_the_losses_with_memory_equal_numpys():
    """Stored state, resets within unrolls, burn-in, and targets of a memory of their own."""
    agent, params, state, batch = make(TD3)
    params["policy"] = jax.tree.map(lambda x: x + 0.3, params["policy"])
    step = batch.timestep
    assert (step.step_type[1:] == FIRST).any() and (step.discount == 0).any()
    online = features(params["encoder"], batch)
    target_features = features(state.target["encoder"], batch)
    action = np.tanh(mlp(state.target["policy"], "", target_features))
    bootstrap = values(state.target["critics"], target_features, action).min(-1)
    q = values(params["critics"], online, (batch.action - [0, 5]) / [2, 5])
    own = values(params["critics"], online, np.tanh(mlp(params["policy"], "", online)))[..., 0]
    critic, policy = [], []
    for t in range(2, T):  # two steps are burnt in
        for b in range(B):
            if step.step_type[t, b] != LAST:
                y = step.reward[t + 1, b] + 0.9 * step.discount[t + 1, b] * bootstrap[t + 1, b]
                critic.append(((y - q[t, b]) ** 2).sum() / 2)
                policy.append(-own[t, b])

    @jax.jit
    def losses(params):
        _, logs = agent.compute_gradients(params, state, batch)
        online, _ = agent.encoder.encode(params, state.target, batch, 2)
        return logs["loss"], agent.policy_loss(params["policy"], params["critics"], online)

    got = losses(params)
    np.testing.assert_allclose(got, [np.mean(critic), np.mean(policy)], rtol=1e-4)


@pytest.mark.parametrize("config", [AGENTS[0], full(AGENTS[1]), full(AGENTS[2])])
def test_acting_has_the_memory_that_learning_has(config):
    """From the stored state, with the caller's reset at FIRST; and it is the batch's to store."""
    agent, params, _, batch = make(dataclasses.replace(config, network=LSTM))
    step = jax.jit(agent.encoder.step)
    online, _ = jax.jit(agent.encoder.encode, static_argnums=3)(
        params, {"encoder": params["encoder"]}, batch, 0
    )
    memory, start = batch.state, agent.initial_state(B)
    assert jax.tree.map(np.shape, memory) == jax.tree.map(np.shape, start)
    for t in range(T + 1):
        now = TimeStep(*(x[t] if len(x) else x for x in batch.timestep))
        first = (now.step_type == FIRST)[:, None]
        memory = type(start)(*(np.where(first, *pair) for pair in zip(start, memory)))
        encoded, memory = step(params, now, memory)
        np.testing.assert_allclose(encoded, online.timestep.observation[t], rtol=1e-5, atol=1e-6)
    now = now._replace(env_id=np.arange(B, dtype=np.int32))
    output, after = jax.jit(agent.actor_step)(KEY, params, now, memory)
    assert output.action.shape == (B, 2)
    assert jax.tree.structure(after) == jax.tree.structure(start)


def test_an_actions_probability_follows_from_what_the_memory_has():
    agent, params, _, batch = make(SACConfig((6,), network=LSTM))
    now = TimeStep(*(x[0] if len(x) else x for x in batch.timestep))
    encoded, _ = agent.encoder.step(params, now, batch.state)
    normal = agent.normal(params["policy"], encoded)
    known = agent.action_distribution(KEY, params, now, batch.state)
    np.testing.assert_array_equal(
        known.log_prob(batch.action[0]), agent.actions.log_prob(normal, batch.action[0])
    )


@pytest.mark.parametrize("spec", [IMAGES, full(VECTORS)])
@pytest.mark.parametrize("config", [AGENTS[0], full(AGENTS[1]), full(AGENTS[2])])
def test_the_critics_alone_train_what_is_shared(config, spec):
    """The policy's loss reaches no encoder, and target networks follow."""
    network = LSTM if spec is VECTORS else NetworkConfig(hidden_sizes=(8,), activation="relu")
    config = dataclasses.replace(config, network=network, target_tau=0.25)
    agent, params, state, batch = make(config, spec)
    is_sac = isinstance(config, SACConfig)

    def critic_loss(encoder):
        learned = {**params, "encoder": encoder}
        if is_sac:
            return agent.loss(learned, state.target, KEY, batch)[1]["critic_loss"]
        online, target_batch = agent.encoder.encode(learned, state.target, batch, 0)
        return agent.critic_loss(params["critics"], state.target, KEY, online, target_batch)[0]

    def whole(encoder):
        if is_sac:
            return agent.loss({**params, "encoder": encoder}, state.target, KEY, batch)[0]
        return critic_loss(encoder)

    @jax.jit
    def all_of_it(params):
        after, after_state, _ = agent.learner_step(params, state, batch)
        grads, _ = agent.compute_gradients(params, state, batch)
        of_encoder = [jax.grad(loss)(params["encoder"]) for loss in (critic_loss, whole)]
        return after, after_state, grads, *of_encoder

    after, after_state, grads, wanted, total = all_of_it(params)
    assert all(np.any(x) for x in jax.tree.leaves(grads["policy"]))
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6)  # noqa: E731
    jax.tree.map(close, total, wanted)
    assert any(np.any(x) for x in jax.tree.leaves(grads["encoder"]))
    mixed = jax.tree.map(
        lambda old, new: 0.75 * old + 0.25 * new, state.target["encoder"], after["encoder"]
    )
    jax.tree.map(close, after_state.target["encoder"], mixed)


@pytest.mark.full
def test_torso_and_core_are_components_that_can_be_frozen():
    config = dataclasses.replace(AGENTS[0], network=LSTM)
    assert set(components_of(config.make(VECTORS))) == {
        "torso", "core", "policy", "critics", "temperature"
    }  # fmt: skip
    images = dataclasses.replace(AGENTS[1], components={"torso": ComponentConfig(frozen=True)})
    agent, params, state, batch = make(images, IMAGES)
    assert set(components_of(agent)) == {"torso", "policy", "critics"}
    after, _, _ = jax.jit(agent.learner_step)(params, state, batch)
    jax.tree.map(np.testing.assert_array_equal, after["encoder"], params["encoder"])
    assert np.any(after["critics"]["critic_0/value_head"]["w"]
                  != params["critics"]["critic_0/value_head"]["w"])  # fmt: skip


def test_vectors_without_memory_share_nothing():
    for config in AGENTS:
        agent = config.make(VECTORS)
        params = jax.eval_shape(agent.initial_params, KEY)
        assert "encoder" not in params
        assert agent.initial_state(3) == ()
        own = dataclasses.replace(config, network=lambda x: hk.Linear(3)(x)).make(VECTORS)
        assert own.encoder.env_spec.observation.shape == (3,)
        named = dataclasses.replace(config, network=NetworkConfig(torso="mlp")).make(VECTORS)
        assert "encoder" in jax.eval_shape(named.initial_params, KEY)


def test_defaults_are_unrolls_with_images_and_memory():
    large = VECTORS._replace(observation=dm_specs.BoundedArray((84, 84, 3), np.uint8, 0, 255))
    assert AGENTS[0].defaults(VECTORS).replay.unroll_length == 1
    assert AGENTS[0].defaults(large).replay.unroll_length == 8
    memory = dataclasses.replace(AGENTS[2], network=LSTM, burn_in=4)
    replay = memory.defaults(VECTORS).replay
    assert replay.unroll_length == 20
    memory.check_replay(replay, 16)
    replay.check(16, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"burn_in": 2}, "agent.burn_in=2 brings a memory up to date, and agent.network.core=none"),
        ({"burn_in": -1}, "agent.burn_in: expected a whole number"),
        ({"network": NetworkConfig(heads=print)}, "agent.network.heads: policy and critics have"),
        ({"network": "lstm"}, "agent.network: expected a NetworkConfig, a function"),
    ],
)
def test_what_cannot_work_is_refused(change, message):
    for config in AGENTS:
        with pytest.raises(ConfigError) as error:
            dataclasses.replace(config, **change)
        assert message in str(error.value)


def test_unrolls_must_be_longer_than_the_burn_in():
    with pytest.raises(ConfigError, match=r"agent\.burn_in=2 leaves nothing to learn from"):
        TD3.check_replay(ReplayConfig("uniform", unroll_length=2), 8)


def test_what_no_network_takes_is_refused():
    video = VECTORS._replace(observation=dm_specs.Array((2, 8, 8, 3), np.float32))
    with pytest.raises(ConfigError, match=r"network\.torso: a network takes"):
        SACConfig().make(video)
