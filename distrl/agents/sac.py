"""SAC: soft actor-critic, with twin critics and a learned temperature.

Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290 and https://arxiv.org/abs/1812.05905.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from distrl.agents import continuous
from distrl.agents.action_distribution import ActionDistribution
from distrl.agents.agent import Agent, Logs, params_key
from distrl.agents.components import (
    ByName,
    ComponentConfig,
    components_field,
    components_for,
    part_labels,
)
from distrl.agents.continuous import ContinuousDefaults
from distrl.agents.defaults import has_pixels
from distrl.agents.encoders import make_encoder
from distrl.agents.losses.means import mean_over
from distrl.agents.modules import torsos
from distrl.agents.modules.normals import NormalParams, SquashedNormal, clip_with_return
from distrl.agents.modules.recurrence import learned_from
from distrl.agents.networks import NetworkConfig
from distrl.agents.optimizers import annealed, make_optimizer
from distrl.agents.settings import check_annealing
from distrl.field_checks import check_choice, check_flag, check_number, check_sizes
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, StepType, TimeStep, Trajectory

MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0
"""Bounds of the log standard deviation before the tanh, the paper's."""


@dataclasses.dataclass(frozen=True)
class SACConfig(ContinuousDefaults):
    """SAC's settings. Losses are means over the real transitions of a batch of unrolls.

    The initial policy is close to uniform over the actions: acting with it until the replay can be
    sampled (`replay.min_size_to_sample`) is the usual warm-up.

    Attributes:
      hidden_sizes: layers of the policy's MLP and of each critic's.
      activation: "relu" or "tanh".
      discount: gamma, for each step, in [0, 1].
      learning_rate: Adam's learning rate, for those of policy, critics and temperature that have
        none of their own in `components`. Except for pixels the preset's critics have 1e-3.
      anneal_updates: updates over which the learning rate falls linearly to 0; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      target_tau: share of the way that the target critics move towards the critics after each
        update, in (0, 1].
      initial_temperature: initial value of a unit of entropy in units of reward.
      target_entropy: entropy that the temperature is learned to keep, in units where each element
        of the action is in [-1, 1]; None: -1 per element, as in the paper. Uniform actions have
        log(2) = 0.69 per element.
      components: settings of the optimiser by component: policy, critics, temperature; see
        `ComponentConfig`. A frozen temperature stays at `initial_temperature`.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    discount: float = 0.99
    learning_rate: float = 3e-4
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    target_tau: float = 0.005
    initial_temperature: float = 1.0
    target_entropy: float | None = None
    importance_exponent: float = 0.6
    scale_integers: bool = True
    components: ByName = components_field("soft")
    network: NetworkConfig = continuous.SHARED
    burn_in: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "hidden_sizes")
        check_flag(self, "scale_integers")
        check_choice(self, "activation", tuple(torsos.ACTIVATIONS))
        check_number(self, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "target_tau", lambda x: 0 < x <= 1, "in (0, 1]")
        for field in ("learning_rate", "initial_temperature"):
            check_number(self, field, lambda x: x > 0, "above 0")
        if self.target_entropy is not None:
            check_number(self, "target_entropy", lambda x: True, "that is finite, or None")
        check_number(self, "importance_exponent", lambda x: x >= 0, "of at least 0")
        check_annealing(self)
        self.check_shared()

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "SACConfig":
        """See `ContinuousDefaults.preset`. With pixels all learn at one rate, as in DrQ-v2."""
        if has_pixels(env_spec):
            return cls()
        return cls(components={"critics": ComponentConfig(learning_rate=1e-3)})

    def make(self, env_spec: EnvironmentSpec) -> "SAC":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return SAC(self, env_spec)


class SACState(NamedTuple):
    """The learner state."""

    opt_state: Any
    target: Params  # the target critics', or those of encoder and critics
    key: jax.Array  # uint32 [2], parent of the next update's keys


class SAC(Agent):
    """See SACConfig. No extras; a recurrent state with memory.

    Parameters: `{"policy": ..., "critics": ..., "log_temperature": float32 scalar}`, and "encoder"
    if policy and critics share something.
    """

    def __init__(self, config: SACConfig, env_spec: EnvironmentSpec):
        continuous.check_env_spec(env_spec, "SAC")
        self.config = config
        self.env_spec = env_spec
        self.actions = SquashedNormal(env_spec.action)
        self.encoder = make_encoder(config.network, env_spec, self.actions)
        spec = self.encoder.env_spec
        sizes, activation = config.hidden_sizes, config.activation
        scaled = config.scale_integers
        self.policy = continuous.make_policy(spec, sizes, activation, 2 * self.actions.size, scaled)
        self.critics = continuous.make_critics(spec, self.actions, sizes, activation, 2, scaled)
        self.target_entropy = config.target_entropy
        if self.target_entropy is None:
            self.target_entropy = -float(self.actions.size)
        rates = (config.learning_rate, config.anneal_updates)
        self._components = components_for(self, *rates, labels=part_labels)
        self._optimizer = make_optimizer(
            annealed(*rates), None, components=self._components, epsilon=1e-8
        )

    def initial_params(self, rng: jax.Array) -> Params:
        return {
            "policy": self.policy.init(derive(rng, "policy")),
            "critics": self.critics.init(derive(rng, "critics")),
            "log_temperature": jnp.asarray(math.log(self.config.initial_temperature), jnp.float32),
            **self.encoder.initial_params(rng),
        }

    def initial_state(self, batch_size: int) -> State:
        return self.encoder.initial_state(batch_size)

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        features, state = self.encoder.step(params, timestep, state)
        normal = self.normal(params["policy"], features)
        if evaluation:
            return AgentOutput(self.actions.mode(normal), ()), state
        action, _ = self.actions.sample_with_log_prob(rng, normal)
        return AgentOutput(action, ()), state

    def action_distribution(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> ActionDistribution:
        features, _ = self.encoder.step(params, timestep, state)
        normal = self.normal(params["policy"], features)
        return ActionDistribution(
            lambda action: self.actions.log_prob(normal, action),
            self.actions.named_parameters(normal),
        )

    def normal(self, policy: Params, observation: Nest) -> NormalParams:
        """Returns the policy before its tanh, [..., D]."""
        mean, log_std = jnp.split(self.policy.apply(policy, observation), 2, axis=-1)
        return NormalParams(mean, clip_with_return(log_std, MIN_LOG_STD, MAX_LOG_STD))

    def components(self, params: Params) -> Nest:
        return part_labels(params)

    def initial_learner_state(self, params: Params) -> SACState:
        opt_state = self._optimizer.init(params)
        return SACState(opt_state, self._targeted(params), params_key(params, "learner"))

    def _targeted(self, params: Params) -> Params:
        """Returns the part of the parameters that has target networks."""
        if not self.encoder.names:
            return params["critics"]
        return {name: params[name] for name in ("critics", *self.encoder.names)}

    def compute_gradients(
        self, params: Params, learner_state: SACState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        return jax.grad(self.loss, has_aux=True)(
            params, learner_state.target, derive(learner_state.key, "loss"), batch
        )

    def loss(
        self, params: Params, target: Params, rng: jax.Array, batch: Trajectory
    ) -> tuple[jax.Array, Logs]:
        """Returns the sum of three losses, each with gradients for its own parameters only.

        Args:
          params: parameters of policy, critics and temperature.
          target: parameters of the target critics, or of target encoder and critics.
          rng: raw key, parent of those for the policy's actions.
          batch: [T + 1, B, ...].
        """
        stop = jax.lax.stop_gradient
        config = self.config
        target_critics = target["critics"] if self.encoder.names else target
        batch, target_batch = self.encoder.encode(params, target, batch, config.burn_in)
        timestep = batch.timestep
        policy, critics = params["policy"], params["critics"]
        temperature = jnp.exp(params["log_temperature"])
        observation, next_observation = continuous.split_transitions(timestep.observation)
        _, target_next_observation = continuous.split_transitions(target_batch.timestep.observation)
        real = timestep.step_type[:-1] != StepType.LAST
        mean = mean_over(real)
        action, log_prob = self._sample(derive(rng, "then"), policy, next_observation)
        value = jnp.min(
            self.critics.apply(target_critics, target_next_observation, action), axis=-1
        )
        discount = config.discount * timestep.discount[1:]
        targets = stop(timestep.reward[1:] + discount * (value - temperature * log_prob))
        values = self.critics.apply(critics, observation, batch.action[:-1])
        critic_loss, critic_logs = continuous.critic_loss(
            values, targets, real, batch.probability, config.importance_exponent
        )

        observation = stop(observation)
        action, log_prob = self._sample(derive(rng, "now"), policy, observation)
        value = jnp.min(self.critics.apply(stop(critics), observation, action), axis=-1)
        policy_loss = mean(stop(temperature) * log_prob - value)
        temperature_loss = mean(temperature * stop(-log_prob - self.target_entropy))

        loss = critic_loss + policy_loss + temperature_loss
        logs = {
            "loss": loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "temperature": temperature,
            "entropy": -mean(log_prob),  # in the units of `target_entropy`
            **critic_logs,
        }
        return loss, logs

    def _sample(
        self, rng: jax.Array, policy: Params, observation: Nest
    ) -> tuple[jax.Array, jax.Array]:
        """Samples actions; their log-densities are in units where each element is in [-1, 1]."""
        action, log_prob = self.actions.sample_with_log_prob(rng, self.normal(policy, observation))
        return action, log_prob + self.actions.log_half

    def num_real(self, batch: Trajectory) -> int:
        return super().num_real(learned_from(batch, self.config.burn_in))

    def apply_gradients(
        self, params: Params, learner_state: SACState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        grads = self._components.trained(grads)
        updates, opt_state = self._optimizer.update(grads, learner_state.opt_state, params)
        logs = {"gradient_norm": optax.tree.norm(grads)}
        return optax.apply_updates(params, updates), opt_state, logs

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: SACState
    ) -> SACState:
        target = optax.incremental_update(
            self._targeted(params), learner_state.target, self.config.target_tau
        )
        return SACState(opt_state, target, derive(learner_state.key, "next"))
