"""IMPALA: an actor-critic that corrects for the lag between actors and learner with V-trace.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.actor_critic import Advantages, PolicyGradient, check_settings
from distrl.agents.components import ByName, components_field
from distrl.agents.defaults import (
    Defaults,
    has_grid,
    has_pixels,
    is_discrete,
    queue,
    reward_transforms,
)
from distrl.agents.losses.rlax_import import rlax
from distrl.agents.networks import NetworkConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.field_checks import check_number
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class IMPALAConfig:
    """IMPALA's settings. Losses are means over the real transitions of a batch.

    Attributes:
      network: torso, core and sizes.
      discount: gamma, for each step, in [0, 1].
      learning_rate: the optimiser's learning rate. The default suits small MLPs; convolutional
        torsos usually take less. Easy tasks are learned sooner with more (CartPole-v1 is solved
        after 0.5M steps with 1e-3, 0.3M with 2e-3 and 0.26M with 3e-3), but in harder ones the
        policy then stops exploring before the values are learned.
      anneal_updates: updates over which the learning rate falls linearly to 0; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      optimizer: "rmsprop" (the paper's; decay 0.99, no momentum, corrected for its bias at the
        start) or "adam" (b1 0.9, b2 0.999). On CartPole-v1 rmsprop tolerated twice the policy lag
        that adam did.
      optimizer_epsilon: added to the mean square of a gradient, under the root (RMSProp), or to the
        root (Adam). It keeps the steps of small gradients small. Rare rewards have small
        gradients: with RMSProp and 1e-5 MiniGrid-DoorKey-5x5-v0 was not learned. So has a solved
        task: with 1e-12 CartPole-v1 was solved after 234k instead of 275k steps, but fell to 440 at
        times; with 1e-5 it stayed solved. The paper's 0.1 goes with its losses, which are sums.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
        Norms are about 1 here (CartPole-v1: 0.2 to 1; MountainCar-v0: 1 to 2), where losses are
        means; the paper's 40 is for sums.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the value loss, which is half the mean squared error.
      vtrace_lambda: lambda of V-trace, which mixes n-step returns, in [0, 1].
      clip_rho: upper limit of the importance weights in the temporal differences (rho bar).
      clip_pg_rho: upper limit of the importance weights in the policy gradient.
      components: settings of the optimiser by component of the network, which are torso, core,
        policy_head and value_head; see `ComponentConfig`.
    """

    on_policy: ClassVar[bool] = True

    network: NetworkConfig = NetworkConfig()
    discount: float = 0.99
    learning_rate: float = 1e-3
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    optimizer: str = "rmsprop"
    optimizer_epsilon: float = 1e-5
    max_gradient_norm: float | None = 1.0
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    vtrace_lambda: float = 1.0
    clip_rho: float = 1.0
    clip_pg_rho: float = 1.0
    components: ByName = components_field("actor_critic")

    def __post_init__(self) -> None:
        check_settings(self)
        check_number(self, "vtrace_lambda", lambda x: 0 <= x <= 1, "in [0, 1]")
        for field in ("clip_rho", "clip_pg_rho"):
            check_number(self, field, lambda x: x > 0, "above 0")

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError for a prioritized table, whose priorities IMPALA never changes."""
        if replay.table == "prioritized":
            raise ConfigError(
                "replay.table=prioritized: IMPALA computes no priorities, so that all unrolls keep "
                "their first one; use replay.table=queue or uniform"
            )

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "IMPALAConfig":
        """Returns settings that suit an environment.

        Sources: with pixels the paper's table G.1, whose losses are sums: for means of 80 steps
        its epsilon is 0.01 / 80 ** 2, and its bound of the gradient's norm 40 / 80. The paper has
        no continuous actions: for them without an entropy bonus and with PPO's normalisers, without
        which it learns nothing in HalfCheetah-v4.
        """
        if has_pixels(env_spec):
            return cls(
                learning_rate=6e-4,
                anneal_over_budget=True,
                optimizer_epsilon=1.6e-6,
                max_gradient_norm=0.5,
            )
        if has_grid(env_spec):
            return cls(NetworkConfig(one_hot_integers=True), optimizer_epsilon=1e-12)
        if is_discrete(env_spec):
            return cls(learning_rate=2e-3)
        return cls(learning_rate=6e-4, optimizer="adam", max_gradient_norm=0.5, entropy_cost=0.0)

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        Where steps are costly, batches are small, so that there are more updates. With 16 unrolls
        in a batch Pong-v5 was at -20 after 6M steps; with 4, as many steps as A2C's, and a smaller
        CNN at 18 after 7.3M. With 64, HalfCheetah-v4 was at 809 after 1M steps, with 16 at 2,469.
        """
        small = has_pixels(env_spec) or has_grid(env_spec) or not is_discrete(env_spec)
        actors = actors or ActorsConfig(num_envs=8 if small else 32)
        batch_size = 4 if has_pixels(env_spec) else 16 if small else 64
        learner = learner or LearnerConfig(batch_size=batch_size)
        transforms = reward_transforms(env_spec)
        return Defaults(actors, learner, queue(actors, learner, 20), transforms)

    def make(self, env_spec: EnvironmentSpec) -> "IMPALA":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return IMPALA(self, env_spec)


class VTrace(NamedTuple):
    """V-trace's results, all [T, B].

    At transitions that are not real, `target` is the value, and the others are 0.
    """

    error: jax.Array  # target - value; differentiable with respect to the value only
    target: jax.Array  # for the value; no gradient
    advantage: jax.Array  # for the action taken, weighted with the clipped rho; no gradient


def vtrace(
    config: IMPALAConfig,
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    value: jax.typing.ArrayLike,
    log_rho: jax.typing.ArrayLike,
) -> VTrace:
    """Returns V-trace over windows that may hold the ends of episodes anywhere.

    The weight rho of a transition from LAST to FIRST is 0: its error and advantage are 0, and
    nothing after it reaches anything before it. The transition into LAST bootstraps from the
    value at LAST (of the true final observation), times the discount there: 0 at a true end, 1 at
    a time limit.

    Args:
      config: the settings, with gamma, lambda and the clips.
      step_type: [T + 1, B], StepType.
      reward: float32 [T + 1, B], the reward for the action before; the first row is not used.
      discount: float32 [T + 1, B], 0 or 1; the first row is not used.
      value: float32 [T + 1, B].
      log_rho: float32 [T, B], log of target over behaviour probability of the actions.
    """
    step_type, reward, discount, value, log_rho = (
        jnp.asarray(x) for x in (step_type, reward, discount, value, log_rho)
    )
    real = step_type[:-1] != StepType.LAST
    # The log too: what was stored for an action that was not taken may be infinite.
    rho = jnp.where(real, jnp.exp(jnp.where(real, log_rho, 0)), 0)

    def one_stream(*arrays: jax.Array) -> Any:
        return rlax.vtrace_td_error_and_advantage(
            *arrays,
            lambda_=jnp.float32(config.vtrace_lambda),
            clip_rho_threshold=config.clip_rho,
            clip_pg_rho_threshold=config.clip_pg_rho,
        )

    rho, gamma = jax.lax.stop_gradient(rho), config.discount * discount[1:]
    out = jax.vmap(one_stream, in_axes=1, out_axes=1)(value[:-1], value[1:], reward[1:], gamma, rho)
    return VTrace(
        error=out.errors,
        target=jax.lax.stop_gradient(out.errors + value[:-1]),
        advantage=jax.lax.stop_gradient(out.pg_advantage),
    )


class IMPALA(PolicyGradient):
    """See IMPALAConfig and PolicyGradient."""

    config: IMPALAConfig

    def advantages(self, timestep: TimeStep, value: jax.Array, log_rho: jax.Array) -> Advantages:
        """See `PolicyGradient`: V-trace."""
        columns = (timestep.step_type, timestep.reward, timestep.discount, value, log_rho)
        targets = vtrace(self.config, *columns)
        logs = {
            "advantage": targets.advantage,
            "rho": jnp.minimum(jnp.exp(log_rho), self.config.clip_rho),
        }
        return Advantages(targets.advantage, targets.error, logs)
