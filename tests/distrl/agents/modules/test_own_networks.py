"""Torsos, cores and heads of the user's own: what they compute, how they are saved and refused."""

import dataclasses
import pickle
import re

import cloudpickle
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig, make_network
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.random_keys import root
from distrl.saved.plain_settings import ForeignError, encode
from distrl.specs import EnvironmentSpec
from distrl.testing import CountingEnvironment
from distrl.types import StepType

DISCRETE = dm_specs.DiscreteArray(3, np.int32)
CONTINUOUS = dm_specs.BoundedArray((2,), np.float32, -1, 1)
SPEC = EnvironmentSpec(
    {"goal": dm_specs.Array((2,), np.float32), "state": dm_specs.Array((4,), np.float32)}, DISCRETE
)


def torso(observation):
    """Features in Haiku, of a dict."""
    x = jnp.concatenate([observation["goal"], observation["state"]], axis=-1)
    return jax.nn.relu(hk.Linear(5, name="first")(x))


def flax_torso():
    linen = pytest.importorskip("flax.linen")

    class Torso(linen.Module):
        size: int

        @linen.compact
        def __call__(self, observation):
            x = jnp.concatenate([observation["goal"], observation["state"]], axis=-1)
            return linen.relu(linen.Dense(self.size)(linen.Dense(6, name="first")(x)))

    return Torso(5)


def steps(*leading, seed=0):
    rng = np.random.default_rng(seed)
    struct = specs.timestep_struct(SPEC)
    observation = jax.tree.map(
        lambda s: rng.normal(size=(*leading, *s.shape)).astype(np.float32), struct.observation
    )
    return specs.zeros(struct, *leading)._replace(
        observation=observation, step_type=np.full(leading, StepType.MID, np.int8)
    )


def test_a_function_in_haiku_is_the_torso_of_every_algorithm():
    for config in (IMPALAConfig, PPOConfig, DQNConfig, R2D2Config):
        network = config(network=torso).network
        default = config().network
        assert network == dataclasses.replace(default, torso=torso)
    network = make_network(NetworkConfig(torso=torso), SPEC)
    params = network.init(root(0))
    assert set(params) == {"torso/first", "policy_head", "value_head"}
    step = steps(7)
    policy, _, _ = network.step(params, step, ())
    x = np.concatenate([step.observation["goal"], step.observation["state"]], axis=-1)
    first, head = params["torso/first"], params["policy_head"]
    features = np.maximum(x @ first["w"] + first["b"], 0)
    np.testing.assert_allclose(policy, features @ head["w"] + head["b"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [jnp.float16, jnp.bfloat16])
def test_only_a_part_that_says_so_computes_in_half_precision(half):
    def seen(x):
        assert x.dtype == jnp.float32
        return hk.Linear(5)(x).astype(half)

    def core():
        return hk.IdentityCore()

    def heads(x):
        assert x.dtype == jnp.float32
        return hk.Linear(3)(x).astype(half), x[:, 0].astype(half)

    observation = dm_specs.Array((4,), np.float16)
    spec = EnvironmentSpec(observation, DISCRETE)
    timestep = specs.zeros(specs.timestep_struct(spec), 7)
    for more in ({}, {"core": core}, {"heads": heads}):
        network = make_network(NetworkConfig(torso=seen, **more), spec)
        params = jax.eval_shape(network.init, root(0))
        outputs = jax.eval_shape(network.step, params, timestep, network.initial_state(7))
        dtypes = {leaf.dtype for leaf in jax.tree.leaves((params, outputs))}
        assert dtypes == {np.dtype(np.float32)}


def test_inputs_are_chosen_before_the_torso():
    seen = []

    def look(observation):
        seen.append(set(observation))
        return observation["state"]

    network = make_network(NetworkConfig(torso=look, inputs=("state",)), SPEC)
    jax.eval_shape(network.init, root(0))
    assert seen == [{"state"}]


def test_a_module_of_flax_is_a_torso():
    module = flax_torso()
    network = make_network(NetworkConfig(torso=module), SPEC)
    params = network.init(root(0))
    step = steps(7)
    policy, _, _ = network.step(params, step, ())
    inner = {name: params[f"torso/flax/params/{name}"] for name in ("first", "Dense_0")}
    features = module.apply({"params": inner}, step.observation)
    head = params["policy_head"]
    np.testing.assert_allclose(policy, features @ head["w"] + head["b"], rtol=1e-5, atol=1e-6)
    grads = jax.grad(lambda p: network.step(p, step, ())[1].sum())(params)
    assert (grads["torso/flax/params/first"]["kernel"] != 0).any()


def gru():
    return hk.GRU(6)


@pytest.mark.parametrize("kind", ["haiku", "flax"])
def test_a_core_of_ones_own_is_reset_at_the_start_of_episodes(kind):
    core = gru
    if kind == "flax":
        linen = pytest.importorskip("flax.linen")
        core = linen.LSTMCell(6)
    network = make_network(NetworkConfig(hidden_sizes=(4,), core=core), SPEC)
    params = network.init(root(0))
    state = network.initial_state(2)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state))
    assert all(leaf.shape == (2, 6) for leaf in jax.tree.leaves(state))
    batch = steps(4, 2)
    batch.step_type[2, 1] = StepType.FIRST
    _, values, last = jax.jit(network.unroll)(params, batch, state)
    step = jax.jit(network.step)
    for time in range(4):
        start = batch.step_type[time] == StepType.FIRST
        state = jax.tree.map(lambda x: jnp.where(start[:, None], 0, x), state)  # noqa: B023
        _, value, state = step(params, jax.tree.map(lambda x: x[time], batch), state)  # noqa: B023
        np.testing.assert_allclose(values[time], value, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), last, state)


