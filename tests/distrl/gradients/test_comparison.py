"""A loss or transform of one's own is refused if shares do not give the batch's gradients."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from distrl import envs
from distrl.agents.a2c import A2CConfig
from distrl.agents.agent import Agent
from distrl.agents.losses import batch_share
from distrl.agents.losses.means import mean_over
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.gradients.comparison import check_own_loss
from distrl.testing import CountingEnvironment
from distrl.transforms import RewardScale, Transform, TransformedAgent
from distrl.types import StepType
from tests.support.product_agent import ProductAgent, ProductConfig

SPEC = PythonEnvironment(CountingEnvironment, "counting").spec()


class OwnLoss(ProductAgent):
    """A ProductAgent whose error is averaged by a function of the real transitions and the key."""

    def __init__(self, average):
        super().__init__(ProductConfig(), SPEC)
        self._average = average

    def compute_gradients(self, params, learner_state, batch):
        real = batch.timestep.step_type[:-1] != StepType.LAST

        def loss(params):
            made = params["torso/~/linear_0"]["w"][0] * params["head"]["w"][0]
            return self._average(jnp.square(made - batch.timestep.observation[:-1, :, 0]), real)

        return jax.grad(loss)(params), {}


def own_mean(x, real):
    return jnp.sum(jnp.where(real, x, 0)) / jnp.maximum(jnp.sum(real), 1)


def mean_of_shares(x, real):
    return mean_over(real)(x)


def plain_mean(x, real):
    return jnp.mean(x)


def drawn(draw):
    return lambda x, real: mean_over(real)(x * draw(jax.random.PRNGKey(0), x.shape))


def own_draw(rng, shape):
    return jax.random.uniform(rng, shape)


def shared_draw(rng, shape):
    return batch_share.draw(jax.random.uniform, rng, shape)


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("average", [mean_of_shares, plain_mean, drawn(shared_draw)])
def test_means_of_the_batch_are_accepted(average, length):
    check_own_loss(OwnLoss(average), length)


@pytest.mark.parametrize("average", [own_mean, drawn(own_draw)])
def test_means_of_a_share_are_refused(average):
    with pytest.raises(ConfigError, match=r"shares of a batch give other .* of OwnLoss must take"):
        check_own_loss(OwnLoss(average), 7)


def test_a_loss_that_is_no_number_on_random_data_is_accepted():
    check_own_loss(OwnLoss(lambda x, real: own_mean(jnp.sqrt(-1 - jnp.abs(x)), real)), 7)


def test_the_agent_of_the_tutorial_has_workers():
    path = Path(__file__).parents[3] / "examples/own_agent.py"
    spec = importlib.util.spec_from_file_location("own_agent_of_the_tutorial", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check_own_loss(module.OwnConfig().make(envs.make("CartPole-v1").spec()), 5)


def test_the_packages_own_agents_are_not_compiled(monkeypatch):
    agent: Agent = PPOConfig().make(envs.make("CartPole-v1").spec())
    monkeypatch.setattr(type(agent), "initial_params", None)
    check_own_loss(agent, 5)
    check_own_loss(TransformedAgent(agent, [RewardScale(2.0)], agent.env_spec), 5)


@dataclasses.dataclass(frozen=True)
class Drawn(Transform):
    """For learning only: multiplies the rewards by random numbers."""

    draw = staticmethod(shared_draw)
    name = "drawn"
    changes = frozenset({"reward"})

    def unroll(self, statistics, state, rng, batch):
        reward = batch.timestep.reward
        reward = reward * self.draw(rng, reward.shape)
        return batch._replace(timestep=batch.timestep._replace(reward=reward))


class DrawnForAShare(Drawn):
    draw = staticmethod(own_draw)


def test_a_transform_of_ones_own_is_compared():
    spec = envs.make("CartPole-v1").spec()
    agent = A2CConfig(NetworkConfig(hidden_sizes=(4,))).make(spec)
    check_own_loss(TransformedAgent(agent, [Drawn()], spec), 5)
    with pytest.raises(ConfigError, match="largest: the transform drawn must make of each unroll"):
        check_own_loss(TransformedAgent(agent, [DrawnForAShare()], spec), 5)


def test_an_agent_of_ones_own_is_compared_behind_transforms():
    agent = TransformedAgent(OwnLoss(own_mean), [RewardScale(2.0)], SPEC)
    with pytest.raises(ConfigError, match="largest: the loss of OwnLoss must take"):
        check_own_loss(agent, 7)
    check_own_loss(TransformedAgent(OwnLoss(mean_of_shares), [RewardScale(2.0)], SPEC), 7)
