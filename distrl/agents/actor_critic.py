"""What actor-critic agents share: acting, optimiser steps, advantages."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from distrl.agents import networks
from distrl.agents.agent import Agent, Logs
from distrl.agents.networks import NetworkConfig
from distrl.agents.rlax_import import rlax
from distrl.agents.settings import check_number, check_scalar_reward
from distrl.errors import ConfigError
from distrl.replay.buffer import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Params, State, StepType, TimeStep

OPTIMIZERS = ("adam", "rmsprop")


def check_settings(config: Any) -> None:
    """Refuses what cannot work of the settings that all actor-critic agents have.

    Args:
      config: a dataclass with at least network, discount, learning_rate, anneal_updates,
        max_gradient_norm, entropy_cost and baseline_cost; optimizer where it has one.

    Raises:
      ConfigError: with what would be right.
    """
    if not isinstance(config.network, NetworkConfig):
        raise ConfigError(f"agent.network: expected a NetworkConfig, got {config.network!r}")
    optimizer = getattr(config, "optimizer", "adam")
    if optimizer not in OPTIMIZERS:
        raise ConfigError(
            f"agent.optimizer: expected one of {', '.join(OPTIMIZERS)}; got {optimizer!r}"
        )
    check_number(config, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
    check_number(config, "learning_rate", lambda x: x > 0, "above 0")
    for field in ("entropy_cost", "baseline_cost"):
        check_number(config, field, lambda x: x >= 0, "of at least 0")
    for field in ("anneal_updates", "max_gradient_norm"):
        if getattr(config, field) is not None:
            check_number(config, field, lambda x: x > 0, "above 0, or None")


def check_on_policy(name: str, replay: ReplayConfig) -> None:
    """Refuses a table that would hand out old experience.

    Raises:
      ConfigError: for anything but a queue.
    """
    if replay.table != "queue":
        raise ConfigError(
            f"replay.table={replay.table} gives old experience, and {name} learns from its own "
            "actions, each once; take replay.table=queue"
        )


def gae(
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    value: jax.typing.ArrayLike,
    lambda_: float,
) -> jax.Array:
    """Generalised advantages over windows that may hold the ends of episodes anywhere.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438. The transition into LAST bootstraps
    from the value at LAST (of the true final observation) times the discount there: 0 at a true
    end, 1 at a time limit. Nothing that comes after LAST reaches anything before it.

    Args:
      step_type: [T + 1, B], StepType.
      reward: float32 [T + 1, B], each of the action before; the first row is not used.
      discount: float32 [T + 1, B], gamma included; the first row is not used.
      value: float32 [T + 1, B], of each step.
      lambda_: in [0, 1]. 1: the rewards up to the episode's or the window's end, and the value
        there; 0: one step.

    Returns:
      float32 [T, B]; 0 at transitions that are not real. No gradient flows.
    """
    step_type, reward, discount, value = (
        jnp.asarray(x) for x in (step_type, reward, discount, value)
    )
    # A lambda of 0 for the transition into LAST: it bootstraps, and takes nothing from after it.
    mixing = jnp.where(step_type[1:] == StepType.LAST, 0.0, lambda_)

    def one_stream(*arrays: jax.Array) -> jax.Array:
        return rlax.truncated_generalized_advantage_estimation(*arrays)

    columns = (reward[1:], discount[1:], mixing, value)
    advantage = jax.vmap(one_stream, in_axes=1, out_axes=1)(*columns)
    real = step_type[:-1] != StepType.LAST
    return jax.lax.stop_gradient(jnp.where(real, advantage, 0.0))


class ActorCriticState(NamedTuple):
    """The learner state."""

    opt_state: Any
    updates: jax.Array  # int32, made so far


class ActorCritic(Agent):
    """An agent that samples from its policy. Extras: `{"log_prob": float32 [B]}`, of the action.

    What is left to an algorithm is its loss.
    """

    def __init__(self, config: Any, env_spec: EnvironmentSpec):
        """Args:
        config: see `check_settings`.
        env_spec: of the environment.

        Raises:
          ConfigError: the two do not fit.
        """
        check_scalar_reward(env_spec, type(self).__name__)
        self.config = config
        self.env_spec = env_spec
        self.network = networks.make_network(config.network, env_spec)
        self._learning_rate = _learning_rate(config)
        self._optimizer = _make_optimizer(config, self._learning_rate)

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

    def initial_learner_state(self, params: Params) -> Any:
        """See `Agent`."""
        return ActorCriticState(self._optimizer.init(params), jnp.zeros((), jnp.int32))

    def apply_gradients(
        self, params: Params, learner_state: Any, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        updates, opt_state = self._optimizer.update(grads, learner_state.opt_state, params)
        logs = {
            "gradient_norm": optax.tree.norm(grads),
            "learning_rate": jnp.asarray(self._learning_rate(learner_state.updates)),
        }
        return optax.apply_updates(params, updates), opt_state, logs

    def update_learner_state(self, params: Params, opt_state: Any, learner_state: Any) -> Any:
        """See `Agent`."""
        return learner_state._replace(opt_state=opt_state, updates=learner_state.updates + 1)


def _learning_rate(config: Any) -> optax.Schedule:
    if config.anneal_updates is None:
        return optax.constant_schedule(config.learning_rate)
    return optax.linear_schedule(config.learning_rate, 0.0, int(config.anneal_updates))


def _make_optimizer(config: Any, learning_rate: optax.Schedule) -> optax.GradientTransformation:
    if getattr(config, "optimizer", "adam") == "adam":
        optimizer = optax.adam(learning_rate, eps=1e-5)
    else:
        optimizer = optax.rmsprop(learning_rate, decay=0.99, eps=1e-5)
    if config.max_gradient_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optimizer)