def whole(observation):
    """A policy and a value at once."""
    x = observation["state"]
    return hk.Linear(3, name="policy")(x), hk.Linear(1, name="value")(x)[:, 0]


def same(x):
    return x


def test_heads_of_ones_own_make_a_whole_network():
    agent = IMPALAConfig(network=NetworkConfig(torso=whole, heads=same)).make(SPEC)
    params = jax.eval_shape(agent.initial_params, root(0))
    assert set(params) == {"torso/policy", "torso/value"}
    config = DQNConfig(network=NetworkConfig(heads=lambda x: hk.Linear(3)(x)))
    assert "heads/linear" in jax.eval_shape(config.make(SPEC).network.init, root(0))
    dueling = dataclasses.replace(config, dueling=True)  # has no part in heads of one's own
    plain, other = (
        jax.eval_shape(each.make(SPEC).network.init, root(0)) for each in (config, dueling)
    )
    assert plain == other
    normal = EnvironmentSpec(SPEC.observation, CONTINUOUS)
    heads = lambda x: ((x[:, :2], 0 * x[:, :2]), x[:, 0])  # noqa: E731
    network = make_network(NetworkConfig(heads=heads), normal)
    params = jax.eval_shape(network.init, root(0))
    policy, value, _ = jax.eval_shape(network.step, params, steps(4), ())
    assert (policy.mean.shape, policy.log_std.shape, value.shape) == ((4, 2), (4, 2), (4,))


def rows_of_numbers(observation):
    return jnp.sum(observation["state"], axis=-1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"torso": rows_of_numbers},
            r"network.torso: rows_of_numbers must return features, float32\[N, F\], got "
            r"float32\[N\]$",
        ),
        ({"torso": same}, r"must return features, .* got \{goal: float32\[N, 2\], state: "),
        (
            {"heads": lambda x: (x[:, :2], x[:, 0])},
            r"must return \(float32\[N, 3\], float32\[N\]\), got \(float32\[N, 2\], float32\[N\]\)",
        ),
        ({"heads": same}, r"must return \(float32\[N, 3\], float32\[N\]\), got float32\[N, 64\]$"),
        ({"core": lambda: hk.Linear(3)}, r"network.core: .* must return an hk.RNNCore, got a Lin"),
    ],
)
def test_wrong_outputs_are_refused_in_one_line(config, message):
    with pytest.raises(ConfigError) as error:
        network = make_network(NetworkConfig(**config), SPEC)
        jax.eval_shape(network.init, root(0))
    # Without what JAX notes about its frames, where Python has notes.
    assert re.search(message, str(error.value)) and "\n" not in str(error.value)


