"""Schedules of exploration by hand: their shapes, by steps and by updates, and users' own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.action_noise import NoiseSchedule, noisy_action
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule, explore_legal
from distrl.agents.networks import NetworkConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.learner import Learner
from distrl.learning.random_batches import random_batch
from distrl.saved.plain_settings import decode, encode
from distrl.specs import EnvironmentSpec
from distrl.types import Sample

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
CONTINUOUS = SPEC._replace(action=dm_specs.BoundedArray((2,), np.float32, -1, 1))
KEY = np.array([0, 5], np.uint32)
SMALL = NetworkConfig(hidden_sizes=(8,))
SHAPES = {
    "linear": ({}, [1.0, 0.775, 0.55, 0.325, 0.1, 0.1]),
    "exponential": (
        {"shape": "exponential"},
        [1.0, 0.1**0.25, 0.1**0.5, 0.1**0.75, 0.1, 0.1],
    ),
    "piecewise": (
        {"shape": "piecewise", "at": (0.25, 0.5), "values": (0.5, 0.3)},
        [1.0, 0.5, 0.3, 0.2, 0.1, 0.1],
    ),
    "own": (
        {"function": lambda share: 1 / (1 + 4 * share)},
        [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6],
    ),
}
COUNTS = [0, 100, 200, 300, 400, 500]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_by_hand(shape):
    settings, want = SHAPES[shape]
    by_steps = EpsilonSchedule(1.0, 0.1, steps=400, **settings)
    got = [by_steps.in_params({"epsilon": np.float32(7)}, n)["epsilon"] for n in COUNTS]
    assert {type(value) for value in got} == {np.float32}
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert float(by_steps.initial()) == 1
    assert by_steps.after_updates(jnp.int32(9), np.float32(0.7)) == np.float32(0.7)
    by_updates = EpsilonSchedule(1.0, 0.1, updates=400, **settings)
    after = jax.jit(by_updates.after_updates)
    got = [after(jnp.int32(n), np.float32(7)) for n in COUNTS]
    assert {value.dtype for value in got} == {np.dtype(np.float32)}
    np.testing.assert_allclose(got, want, rtol=1e-6)
    params = {"epsilon": np.float32(0.7)}
    assert by_updates.in_params(params, 100) is params


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"shape": "cosine"},
            "shape: expected one of linear, exponential, piecewise; got 'cosine'",
        ),
        ({"shape": "exponential", "end": 0.0}, "both must be above 0"),
        ({"shape": "piecewise"}, "as many values as shares"),
        ({"shape": "piecewise", "at": (0.5,), "values": (0.1, 0.2)}, "as many values as shares"),
        ({"shape": "piecewise", "at": (0.5, 0.5), "values": (0.1, 0.2)}, "rise between 0 and 1"),
        ({"shape": "piecewise", "at": (1.0,), "values": (0.1,)}, "rise between 0 and 1"),
        ({"shape": "piecewise", "at": (0.5,), "values": (2.0,)}, "numbers from 0 to 1"),
        ({"at": (0.5,), "values": (0.1,)}, "are for shape=piecewise, not for linear"),
        ({"function": 0.5}, "expected a function"),
        ({"function": lambda share: 2.0}, r"function: expected a number from 0 to 1, got 2.0 for "),
        ({"function": lambda share: -share}, r"got -0.25 for share 0.25"),
        ({"function": lambda share: share * np.nan}, "got nan for share 0"),
        ({"function": lambda: 0.5}, "function: it must give a number from 0 to 1 .*TypeError"),
        ({"function": lambda share: [0.5]}, r"got \[0.5\] for share 0"),
        ({"function": lambda share: float(np.exp(-share)), "updates": 9}, "JAX can trace it"),
        ({"function": lambda share: jnp.ones(3), "updates": 9}, r"got shape \[3\]"),
        ({"steps": 0}, "steps: expected a whole number"),
        ({"updates": 3_000_000_000}, r"updates: expected at most 2\*\*30 updates, got 3000000000"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=rf"agent\.epsilon.*{message}"):
        EpsilonSchedule(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoiseSchedule("pink"), "exploration.kind: expected one of gaussian, uniform"),
        (lambda: NoiseSchedule(end=-1.0), "exploration.end: expected a number of at least 0"),
        (lambda: NoiseSchedule(explore=1), "exploration.explore: expected a function"),
        (
            lambda: TD3Config(
                exploration_noise=0.0, exploration=NoiseSchedule(shape="exponential")
            ),
            "both must be above 0",
        ),
        (lambda: DQNConfig(explore=1), "agent.explore: expected a function"),
    ],
)
def test_noise_that_cannot_work_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_functions_may_be_of_any_kind_and_leave_their_range_later():
    for function in (
        lambda share: 1 - share,
        lambda share: float(np.exp(-share)),
        lambda share: jnp.exp(-share),
        lambda share: float(jnp.exp(-share)),
    ):
        assert float(EpsilonSchedule(function=function).initial()) == 1.0
    schedule = EpsilonSchedule(function=lambda share: jnp.exp(-share), updates=10)
    assert float(schedule.after_updates(10, 0.0)) == pytest.approx(np.exp(-1.0))


@pytest.mark.parametrize(
    ("explore", "message"),
    [
        (lambda rng, values: values, "must take .*rng, values .* in JAX; TypeError: "),
        (lambda rng, values, epsilon: np.argmax(np.asarray(values), -1), "in JAX; Tracer"),
        (lambda rng, values, epsilon: jnp.argmax(values), r"integers \[4\], and gives int32"),
        (lambda rng, values, epsilon: values[:, 0], r"and gives float32 \[4\]"),
        (lambda rng, values, epsilon: None, "and gives None"),
    ],
)
def test_exploration_of_ones_own_that_cannot_work_is_refused(explore, message):
    for config in (DQNConfig(SMALL, explore=explore), R2D2Config(explore=explore)):
        with pytest.raises(ConfigError, match=rf"^agent\.explore: .*{message}"):
            config.make(SPEC)


@pytest.mark.parametrize("legal", [None, np.asarray([[True, False, True]] * 4)])
def test_the_best_action_is_taken_where_ones_own_exploration_gives_none(legal):
    values = np.asarray([[3.0, 9.0, 1.0]] * 4, np.float32)
    best = 1 if legal is None else 0

    def explore(rng, values, epsilon):
        return jnp.asarray([2, 3, -1, 1])

    action = explore_legal(explore, KEY, values, 0.1, legal)
    np.testing.assert_array_equal(action, [2, best, best, 1 if legal is None else 0])


def test_settings_are_saved():
    for settings in (
        EpsilonSchedule(shape="piecewise", at=(0.1,), values=(0.2,)),
        TD3Config(exploration=NoiseSchedule("uniform", end=0.01, shape="exponential")),
    ):
        assert decode(encode(settings)) == settings
    # A file that is older than these settings.
    old = encode(DDPGConfig())
    for name in ("exploration", "epsilon"):
        fields = old["fields"][name]["fields"]
        for newer in ("shape", "at", "values", "function"):
            del fields[newer]
    assert decode(old) == DDPGConfig()


class Batches:
    """Batches of a table into which 100 steps more were inserted before each."""

    is_prioritized = False

    def __init__(self, agent):
        self._batch = random_batch(agent, 1, 4)

    def make_dataset(self, timeout):
        inserts = 0
        while True:
            inserts += 100
            yield Sample(self._batch, np.zeros(4, np.uint64), inserts)


def test_noise_falls_with_steps_is_reported_and_resumes():
    schedule = NoiseSchedule(end=0.1, steps=400)
    agent = TD3Config((8,), exploration_noise=0.5, exploration=schedule).make(CONTINUOUS)
    learner = Learner(agent, Batches(agent), seed=0)
    assert learner.variables[1]["noise"] == np.float32(0.5)
    for want in (0.4, 0.3):
        learner.step()
        np.testing.assert_allclose(learner.take_report()["noise"], want, rtol=1e-6)
        np.testing.assert_allclose(learner.variables[1]["noise"], want, rtol=1e-6)
    resumed = Learner(agent, Batches(agent), seed=1)
    resumed.restore(learner.state())
    np.testing.assert_allclose(resumed.variables[1]["noise"], 0.3, rtol=1e-6)
    resumed.update(Sample(learner._replay._batch, np.zeros(4, np.uint64), 300))
    np.testing.assert_allclose(resumed.variables[1]["noise"], 0.2, rtol=1e-6)


def test_noise_falls_with_updates():
    schedule = NoiseSchedule(end=0.1, updates=4, shape="exponential")
    agent = DDPGConfig((8,), exploration_noise=1.6, exploration=schedule).make(CONTINUOUS)
    learner = Learner(agent, Batches(agent), seed=0)
    got = []
    for _ in range(5):
        learner.step()
        got.append(float(learner.variables[1]["noise"]))
    np.testing.assert_allclose(got, [0.8, 0.4, 0.2, 0.1, 0.1], rtol=1e-6)


def test_constant_noise_is_no_parameter():
    params = TD3Config((8,)).make(CONTINUOUS).initial_params(KEY)
    assert sorted(params) == ["critics", "epsilon", "policy"]


def test_uniform_noise():
    action = np.zeros((10_000, 2), np.float32)
    noise = np.asarray(noisy_action(KEY, action, 0.3, 0.0, "uniform"))
    assert -0.3 <= noise.min() < -0.299
    assert 0.299 < noise.max() <= 0.3
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.006)
    np.testing.assert_allclose(noise.std(axis=0), 0.3 / 3**0.5, rtol=0.02)


def step(spec, n):
    timestep = specs.zeros(specs.timestep_struct(spec), n)
    return timestep._replace(env_id=np.arange(n, dtype=np.int32), env_info=())


def test_exploration_of_ones_own():
    def worst(rng, values, epsilon):
        assert rng.shape == (2,)
        return jnp.where(epsilon > 0.5, jnp.argmin(values, axis=-1), jnp.argmax(values, axis=-1))

    timestep = step(SPEC, 5)
    timestep = timestep._replace(observation=np.eye(5, 4, dtype=np.float32))
    config = R2D2Config(NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4), explore=worst)
    for agent in (DQNConfig(SMALL, explore=worst).make(SPEC), config.make(SPEC)):
        params, state = agent.initial_params(KEY), agent.initial_state(5)
        outputs, _ = agent.network.step(params["network"], timestep, state, None)
        values = agent.values(outputs)
        output, _ = agent.actor_step(KEY, params, timestep, state)
        np.testing.assert_array_equal(output.action, values.argmin(axis=-1))
        params = {**params, "epsilon": np.float32(0)}
        output, _ = agent.actor_step(KEY, params, timestep, state)
        np.testing.assert_array_equal(output.action, values.argmax(axis=-1))


def test_noise_of_ones_own():
    schedule = NoiseSchedule(
        end=0.0, explore=lambda rng, action, noise, epsilon: action * 0 + noise
    )
    agent = TD3Config((8,), exploration_noise=0.25, exploration=schedule).make(CONTINUOUS)
    params = agent.initial_params(KEY)
    output, _ = agent.actor_step(KEY, params, step(CONTINUOUS, 3), ())
    np.testing.assert_array_equal(output.action, np.full((3, 2), 0.25, np.float32))
    params = agent.with_env_steps(params, 50_000)
    output, _ = agent.actor_step(KEY, params, step(CONTINUOUS, 3), ())
    np.testing.assert_array_equal(output.action, np.full((3, 2), 0.125, np.float32))
