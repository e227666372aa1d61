"""REINFORCE: the policy gradient with the returns of whole episodes.

Williams 1992, https://doi.org/10.1007/BF00992696; with a baseline: Sutton and Barto 2018,
"Reinforcement Learning", section 13.4.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from distrl.agents.actor_critic import Advantages, PolicyGradient, check_on_policy, check_settings
from distrl.agents.components import ByName, components_field
from distrl.agents.defaults import Defaults, episode_queue, has_pixels
from distrl.agents.losses.means import normalize
from distrl.agents.losses.returns import gae
from distrl.agents.networks import NetworkConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.field_checks import check_flag
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class ReinforceConfig:
    """REINFORCE's settings. Losses are means over the transitions of a batch of whole episodes.

    The return of an action is the discounted sum of all rewards that follow it in its episode, or
    in its life where a lost life has a discount of 0. It never bootstraps: an episode that a time
    limit ends is worth what it earned until then. As usual, the gradient lacks the factor
    gamma ** t of an episode's step t. It does not correct for lag between actors and learner.

    Attributes:
      network: torso, core and sizes.
      discount: gamma, for each step, in [0, 1].
      baseline: subtract a learned value of the state from the return; False: the plain return.
      normalize_advantages: scale advantages to mean 0 and standard deviation 1 over the batch.
        The divisor is at least a hundredth of the root mean square of the returns, so that noise
        stays small where all actions are about equally good. If `baseline` is False, this is a
        constant baseline.
      learning_rate: the optimiser's learning rate.
      anneal_updates: updates over which the learning rate falls linearly to 0; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      optimizer: "adam" or "rmsprop" (decay 0.99, corrected for its bias at the start).
      optimizer_epsilon: added to the mean square of a gradient, under the root (RMSProp), or to the
        root (Adam).
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the baseline's loss, which is half its mean squared error.
      components: as in A2C.
    """

    on_policy: ClassVar[bool] = True
    whole_episodes: ClassVar[bool] = True

    network: NetworkConfig = NetworkConfig()
    discount: float = 0.99
    baseline: bool = True
    normalize_advantages: bool = True
    learning_rate: float = 2e-3
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    optimizer: str = "adam"
    optimizer_epsilon: float = 1e-5
    max_gradient_norm: float | None = 0.5
    entropy_cost: float = 0.0
    baseline_cost: float = 0.5
    components: ByName = components_field("actor_critic")

    def __post_init__(self) -> None:
        check_settings(self)
        for field in ("baseline", "normalize_advantages"):
            check_flag(self, field)

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError for tables that REINFORCE cannot learn from."""
        check_on_policy("REINFORCE", replay)

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "ReinforceConfig":
        """Returns settings that suit an environment."""
        return cls(learning_rate=3e-4, entropy_cost=0.01) if has_pixels(env_spec) else cls()

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        A batch is eight episodes of at most 1,000 transitions. Each takes the memory and the
        computation of 1,000, however long it is.
        """
        actors = actors or ActorsConfig(num_envs=8)
        learner = learner or LearnerConfig(batch_size=8)
        transform = "reward_clip" if has_pixels(env_spec) else "reward_scale"
        return Defaults(actors, learner, episode_queue(actors, learner), (transform,))

    def make(self, env_spec: EnvironmentSpec) -> "Reinforce":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return Reinforce(self, env_spec)


class Reinforce(PolicyGradient):
    """See ReinforceConfig and PolicyGradient."""

    config: ReinforceConfig

    def advantages(self, timestep: TimeStep, value: jax.Array, log_rho: jax.Array) -> Advantages:
        """See `PolicyGradient`: returns, less the baseline if there is one."""
        config = self.config
        discount = config.discount * timestep.discount  # 0 within an episode where a life is lost
        # Generalised advantages over values of 0 are the sums of rewards up to LAST.
        columns = (timestep.step_type, timestep.reward, discount, jnp.zeros_like(value))
        returns = gae(*columns, 1.0)
        logs = {"return": returns}
        advantage, error = returns, jnp.zeros_like(returns)
        if config.baseline:
            error = returns - value[:-1]
            advantage = jax.lax.stop_gradient(error)
        if config.normalize_advantages:
            real = timestep.step_type[:-1] != StepType.LAST
            advantage = normalize(advantage, returns, real)
        return Advantages(advantage, error, logs)