class ThreeActions(CountingEnvironment):
    def action_spec(self):
        return dm_specs.DiscreteArray(3, np.int32)


def test_they_are_refused_when_the_experiment_is_made():
    with pytest.raises(ConfigError, match=r"network\.torso: <lambda> must return features"):
        Experiment(
            PythonEnvironment(ThreeActions),
            IMPALAConfig(network=lambda observation: jnp.zeros(3)),
        )


def of_library(module):
    """Returns what a class in a module of another library makes: it can be called."""
    methods = {"__module__": module, "__call__": lambda self, observation: observation}
    return type("Own", (), methods)()


def test_what_is_no_network_is_refused_in_one_line():
    linen = pytest.importorskip("flax.linen")
    for value, message in [
        (hk.Linear, "got the class Linear: give an instance"),
        (linen.Dense, "got the class Dense: give an instance"),
        (3, "network: expected a NetworkConfig, a function in Haiku, or a module of flax.linen"),
        (of_library("equinox._module"), "got the equinox._module.Own: .* of equinox are not"),
        (of_library("torch.nn.modules.module"), "those of torch are not supported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            IMPALAConfig(network=value)

    class Normalised(linen.Module):
        @linen.compact
        def __call__(self, observation):
            return linen.BatchNorm(use_running_average=True)(observation["state"])

    network = make_network(NetworkConfig(torso=Normalised()), SPEC)
    with pytest.raises(ConfigError, match="variables of the kind batch_stats; only parameters"):
        jax.eval_shape(network.init, root(0))


class DropoutCore(hk.RNNCore):
    def __call__(self, inputs, state):
        return hk.dropout(hk.next_rng_key(), 0.5, inputs), state

    def initial_state(self, batch_size):
        return jnp.zeros((batch_size, 1))


def dropout_core():
    return DropoutCore()


def flax_dropout():
    linen = pytest.importorskip("flax.linen")

    class Torso(linen.Module):
        @linen.compact
        def __call__(self, observation):
            return linen.Dropout(0.5, deterministic=False)(observation)

    return Torso()


@pytest.mark.parametrize("part", ["torso", "core", "heads", "flax"])
def test_random_numbers_are_refused_when_the_experiment_is_made(part):
    def drawing(x):
        return hk.dropout(hk.next_rng_key(), 0.5, hk.Linear(3)(x))

    network = {
        "torso": lambda: NetworkConfig(torso=drawing),
        "core": lambda: NetworkConfig(core=dropout_core),
        "heads": lambda: NetworkConfig(heads=drawing),
        "flax": lambda: NetworkConfig(torso=flax_dropout()),
    }[part]()
    where = "torso" if part == "flax" else part
    with pytest.raises(ConfigError, match=rf"network\.{where}: .* draws random numbers") as error:
        Experiment(PythonEnvironment(ThreeActions), DQNConfig(network=network))
    assert "\n" not in str(error.value)


def test_state_in_haiku_is_refused_when_the_experiment_is_made():
    def averaged(x):
        return hk.ExponentialMovingAverage(0.9)(x)

    message = r"network: torso/exponential_moving_average of your own has state in Haiku"
    with pytest.raises(ConfigError, match=message) as error:
        Experiment(PythonEnvironment(ThreeActions), DQNConfig(network=averaged))
    assert "\n" not in str(error.value)


def test_it_is_saved_by_value_and_never_as_plain_settings():
    with pytest.raises(ForeignError, match=r"test_own_networks\.torso"):
        encode(IMPALAConfig(network=torso))
    module = flax_torso()
    for part in (lambda x: x["state"], module):
        config = pickle.loads(cloudpickle.dumps(IMPALAConfig(network=part)))
        network = config.make(SPEC).network
        assert jax.eval_shape(network.init, root(0))["policy_head"]["w"].shape[1] == 3
