"""Noisy layers: their noise against NumPy, where it is drawn and where not, and what learns it."""

import dataclasses

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.losses import batch_share
from distrl.agents.modules.noisy import NoisyLinear, factors
from distrl.agents.networks import NetworkConfig
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_batch
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from tests.support.selection import full

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
KEYS = [np.array([0, k], np.uint32) for k in range(6)]
SMALL = NetworkConfig(hidden_sizes=(8,))
LSTM = NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=6)
BASE = DQNConfig(SMALL, noisy=True, epsilon=EpsilonSchedule(0.0, 0.0), evaluation_epsilon=0.0)
KINDS = {
    "plain": BASE,
    "dueling": dataclasses.replace(BASE, dueling=True),
    "c51": dataclasses.replace(BASE, dueling=True, num_atoms=5),
    "lstm": dataclasses.replace(BASE, network=LSTM, burn_in=1),
}
each_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
one_kind_quickly = pytest.mark.parametrize(
    "config",
    [full(KINDS["plain"]), KINDS["dueling"], full(KINDS["c51"]), full(KINDS["lstm"])],
    ids=KINDS,
)


def test_factors_are_the_signed_roots_of_normals():
    both = np.asarray(factors(KEYS[0], (50_000, 5)))
    normal = np.sign(both) * both**2
    # Five standard deviations are 0.022 of a mean and 0.032 of a variance.
    np.testing.assert_allclose(normal.mean(axis=0), 0, atol=0.022)
    np.testing.assert_allclose(np.cov(normal.T), np.eye(5), atol=0.032)
    np.testing.assert_allclose(both.mean(axis=0), 0, atol=0.022)
    np.testing.assert_allclose((np.abs(normal) < 1).mean(axis=0), 0.683, atol=0.011)


def layer():
    """A layer's function, its parameters, and inputs."""
    apply = hk.transform(lambda x: NoisyLinear(2, name="layer")(x))
    x = np.array([[1, 2, 3], [0, -1, 1]], np.float32)
    params = apply.init(KEYS[0], x)
    return jax.jit(apply.apply), params, x


def test_the_initial_means_and_sigmas():
    _, params, _ = layer()
    weights = params["layer"]
    assert {name: leaf.shape for name, leaf in weights.items()} == {
        "w": (3, 2), "b": (2,), "w_sigma": (3, 2), "b_sigma": (2,)
    }  # fmt: skip
    np.testing.assert_array_equal(weights["b"], 0)
    np.testing.assert_allclose(weights["w_sigma"], 0.5 / 3**0.5, rtol=1e-6)
    np.testing.assert_allclose(weights["b_sigma"], 0.5 / 3**0.5, rtol=1e-6)
    plain = hk.transform(lambda x: hk.Linear(2, name="layer")(x))
    np.testing.assert_array_equal(weights["w"], plain.init(KEYS[0], np.zeros((1, 3)))["layer"]["w"])


def noise_of(apply, params, key):
    """The noise on the weights and on the biases, from the layer's outputs alone."""
    zeros = {**params["layer"], "w": np.zeros((3, 2)), "b": np.zeros(2)}
    ones = {**zeros, "w_sigma": np.ones((3, 2)), "b_sigma": np.ones(2)}
    probes = np.concatenate([np.zeros((1, 3)), np.eye(3)]).astype(np.float32)
    outputs = np.concatenate([apply({"layer": ones}, key, probe[None]) for probe in probes])
    outputs = outputs.astype(np.float64)
    return outputs[1:] - outputs[0], outputs[0]


def test_a_layers_noise_is_factorised_and_each_row_has_its_own():
    apply, params, x = layer()
    on_weights, on_biases = noise_of(apply, params, KEYS[1])
    assert np.abs(on_biases).min() > 1e-3
    # Factor j is bias j's noise, so each row of the weights' noise is a multiple of the biases'.
    before = on_weights / on_biases
    np.testing.assert_allclose(before[:, 0], before[:, 1], rtol=1e-3)
    weights = {name: np.asarray(leaf, np.float64) for name, leaf in params["layer"].items()}
    weights["w_sigma"] = weights["w_sigma"] * np.arange(1, 7).reshape(3, 2)
    bias = weights["b"] + weights["b_sigma"] * on_biases
    want = x @ (weights["w"] + weights["w_sigma"] * on_weights) + bias
    layers = {"layer": jax.tree.map(jnp.float32, weights)}
    got = np.concatenate([apply(layers, KEYS[1], row[None]) for row in x])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    same = apply(layers, KEYS[1], np.repeat(x[:1], 3, axis=0))
    assert len(np.unique(np.asarray(same)[:, 0].round(4))) == 3
    # What a mistake would give is not what we give.
    without = x @ weights["w"] + weights["b"]
    np.testing.assert_allclose(apply({"layer": weights}, None, x), without, rtol=1e-5, atol=1e-6)
    assert np.abs(want - without).max() > 0.1
    assert np.abs(noise_of(apply, params, KEYS[2])[0] - on_weights).max() > 0.1


