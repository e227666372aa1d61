"""The log-probability and the distribution that a policy gives with an action."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.impala import IMPALAConfig
from distrl.agents.modules.normals import NormalParams, SquashedNormal
from distrl.agents.networks import NetworkConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError, SpecError
from distrl.policy import Policy
from distrl.random_keys import root
from distrl.specs import EnvironmentSpec
from distrl.task import make_agent
from distrl.transforms import ObservationClip

OBSERVATION = dm_specs.Array((3,), np.float32)
SPEC = EnvironmentSpec(OBSERVATION, dm_specs.DiscreteArray(4, np.int32))
CONTINUOUS = EnvironmentSpec(OBSERVATION, dm_specs.BoundedArray((2,), np.float32, -2, 6))
SEEN = np.random.default_rng(0).normal(size=(5, 6, 3)).astype(np.float32)


def make(config, spec=SPEC, transforms=(), **settings):
    agent = make_agent(config, transforms, spec)
    return Policy(agent, 1, agent.initial_params(root(1)), **settings)


def test_a_policy_of_logits_and_its_memory():
    config = IMPALAConfig(network=NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=5))
    transforms = (ObservationClip(1.0),)
    plain, policy, other = (
        make(config, SPEC, transforms, batch_size=6, greedy=False) for _ in range(3)
    )
    for seen in SEEN:
        action = plain(seen)
        output = policy.act(seen)
        np.testing.assert_array_equal(output.action, action)
        logits = output.parameters["logits"]
        np.testing.assert_allclose(np.exp(logits).sum(-1), 1, rtol=1e-5)
        want = np.take_along_axis(logits, action[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(output.log_prob, want, rtol=1e-6)
        assert output.parameters["value"].shape == (6,)
        # Actions that somebody else has taken, in the same memory.
        again = other.act(seen, action=action)
        np.testing.assert_array_equal(again.log_prob, output.log_prob)
        np.testing.assert_array_equal(again.action, action)


def test_action_values_and_their_epsilon():
    config = DQNConfig(network=NetworkConfig(hidden_sizes=(8,)), epsilon=EpsilonSchedule(0.4, 0.4))
    policy = make(config, greedy=False)
    for action in range(4):
        output = policy.act(SEEN[0, 0], action=np.int64(action))
        values, probabilities = output.parameters["values"], output.parameters["probabilities"]
        want = np.where(np.arange(4) == values.argmax(), 0.7, 0.1)
        np.testing.assert_allclose(probabilities, want, rtol=1e-6)
        np.testing.assert_allclose(output.log_prob, np.log(want[action]), rtol=1e-6)


def test_continuous_actions_have_densities_in_their_own_units():
    actions = SquashedNormal(CONTINUOUS.action)
    normal = NormalParams(jnp.array([0.3, -0.5]), jnp.array([-1.0, 0.2]))
    action, want = actions.sample_with_log_prob(root(0), normal)
    np.testing.assert_allclose(actions.log_prob(normal, action), want, rtol=1e-4)
    grid = np.linspace(-2, 6, 400, dtype=np.float32)
    points = np.stack(np.meshgrid(grid, grid), axis=-1)
    total = np.exp(jax.jit(actions.log_prob)(normal, points)).sum() * (grid[1] - grid[0]) ** 2
    assert abs(total - 1) < 0.02


@pytest.mark.parametrize("config", [IMPALAConfig, SACConfig], ids=["impala", "sac"])
def test_a_policy_of_normals(config):
    output = make(config(), CONTINUOUS).act(SEEN[0, 0])
    assert (output.parameters["mean"].shape, output.parameters["std"].shape) == ((2,), (2,))
    assert np.isfinite(output.log_prob)
    if config is IMPALAConfig:
        mean, std = output.parameters["mean"], output.parameters["std"]
        np.testing.assert_allclose(output.action, mean, rtol=1e-5)  # greedy: the mode
        np.testing.assert_allclose(output.log_prob, -np.log(std * np.sqrt(2 * np.pi)).sum(), 1e-4)


def test_what_has_none_is_refused_in_one_line():
    policy = make(TD3Config(), CONTINUOUS)
    assert policy(SEEN[0, 0]).shape == (2,)
    with pytest.raises(ConfigError, match="the actions of TD3 have no known distribution"):
        policy.act(SEEN[0, 0])
    with pytest.raises(SpecError, match="action"):
        make(TD3Config(), CONTINUOUS).act(SEEN[0, 0], action=np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (9, "action: expected whole numbers from 5 to 8, got 9"),
        (np.int32(4), "action: expected whole numbers from 5 to 8, got 4"),
        ([5], r"action: expected int32\[1\], got int64\[1, 1\]|got int32\[1, 1\]"),
        (5.0, r"action: expected int32\[1\], got float64\[1\]"),
        (5 + 2**32, r"action: expected int32\[1\], got int64\[1\]"),  # 5, if it wrapped
        ("left", r"action: expected int32\[1\], got"),
    ],
)
def test_only_an_action_that_exists_is_judged(action, message):
    config = DQNConfig(network=NetworkConfig(hidden_sizes=(8,)))
    policy = make(config, SPEC._replace(action_start=5))
    assert policy.act(SEEN[0, 0], action=8).action == 8
    with pytest.raises(SpecError, match=message):
        policy.act(SEEN[0, 0], action=action)


def test_actions_of_a_batch_may_be_a_list():
    policy = make(DQNConfig(network=NetworkConfig(hidden_sizes=(8,))))
    actions = [0, 1, 2, 3, 0, 1]
    assert policy.act(SEEN[0], action=actions).action.tolist() == actions
