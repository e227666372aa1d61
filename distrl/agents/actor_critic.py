"""What actor-critic agents share: acting, optimiser steps, the parts of their losses."""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from distrl.agents import action_distribution, networks
from distrl.agents.agent import Agent, Logs
from distrl.agents.components import components_for, network_labels
from distrl.agents.losses.means import mean_over
from distrl.agents.networks import check_network
from distrl.agents.optimizers import OPTIMIZERS, annealed, make_optimizer
from distrl.agents.settings import check_annealing, check_scalar_reward
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_number, check_positive_or_none
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, StepType, TimeStep, Trajectory


def check_settings(config: Any) -> None:
    """Refuses settings that cannot work, among those that all actor-critic agents have.

    Args:
      config: a dataclass with at least network, discount, learning_rate, anneal_updates,
        anneal_over_budget, max_gradient_norm, entropy_cost, baseline_cost and components; perhaps
        with optimizer and optimizer_epsilon.

    Raises:
      ConfigError: a setting cannot work; the message says what would.
    """
    check_network(config)
    if hasattr(config, "optimizer"):
        check_choice(config, "optimizer", OPTIMIZERS)
        # A gradient may be 0, and so may be the root by which it is divided.
        check_number(config, "optimizer_epsilon", lambda x: x > 0, "above 0")
    check_number(config, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
    check_number(config, "learning_rate", lambda x: x > 0, "above 0")
    for field in ("entropy_cost", "baseline_cost"):
        check_number(config, field, lambda x: x >= 0, "of at least 0")
    check_annealing(config)
    check_positive_or_none(config, "max_gradient_norm")


def check_on_policy(name: str, replay: ReplayConfig) -> None:
    """Raises ConfigError for a table that hands out old experience: any but a queue."""
    if replay.table != "queue":
        raise ConfigError(
            f"replay.table={replay.table} gives old experience, and {name} learns from its own "
            "actions, each once; take replay.table=queue"
        )


class ActorCriticState(NamedTuple):
    """The learner state."""

    opt_state: Any
    updates: jax.Array  # int32, updates made so far


class ActorCritic(Agent):
    """An agent that samples from its policy. Extras: `{"log_prob": float32 [B]}`, the action's."""

    def __init__(self, config: Any, env_spec: EnvironmentSpec):
        """Args:
        config: see `check_settings`.
        env_spec: spec of the environment.

        Raises:
          ConfigError: the two do not fit.
        """
        check_scalar_reward(env_spec, type(self).__name__)
        self.config = config
        self.env_spec = env_spec
        self.network = networks.make_network(config.network, env_spec)
        self._learning_rate = annealed(config.learning_rate, config.anneal_updates)
        self._components = components_for(self, config.learning_rate, config.anneal_updates)
        self._optimizer = make_optimizer(
            self._learning_rate,
            config.max_gradient_norm,
            getattr(config, "optimizer", "adam"),
            self._components,
            getattr(config, "optimizer_epsilon", 1e-5),
        )

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`."""
        return self.network.init(rng)

    def initial_state(self, batch_size: int) -> State:
        """See `Agent`."""
        return self.network.initial_state(batch_size)

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        """See `Agent`."""
        policy, _, state = self.network.step(params, timestep, state)
        distribution = self.network.distribution
        if evaluation:
            action = distribution.mode(policy)
            log_prob = distribution.log_prob(policy, action)
        else:
            action, log_prob = distribution.sample_with_log_prob(rng, policy)
        return AgentOutput(action, {"log_prob": log_prob}), state

    def action_distribution(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> action_distribution.ActionDistribution:
        """See `Agent`."""
        policy, value, _ = self.network.step(params, timestep, state)
        return action_distribution.of_policy(self.network.distribution, policy, value)

    def components(self, params: Params) -> Nest:
        """See `Agent`."""
        return network_labels(params)

    def initial_learner_state(self, params: Params) -> Any:
        """See `Agent`."""
        return ActorCriticState(self._optimizer.init(params), jnp.zeros((), jnp.int32))

    def compute_gradients(
        self, params: Params, learner_state: Any, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`."""
        return jax.grad(self.loss, has_aux=True)(params, batch)

    @abc.abstractmethod
    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """Returns the loss on one batch, a mean over its real transitions, and logs."""

    def apply_gradients(
        self, params: Params, learner_state: Any, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        grads = self._components.trained(grads)
        updates, opt_state = self._optimizer.update(
            grads, learner_state.opt_state, params, count=learner_state.updates
        )
        logs = {
            "gradient_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(self._learning_rate(learner_state.updates)),
            **self._components.logs(learner_state.updates),
        }
        return optax.apply_updates(params, updates), opt_state, logs

    def update_learner_state(self, params: Params, opt_state: Any, learner_state: Any) -> Any:
        """See `Agent`."""
        return learner_state._replace(
            opt_state=opt_state, updates=optax.safe_increment(learner_state.updates)
        )

    def _total_loss(
        self,
        policy: Nest,
        value: jax.Array,
        real: jax.Array,
        policy_loss: jax.Array,
        value_loss: jax.Array,
    ) -> tuple[jax.Array, Logs]:
        """Returns the weighted sum of the losses and the entropy bonus, and logs.

        Args:
          policy: the policy's parameters, [T, B, *].
          value: [T, B].
          real: bool [T, B], the real transitions.
          policy_loss, value_loss: scalars.
        """
        config, mean = self.config, mean_over(real)
        entropy = mean(self.network.distribution.entropy(policy))
        loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        logs = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "value": mean(value),
            "real_fraction": jnp.mean(real),
        }
        return loss, logs


class Advantages(NamedTuple):
    """What a policy gradient learns from, all [T, B]."""

    advantage: jax.Array  # for the actions taken; no gradient
    error: jax.Array  # target - value; differentiable with respect to the value only
    logs: dict[str, jax.Array]  # [T, B] each, logged as means over the real transitions


class PolicyGradient(ActorCritic):
    """An actor-critic that makes one update from each batch. The advantages are the algorithm's."""

    def check_shares(self) -> None:
        """See `Agent`."""
        super().check_shares()
        if getattr(self.config, "normalize_advantages", False):
            raise ConfigError(
                "learner.num_gradient_workers: agent.normalize_advantages=True needs the "
                "advantages of the whole batch, of which a worker has a share; take False, or 0 "
                "workers"
            )

    @abc.abstractmethod
    def advantages(self, timestep: TimeStep, value: jax.Array, log_rho: jax.Array) -> Advantages:
        """Returns the advantages of a batch's transitions.

        Args:
          timestep: [T + 1, B, ...].
          value: [T + 1, B].
          log_rho: [T, B], log of the policy's over the behaviour's probability of the actions.
        """

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """See `ActorCritic`."""
        timestep = batch.timestep
        policy, value, _ = self.network.unroll(params, timestep, batch.state)
        policy, action = jax.tree.map(lambda x: x[:-1], (policy, batch.action))
        real = timestep.step_type[:-1] != StepType.LAST
        mean = mean_over(real)
        log_prob = self.network.distribution.log_prob(policy, action)
        log_rho = jax.lax.stop_gradient(log_prob) - batch.extras["log_prob"][:-1]
        advantage, error, logs = self.advantages(timestep, value, log_rho)
        policy_loss = -mean(log_prob * advantage)
        value_loss = 0.5 * mean(jnp.square(error))
        loss, shared = self._total_loss(policy, value[:-1], real, policy_loss, value_loss)
        means = {name: mean(x) for name, x in logs.items()}
        # Estimated from the actions taken; 0 without lag.
        return loss, {**shared, **means, "kl_behaviour": -mean(log_rho)}