def test_the_noise_has_no_mean():
    apply, params, x = layer()
    outputs = jax.vmap(lambda key: apply(params, key, x))(jax.random.split(KEYS[3], 20_000))
    means = apply(params, None, x)
    deviation = np.std(outputs, axis=0)
    assert deviation.min() > 0.2
    assert np.abs(np.mean(outputs, axis=0) - means).max() < 5 * deviation.max() / 20_000**0.5


def timestep(n, seed=0):
    rng = np.random.default_rng(seed)
    step = specs.zeros(specs.acting_struct(SPEC), n)
    return step._replace(observation=rng.normal(size=(n, 4)).astype(np.float32))


@each_kind
def test_every_fully_connected_layer_is_noisy(config):
    network = config.make(SPEC).initial_params(KEYS[0])["network"]
    noisy = {name for name, leaves in network.items() if "w_sigma" in leaves}
    if config.dueling:
        assert noisy == {"advantage_stream", "value_stream", "q_head", "value_head"}
    else:
        assert noisy == {"torso/~/linear_0", "q_head"}


@pytest.mark.parametrize("torso", ["nature_cnn", "impala_resnet"])
def test_of_a_convolutional_torso_the_last_layer_is(torso):
    spec = SPEC._replace(observation=dm_specs.Array((1, 36, 36), np.uint8))
    agent = dataclasses.replace(BASE, network=NetworkConfig(torso)).make(spec)
    network = jax.eval_shape(agent.initial_params, KEYS[0])["network"]
    noisy = {leaves["w_sigma"].shape[1] for leaves in network.values() if "w_sigma" in leaves}
    assert noisy == {3, {"nature_cnn": 512, "impala_resnet": 256}[torso]}


@one_kind_quickly
def test_actors_explore_by_noise_and_evaluation_is_without(config):
    agent = config.make(SPEC)
    params = agent.initial_params(KEYS[0])
    step, state = timestep(500), agent.initial_state(500)
    act = jax.jit(agent.actor_step, static_argnames="evaluation")

    def actions(key, evaluation=False):
        return np.asarray(act(key, params, step, state, evaluation=evaluation)[0].action)

    greedy = actions(KEYS[1], evaluation=True)
    np.testing.assert_array_equal(actions(KEYS[2], evaluation=True), greedy)
    means = agent.values(agent.network.step(params["network"], step, state)[0])
    np.testing.assert_array_equal(np.argmax(means, axis=-1), greedy)
    np.testing.assert_array_equal(actions(KEYS[1]), actions(KEYS[1]))
    assert (actions(KEYS[1]) != actions(KEYS[2])).any()
    others = np.mean([actions(key) != greedy for key in jax.random.split(KEYS[3], 100)])
    assert 0.05 < others < 0.8
    # Each stream has a draw of its own: those that see the same do different things.
    same = step._replace(observation=np.repeat(step.observation[:1], 500, axis=0))
    for key in KEYS:
        assert len(np.unique(act(key, params, same, state)[0].action)) > 1


@each_kind
def test_each_step_of_each_stream_has_a_noise_of_its_own(config):
    agent = config.make(SPEC)
    network = agent.initial_params(KEYS[0])["network"]
    batch = random_batch(agent, 6, 10).timestep
    same = jax.tree.map(lambda x: np.broadcast_to(x[:1, :1], x.shape), batch)
    same = same._replace(step_type=np.ones_like(same.step_type))
    outputs, _ = jax.jit(agent.network.unroll)(network, same, agent.initial_state(10), KEYS[1])
    assert len(np.unique(outputs.reshape(70, -1).round(5), axis=0)) == 70
    # A part of a batch, whose gradients are computed apart, has its part of the noise.
    part = jax.tree.map(lambda x: x[:, 4:7], same)
    with batch_share.share_of_batch(batch_share.Share(3, 10, 4, 1.0, 1.0)):
        some, _ = agent.network.unroll(network, part, agent.initial_state(3), KEYS[1])
    np.testing.assert_allclose(some, outputs[:, 4:7], rtol=1e-5, atol=1e-6)


