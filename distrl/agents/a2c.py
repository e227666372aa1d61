"""A2C: the advantage actor-critic, one update a batch; without lag, the plain policy gradient.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, in its synchronous form.
"""

import dataclasses

import jax
import jax.numpy as jnp

from distrl.agents.actor_critic import (
    ActorCritic,
    ActorCriticState,
    check_on_policy,
    check_settings,
    gae,
)
from distrl.agents.agent import Logs
from distrl.agents.means import mean_over, normalize
from distrl.agents.networks import NetworkConfig
from distrl.agents.settings import check_number
from distrl.errors import ConfigError
from distrl.replay.buffer import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import Params, StepType, Trajectory


@dataclasses.dataclass(frozen=True)
class A2CConfig:
    """A2C's settings. Losses are means over the real transitions of a batch.

    It does not correct for lag between actors and learner: where there is much of it, take
    IMPALA, which is the same otherwise, or PPO.

    Attributes:
      network: torso, core and sizes.
      discount: gamma, for each step, in [0, 1].
      gae_lambda: in [0, 1]. 1: advantages of n-step returns, which sum rewards up to the
        episode's or the unroll's end; less: of their exponentially weighted mean.
      normalize_advantages: to mean 0 and standard deviation 1 over the batch.
      learning_rate: of the optimiser.
      anneal_updates: the learning rate falls linearly to 0 over so many updates; None: constant.
      optimizer: "rmsprop" (decay 0.99, epsilon 1e-5 under the root) or "adam" (epsilon 1e-5).
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the value loss, which is half the mean squared error. 0 with a
        gae_lambda of 1 and long unrolls leaves REINFORCE with a random baseline.
    """

    network: NetworkConfig = NetworkConfig()
    discount: float = 0.99
    gae_lambda: float = 0.95
    normalize_advantages: bool = False
    learning_rate: float = 3e-3
    anneal_updates: int | None = None
    optimizer: str = "rmsprop"
    max_gradient_norm: float | None = 0.5
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)
        check_number(self, "gae_lambda", lambda x: 0 <= x <= 1, "in [0, 1]")
        if not isinstance(self.normalize_advantages, bool):
            raise ConfigError(
                "agent.normalize_advantages: expected True or False, got "
                f"{self.normalize_advantages!r}"
            )

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Refuses tables that A2C cannot learn from. Raises ConfigError."""
        check_on_policy("A2C", replay)

    def make(self, env_spec: EnvironmentSpec) -> "A2C":
        """The agent for an environment. Raises ConfigError where the two do not fit."""
        return A2C(self, env_spec)


class A2C(ActorCritic):
    """See A2CConfig and ActorCritic."""

    config: A2CConfig

    def compute_gradients(
        self, params: Params, learner_state: ActorCriticState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`."""
        return jax.grad(self.loss, has_aux=True)(params, batch)

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """The loss on one batch, a mean over its real transitions, with what is logged of it."""
        config, distribution = self.config, self.network.distribution
        timestep = batch.timestep
        policy, value, _ = self.network.unroll(params, timestep, batch.state)
        policy, action = jax.tree.map(lambda x: x[:-1], (policy, batch.action))
        real = timestep.step_type[:-1] != StepType.LAST
        mean = mean_over(real)
        error = gae(
            timestep.step_type,
            timestep.reward,
            config.discount * timestep.discount,
            value,
            config.gae_lambda,
        )
        target = jax.lax.stop_gradient(error + value[:-1])
        advantage = normalize(error, real) if config.normalize_advantages else error
        log_prob = distribution.log_prob(policy, action)
        policy_loss = -mean(log_prob * advantage)
        value_loss = 0.5 * mean(jnp.square(target - value[:-1]))
        entropy = mean(distribution.entropy(policy))
        loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        logs = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "value": mean(value[:-1]),
            "advantage": mean(error),
            # Estimated from the actions taken; 0 without lag.
            "kl_behaviour": mean(batch.extras["log_prob"][:-1] - log_prob),
            "real_fraction": jnp.mean(real),
        }
        return loss, logs
