"""Optimisers: the size of RMSProp's updates, and the states that checkpoints hold."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs as dm_specs

from distrl.agents.a2c import A2CConfig
from distrl.agents.components import ComponentConfig, Components
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.optimizers import annealed, make_optimizer
from distrl.agents.reinforce import ReinforceConfig
from distrl.checkpointing.params_file import load_nest, save_nest
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec

RATE = 1e-3
PARAMS = {"w": jnp.zeros(3)}


def steps(grads, start=0, state=None, epsilon=1e-5):
    optimizer = make_optimizer(RATE, None, "rmsprop", epsilon=epsilon)
    state = optimizer.init(PARAMS) if state is None else state
    for count, grad in enumerate(grads, start):
        updates, state = optimizer.update({"w": jnp.asarray(grad)}, state, PARAMS, count=count)
        yield np.asarray(updates["w"])


def test_the_first_updates_are_as_large_as_the_learning_rate():
    """Of a constant gradient all are, whatever its size."""
    grad = np.array([1.0, -2.0, 30.0], np.float32)
    for update in steps([grad] * 50):
        np.testing.assert_allclose(update, -RATE * np.sign(grad), rtol=1e-4)


def test_small_gradients_make_steps_of_full_size():
    """With a small epsilon; RMSProp's 1e-5 makes little of them, as of MiniGrid's rare rewards."""
    grads = [np.full(3, 1e-5, np.float32)] * 3
    for epsilon, size in ((1e-12, 1.0), (1e-5, 1e-5 / 1e-5**0.5)):
        for update in steps(grads, epsilon=epsilon):
            np.testing.assert_allclose(update, -RATE * size, rtol=0.01)


def test_a_rate_over_more_updates_than_int32_counts_falls_at_its_slope():
    rate = jax.jit(annealed(RATE, 3_000_000_000))
    for count in (0, 10**9, 2**31 - 1):
        value = rate(jnp.asarray(count, jnp.int32))
        np.testing.assert_allclose(value, RATE * (1 - count / 3e9), rtol=1e-5)


@pytest.mark.parametrize("config", [IMPALAConfig, A2CConfig, ReinforceConfig])
@pytest.mark.parametrize("name", ["rmsprop", "adam"])
def test_epsilon_is_a_setting(config, name):
    spec = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
    moved = []
    for epsilon in (1e-12, 1e-2):
        settings = config(NetworkConfig(hidden_sizes=()), optimizer=name, optimizer_epsilon=epsilon)
        agent = settings.make(spec)
        params = agent.initial_params(jax.random.PRNGKey(0))
        grads = jax.tree.map(lambda x: np.full_like(x, 1e-3), params)
        after, *_ = agent.apply_gradients(params, agent.initial_learner_state(params), grads)
        step = jax.tree.map(lambda a, b: np.abs(a - b).mean(), params, after)
        moved.append(np.mean(jax.tree.leaves(step)) / settings.learning_rate)
    root = 1e-3 / (1e-6 + 1e-2) ** 0.5 if name == "rmsprop" else 1e-3 / (1e-3 + 1e-2)
    np.testing.assert_allclose(moved, [1.0, root], rtol=0.02)
    for wrong in (-1.0, 0.0):  # of a gradient of 0 nothing would remain to divide by
        with pytest.raises(ConfigError, match="optimizer_epsilon"):
            config(optimizer_epsilon=wrong)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_updates_equal_optaxs_with_its_own_count(epsilon):
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(20, 3)).astype(np.float32)
    other = optax.rmsprop(RATE, decay=0.99, eps=epsilon, bias_correction=True)
    state = other.init(PARAMS)
    for grad, update in zip(grads, steps(grads, epsilon=epsilon), strict=True):
        want, state = other.update({"w": jnp.asarray(grad)}, state, PARAMS)
        np.testing.assert_allclose(update, want["w"], rtol=1e-5)


@pytest.mark.parametrize("norm", [None, 1.0])
def test_a_state_saved_by_uncorrected_rmsprop_loads(tmp_path, norm):
    rate = annealed(RATE, None)
    before = optax.rmsprop(rate, decay=0.99, eps=1e-5)
    if norm is not None:
        before = optax.chain(optax.clip_by_global_norm(40.0), before)
    _, saved = before.update({"w": jnp.ones(3)}, before.init(PARAMS), PARAMS)
    save_nest(tmp_path / "learner.npz", saved)
    optimizer = make_optimizer(rate, norm, "rmsprop")
    like = jax.eval_shape(optimizer.init, PARAMS)
    loaded = load_nest(tmp_path / "learner.npz", like, "learner state")
    for old, new in zip(jax.tree.leaves(saved), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(old, new)
    updates, _ = optimizer.update({"w": jnp.full(3, 0.5)}, loaded, PARAMS, count=1)
    average = (0.99 * 0.01 + 0.01 * 0.25) / (1 - 0.99**2)
    np.testing.assert_allclose(updates["w"], -RATE * 0.5 / (average + 1e-5) ** 0.5, rtol=1e-5)


@pytest.mark.parametrize("norm", [None, 1.0])
@pytest.mark.parametrize("updates", [None, 10])
@pytest.mark.parametrize("sgd", [False, True])
def test_a_state_saved_by_adam_of_a_constant_rate_loads(tmp_path, norm, updates, sgd):
    """It lacked the count of the rate's updates, which is Adam's."""
    labels = {"w": "first", "b": "second"}
    first = {"first": ComponentConfig(optimizer="sgd")} if sgd else {}
    components = Components(lambda params: labels, RATE, updates, first)
    optimizer = make_optimizer(annealed(RATE, updates), norm, components=components)
    params = {"w": jnp.zeros(3), "b": jnp.ones(2)}
    now = optimizer.init(params)
    for _ in range(3):
        _, now = optimizer.update(params, now, params)
    *clip, (direction, _) = [now] if norm is None else now
    before = (*clip, (direction, optax.EmptyState())) if clip else (direction, optax.EmptyState())
    assert len(jax.tree.leaves(before)) == len(jax.tree.leaves(now)) - 1
    save_nest(tmp_path / "learner.npz", {"opt_state": before})
    like = {"opt_state": jax.eval_shape(optimizer.init, params)}
    loaded = load_nest(tmp_path / "learner.npz", like, "learner state")
    jax.tree.map(np.testing.assert_array_equal, loaded, {"opt_state": now})


def test_the_average_is_right_when_the_count_of_updates_has_reached_its_end():
    (update,) = steps([np.full(3, 0.5, np.float32)], start=2**31 - 1)
    np.testing.assert_allclose(update, -RATE * 0.5 / (0.01 * 0.25 + 1e-5) ** 0.5, rtol=1e-4)