@one_kind_quickly
def test_gradients_reach_means_and_sigmas(config):
    agent = dataclasses.replace(config, double=False).make(SPEC)  # its choice would make jumps
    params = agent.initial_params(KEYS[0])
    learner_state = agent.initial_learner_state(params)
    batch = random_batch(agent, 6, 10)
    grads, _ = jax.jit(agent.compute_gradients)(params, learner_state, batch)
    network = grads["network"]
    for name, leaves in network.items():
        for kind, leaf in leaves.items():
            assert np.any(leaf), f"{name}/{kind}"
    # By finite differences of one sigma and its mean, under the same noise.
    noise = derive(learner_state.key, "noise")
    loss = jax.jit(lambda network: agent.loss(network, params["network"], batch, noise))
    for kind in ("w", "w_sigma"):
        leaf = params["network"]["q_head"][kind]
        place = np.unravel_index(np.abs(network["q_head"][kind]).argmax(), leaf.shape)
        high, low = (
            loss({**params["network"], "q_head": {
                **params["network"]["q_head"], kind: leaf.at[place].add(d)
            }})[0]
            for d in (1e-2, -1e-2)
        )  # fmt: skip
        slope = (float(high) - float(low)) / 2e-2
        assert float(network["q_head"][kind][place]) == pytest.approx(slope, rel=0.1, abs=2e-3)


@one_kind_quickly
def test_each_update_draws_anew(config):
    agent = config.make(SPEC)
    params = agent.initial_params(KEYS[0])
    learner_state = agent.initial_learner_state(params)
    other_seed = agent.initial_learner_state(agent.initial_params(KEYS[1]))
    keys = [np.asarray(learner_state.key), np.asarray(other_seed.key)]
    noise = derive(learner_state.key, "noise")
    batch = random_batch(agent, 6, 10)
    step, loss = jax.jit(agent.learner_step), jax.jit(agent.loss)
    losses = []
    for _ in range(3):
        _, learner_state, logs = step(params, learner_state, batch)
        keys.append(np.asarray(learner_state.key))
        losses.append(float(logs["loss"]))
    assert len({key.tobytes() for key in keys}) == 5
    # Parameters and batch are the same: only the noise differs.
    assert len(set(losses)) == 3
    network = params["network"]
    assert losses[0] == pytest.approx(float(loss(network, network, batch, noise)[0]), rel=1e-4)
    assert float(loss(network, network, batch)[0]) not in losses


@pytest.mark.parametrize("name", ["plain", full("lstm")])
def test_both_networks_have_noise_of_their_own(name):
    """Each network by itself: the other has sigmas of 0."""
    agent = KINDS[name].make(SPEC)
    network = agent.initial_params(KEYS[0])["network"]
    silent = {
        name: {kind: leaf * (0 if "sigma" in kind else 1) for kind, leaf in leaves.items()}
        for name, leaves in network.items()
    }
    batch = random_batch(agent, 6, 10)
    loss = jax.jit(lambda *args: agent.loss(*args)[0])
    means = float(loss(silent, silent, batch, KEYS[1]))
    assert means == pytest.approx(float(loss(network, network, batch)), rel=1e-5)
    for pair in ((network, silent), (silent, network)):
        losses = [float(loss(*pair, batch, key)) for key in KEYS]
        assert len({means, *losses}) == len(KEYS) + 1


def test_the_networks_draws_are_independent():
    """Where a value is its own target there is an error by noise, unless both draw the same."""
    one_action = SPEC._replace(action=dm_specs.DiscreteArray(1, np.int32))
    agent = dataclasses.replace(BASE, discount=1.0).make(one_action)
    network = agent.initial_params(KEYS[0])["network"]
    batch = random_batch(agent, 6, 10)
    steps = jax.tree.map(np.zeros_like, batch.timestep)
    ones = np.ones_like(batch.timestep.discount)
    batch = batch._replace(timestep=steps._replace(step_type=ones.astype(np.int8), discount=ones))
    loss = jax.jit(lambda key: agent.loss(network, network, batch, key)[0])
    assert float(loss(None)) == pytest.approx(0, abs=1e-9)
    assert np.mean([loss(key) for key in KEYS]) > 1e-3


def test_without_noisy_layers_a_key_changes_nothing():
    agent = dataclasses.replace(BASE, noisy=False).make(SPEC)
    network = agent.initial_params(KEYS[0])["network"]
    batch = random_batch(agent, 6, 10)
    loss = jax.jit(lambda *args: agent.loss(*args)[0])
    assert loss(network, network, batch, KEYS[1]) == loss(network, network, batch)


def test_what_is_no_switch_is_refused():
    with pytest.raises(ConfigError, match=r"agent\.noisy: expected True or False, got 0\.5"):
        DQNConfig(noisy=0.5)
