"""IMPALA: an actor-critic that corrects for the lag between actors and learner with V-trace.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.actor_critic import ActorCritic, ActorCriticState, check_settings
from distrl.agents.agent import Logs
from distrl.agents.means import mean_over
from distrl.agents.networks import NetworkConfig
from distrl.agents.rlax_import import rlax
from distrl.agents.settings import check_number
from distrl.specs import EnvironmentSpec
from distrl.types import Params, StepType, Trajectory


@dataclasses.dataclass(frozen=True)
class IMPALAConfig:
    """IMPALA's settings. Losses are means over the real transitions of a batch.

    Attributes:
      network: torso, core and sizes.
      discount: gamma, for each step, in [0, 1].
      learning_rate: of the optimiser. The default suits small MLPs; for the convolutional torsos
        1e-3 or less is usual.
      anneal_updates: the learning rate falls linearly to 0 over so many updates; None: constant.
      optimizer: "rmsprop" (the paper's; decay 0.99, epsilon 1e-5 under the root, no momentum; the
        paper's epsilon of 0.1 goes with its losses, which are sums) or "adam" (b1 0.9, b2 0.999,
        epsilon 1e-5). On CartPole-v1 rmsprop bore twice the policy lag that adam did.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the value loss, which is half the mean squared error.
      vtrace_lambda: mixes n-step returns, in [0, 1].
      clip_rho: the importance weights' upper limit in the temporal differences (rho bar).
      clip_pg_rho: the same in the policy gradient.
    """

    network: NetworkConfig = NetworkConfig()
    discount: float = 0.99
    learning_rate: float = 3e-3
    anneal_updates: int | None = None
    optimizer: str = "rmsprop"
    max_gradient_norm: float | None = 40.0
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    vtrace_lambda: float = 1.0
    clip_rho: float = 1.0
    clip_pg_rho: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self)
        check_number(self, "vtrace_lambda", lambda x: 0 <= x <= 1, "in [0, 1]")
        for field in ("clip_rho", "clip_pg_rho"):
            check_number(self, field, lambda x: x > 0, "above 0")

    def make(self, env_spec: EnvironmentSpec) -> "IMPALA":
        """The agent for an environment. Raises ConfigError where the two do not fit."""
        return IMPALA(self, env_spec)


class VTrace(NamedTuple):
    """All [T, B], and 0 at transitions that are not real but for `target`, the value there."""

    error: jax.Array  # target - value; differentiable with respect to the value only
    target: jax.Array  # for the value; no gradient flows through it
    advantage: jax.Array  # of the action taken, weighted with the clipped rho; no gradient


def vtrace(
    config: IMPALAConfig,
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    value: jax.typing.ArrayLike,
    log_rho: jax.typing.ArrayLike,
) -> VTrace:
    """V-trace over windows that may hold the ends of episodes anywhere.

    The weight rho of a transition from LAST to FIRST is 0: its own error and advantage are 0, and
    so nothing after it reaches anything before it. The transition into LAST bootstraps from the
    value at LAST (of the true final observation), times the discount there: 0 at a true end, 1 at
    a time limit.

    Args:
      config: gives gamma, lambda, and the clips.
      step_type: [T + 1, B], StepType.
      reward: float32 [T + 1, B], each of the action before; the first row is not used.
      discount: float32 [T + 1, B], 0 or 1; the first row is not used.
      value: float32 [T + 1, B].
      log_rho: float32 [T, B], log of target over behaviour probability of the actions.
    """
    step_type, reward, discount, value, log_rho = (
        jnp.asarray(x) for x in (step_type, reward, discount, value, log_rho)
    )
    real = step_type[:-1] != StepType.LAST
    # The log too: whatever was stored for an action that nobody took may be infinite.
    rho = jnp.where(real, jnp.exp(jnp.where(real, log_rho, 0)), 0)

    def one_stream(*arrays: jax.Array) -> Any:
        return rlax.vtrace_td_error_and_advantage(
            *arrays,
            lambda_=config.vtrace_lambda,
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


class IMPALA(ActorCritic):
    """See IMPALAConfig and ActorCritic."""

    config: IMPALAConfig

    def compute_gradients(
        self, params: Params, learner_state: ActorCriticState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        return jax.grad(self.loss, has_aux=True)(params, batch)

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """The loss on one batch, a mean over its real transitions, with what is logged of it."""
        config, distribution = self.config, self.network.distribution
        timestep = batch.timestep
        policy, value, _ = self.network.unroll(params, timestep, batch.state)
        policy, action = jax.tree.map(lambda x: x[:-1], (policy, batch.action))
        real = timestep.step_type[:-1] != StepType.LAST
        mean = mean_over(real)
        log_prob = distribution.log_prob(policy, action)
        log_rho = jax.lax.stop_gradient(log_prob) - batch.extras["log_prob"][:-1]
        targets = vtrace(
            config, timestep.step_type, timestep.reward, timestep.discount, value, log_rho
        )
        policy_loss = -mean(log_prob * targets.advantage)
        value_loss = 0.5 * mean(jnp.square(targets.error))
        entropy = mean(distribution.entropy(policy))
        loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        logs = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "value": mean(value[:-1]),
            "advantage": mean(targets.advantage),
            "rho": mean(jnp.minimum(jnp.exp(log_rho), config.clip_rho)),
            "kl_behaviour": -mean(log_rho),  # estimated from the actions taken
            "real_fraction": jnp.mean(real),
        }
        return loss, logs
