"""A2C: the advantage actor-critic, one update a batch; without lag, the plain policy gradient.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, in its synchronous form.
"""

import dataclasses
from typing import ClassVar

import jax

from distrl.agents.actor_critic import Advantages, PolicyGradient, check_on_policy, check_settings
from distrl.agents.components import ByName, components_field
from distrl.agents.defaults import (
    Defaults,
    has_grid,
    has_pixels,
    is_discrete,
    queue,
    reward_transforms,
)
from distrl.agents.losses.means import normalize
from distrl.agents.losses.returns import gae
from distrl.agents.networks import NetworkConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.field_checks import check_flag, check_number
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class A2CConfig:
    """A2C's settings. Losses are means over the real transitions of a batch.

    It does not correct for lag between actors and learner: with much lag, take IMPALA, which is
    the same otherwise, or PPO.

    Attributes:
      network: torso, core and sizes.
      discount: gamma, for each step, in [0, 1].
      gae_lambda: lambda of generalised advantage estimation, in [0, 1]. 1: advantages are from
        n-step returns, which sum rewards up to the end of the episode or unroll; less: from their
        exponentially weighted mean.
      normalize_advantages: scale advantages to mean 0 and standard deviation 1 over the batch.
        The divisor is at least a hundredth of the root mean square of the values' targets, so that
        noise stays small where all actions are about equally good.
      learning_rate: the optimiser's learning rate.
      anneal_updates: updates over which the learning rate falls linearly to 0; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      optimizer: "rmsprop" (decay 0.99, corrected for its bias at the start) or "adam".
      optimizer_epsilon: added to the mean square of a gradient, under the root (RMSProp), or to the
        root (Adam). With 1e-12 Hopper-v4 fell from 1,000 to 32.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the value loss, which is half the mean squared error. 0, with a
        gae_lambda of 1 and long unrolls, gives REINFORCE with a random baseline.
      components: settings of the optimiser by component of the network, which are torso, core,
        policy_head and value_head; see `ComponentConfig`.
    """

    on_policy: ClassVar[bool] = True

    network: NetworkConfig = NetworkConfig()
    discount: float = 0.99
    gae_lambda: float = 0.95
    normalize_advantages: bool = False
    learning_rate: float = 1e-3
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    optimizer: str = "rmsprop"
    optimizer_epsilon: float = 1e-5
    max_gradient_norm: float | None = 0.5
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    components: ByName = components_field("actor_critic")

    def __post_init__(self) -> None:
        check_settings(self)
        check_number(self, "gae_lambda", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_flag(self, "normalize_advantages")

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError for tables that A2C cannot learn from."""
        check_on_policy("A2C", replay)

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "A2CConfig":
        """Returns settings that suit an environment.

        Sources: with pixels openai/baselines' baselines/a2c/a2c.py, but for the weight of the
        value loss, which is rl-baselines3-zoo's (hyperparams/a2c.yml, Atari: 0.25 of the squared
        error, as here half of its half); for continuous actions the latter's learning rate.
        """
        if has_pixels(env_spec):
            return cls(gae_lambda=1.0, learning_rate=7e-4, anneal_over_budget=True)
        if has_grid(env_spec):
            return cls(NetworkConfig(one_hot_integers=True), optimizer_epsilon=1e-12)
        if is_discrete(env_spec):
            return cls()
        return cls(learning_rate=7e-4, entropy_cost=0.0)

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        A batch is one unroll of every stream, as for PPO, but short, since it makes one update:
        the shorter the more updates there are, which continuous actions take.
        """
        if has_pixels(env_spec):
            num_envs, unroll_length = 8, 5
        elif is_discrete(env_spec):
            num_envs, unroll_length = 8, 16
        else:
            num_envs, unroll_length = 4, 8
        actors = actors or ActorsConfig(num_envs=num_envs)
        learner = learner or LearnerConfig(batch_size=actors.num_streams)
        replay = queue(actors, learner, unroll_length)
        return Defaults(actors, learner, replay, reward_transforms(env_spec))

    def make(self, env_spec: EnvironmentSpec) -> "A2C":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return A2C(self, env_spec)


class A2C(PolicyGradient):
    """See A2CConfig and PolicyGradient."""

    config: A2CConfig

    def advantages(self, timestep: TimeStep, value: jax.Array, log_rho: jax.Array) -> Advantages:
        """See `PolicyGradient`: generalised advantages, without a correction for lag."""
        config = self.config
        discount = config.discount * timestep.discount
        columns = (timestep.step_type, timestep.reward, discount, value)
        advantage = gae(*columns, config.gae_lambda)
        target = jax.lax.stop_gradient(advantage + value[:-1])
        logs = {"advantage": advantage}
        if config.normalize_advantages:
            advantage = normalize(advantage, target, timestep.step_type[:-1] != StepType.LAST)
        return Advantages(advantage, target - value[:-1], logs)
