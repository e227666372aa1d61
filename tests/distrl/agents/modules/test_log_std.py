"""A Gaussian policy's standard deviation returns from beyond its bounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.a2c import A2CConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.modules.normals import MAX_LOG_STD, MIN_LOG_STD, clip_with_return
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.sac import MAX_LOG_STD as SACS_MAX
from distrl.agents.sac import SACConfig
from distrl.random_keys import numbered, root
from distrl.specs import EnvironmentSpec
from distrl.types import StepType
from tests.support.selection import full

SPEC = EnvironmentSpec(
    dm_specs.Array((1,), np.float32), dm_specs.BoundedArray((1,), np.float32, -1, 1)
)
B = 256


@pytest.mark.parametrize(
    ("x", "descends", "ascends"),
    [(0.5, 3, -3), (2.0, 3, 0), (2.5, 3, 0), (-1.0, 0, -3), (-9.0, 0, -3)],
)
def test_only_gradients_that_lead_back_pass_a_bound(x, descends, ascends):
    """A positive gradient makes a descent lead downwards."""
    clip = lambda x, slope: slope * clip_with_return(x, -1.0, 2.0)  # noqa: E731
    assert float(clip(x, 1.0)) == np.clip(x, -1, 2)
    assert float(jax.grad(clip)(x, 3.0)) == descends
    assert float(jax.grad(clip)(x, -3.0)) == ascends


@pytest.mark.parametrize("config", [A2CConfig(), full(IMPALAConfig()), full(PPOConfig(epochs=1))])
@pytest.mark.parametrize(
    ("start", "reward"),
    [
        (MAX_LOG_STD + 1e-4, lambda x: -(x**2)),
        full(MIN_LOG_STD - 1e-4, lambda x: 1e3 * (x - x.mean()) ** 2),
    ],
)
def test_a_bandits_policy_returns_from_beyond_the_bound(config, start, reward):
    """The reward is least, or most, for what is far from the mean."""
    network = NetworkConfig(hidden_sizes=(4,))
    agent = dataclasses.replace(config, network=network, learning_rate=0.01, entropy_cost=0.0).make(
        SPEC
    )
    params = agent.initial_params(root(0))
    params["policy"]["log_std"] = jnp.full(1, start, jnp.float32)
    state = agent.initial_learner_state(params)
    act, update = jax.jit(agent.actor_step), jax.jit(agent.learner_step)
    struct = specs.trajectory_struct(SPEC, {"log_prob": dm_specs.Array((), np.float32)}, ())
    batch = specs.zeros(struct, 2, B)
    kinds = np.repeat(np.array([[StepType.FIRST], [StepType.LAST]], np.int8), B, axis=1)
    for number in range(20):
        now = jax.tree.map(lambda x: x[0], batch.timestep)
        output, _ = act(numbered(root(1), number), params, now._replace(env_id=()), ())
        rewards = np.zeros((2, B), np.float32)
        rewards[1] = reward(np.asarray(output.action))[:, 0]
        timestep = batch.timestep._replace(step_type=kinds, reward=rewards)
        whole = batch._replace(
            timestep=timestep,
            action=jnp.stack([output.action, output.action]),
            extras={"log_prob": jnp.stack([output.extras["log_prob"]] * 2)},
            stream_id=np.arange(B, dtype=np.int32),
            life=np.zeros(B, np.int32),
            probability=np.ones(B, np.float32),
        )
        params, state, _ = update(params, state, jax.tree.map(jnp.asarray, whole))
    moved = float(params["policy"]["log_std"][0]) - start
    assert moved * (-1 if start > 0 else 1) > 0.05


def test_sacs_deviations_that_depend_on_the_state_return_too():
    agent = SACConfig((4,)).make(SPEC)
    policy = agent.initial_params(root(0))["policy"]
    policy["policy_head"]["b"] = jnp.array([0.0, SACS_MAX + 1.0])

    def slope(sign):
        total = lambda policy: sign * agent.normal(policy, np.ones((5, 1))).log_std.sum()  # noqa: E731
        return float(jax.grad(total)(policy)["policy_head"]["b"][1])

    assert slope(1.0) == 5 and slope(-1.0) == 0
