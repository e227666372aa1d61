"""Settings of the user's for JAX that would change, or end, what distrl computes."""

import types

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents import compiling
from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.structs import extras_struct, params_struct
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.policy import Policy
from distrl.runtime.jax_settings import use_own_settings
from distrl.snapshot_source import SnapshotSource
from distrl.specs import EnvironmentSpec
from distrl.task import make_agent
from distrl.testing import CountingEnvironment


class TwoActions(CountingEnvironment):
    def action_spec(self):
        return dm_env.specs.DiscreteArray(2, np.int32, "action")


@pytest.fixture(scope="module")
def sampled():
    """A function that returns actions of a policy that samples."""
    agent = make_agent(A2CConfig(), (), PythonEnvironment(TwoActions).spec())
    params = agent.initial_params(jax.random.PRNGKey(0))

    def sample():
        policy = Policy(agent, 1, params, greedy=False, seed=3)
        return [policy(np.ones((4, 4), np.float32)).tolist() for _ in range(5)]

    return sample


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.default_prng_impl("rbg"),
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.transfer_guard("disallow"),
    ],
)
def test_a_policy_acts_the_same_under_settings_of_the_users(setting, sampled):
    before = sampled()
    with setting():
        assert sampled() == before


def test_a_process_of_its_own_has_its_own_settings():
    before = jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_rank_promotion", "raise")
    try:
        use_own_settings()
        assert jax.config.jax_numpy_rank_promotion == "allow"
    finally:
        jax.config.update("jax_numpy_rank_promotion", before)


def test_networks_are_float32_where_the_user_enables_x64():
    observation = {
        "cell": dm_specs.BoundedArray((2,), np.int32, 0, 3),
        "image": dm_specs.BoundedArray((5, 5, 2), np.uint8, 0, 7),
        "kind": dm_specs.DiscreteArray(3, np.int32),
    }
    network = NetworkConfig(core="lstm", one_hot_integers=True)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        for action in (
            dm_specs.DiscreteArray(2, np.int32),
            dm_specs.BoundedArray((2,), np.int32, 0, 2),
        ):
            agent = PPOConfig(network=network).make(EnvironmentSpec(observation, action))
            leaves = jax.tree.leaves((params_struct(agent), extras_struct(agent)))
            assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize(
    "start",
    [
        lambda: compiling.start_backend([]),
        lambda: Policy(None, 0, {}),
        lambda: SnapshotSource(None, 1, 0, True),
    ],
)
def test_a_platform_that_is_missing_is_named(monkeypatch, start):
    def fail():
        raise AssertionError

    fake = types.SimpleNamespace(
        devices=fail, config=types.SimpleNamespace(jax_platforms="cuda"), tree=jax.tree
    )
    monkeypatch.setattr(compiling, "jax", fake)
    monkeypatch.setattr(compiling, "_started", False)
    with pytest.raises(ConfigError, match=r"^JAX_PLATFORMS=cuda: JAX has no such device here; "):
        start()
