"""The agent of DQN and R2D2, whose settings are in `dqn.py` and `r2d2.py`."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dm_env import specs as dm_specs

from distrl.agents import action_distribution, networks
from distrl.agents.agent import PRIORITIES, Agent, Logs, params_key
from distrl.agents.components import components_for, network_labels
from distrl.agents.exploration import check_explore, epsilon_greedy, explore_legal
from distrl.agents.losses.action_values import make_action_values, select
from distrl.agents.losses.means import mean_over
from distrl.agents.losses.prioritized import importance_weights, unroll_priorities
from distrl.agents.modules import distributions
from distrl.agents.modules.recurrence import burn_in, learned_from
from distrl.agents.optimizers import annealed, make_optimizer
from distrl.agents.schedules import next_count
from distrl.agents.settings import check_scalar_reward
from distrl.errors import ConfigError
from distrl.random_keys import derive
from distrl.runtime.traceback_text import one_line
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, StepType, TimeStep, Trajectory


class DQNState(NamedTuple):
    """The learner state."""

    opt_state: Any
    updates: jax.Array  # int32, updates made so far
    target: Params  # the target network's
    key: jax.Array  # uint32 [2], parent of the next update's keys


class DQN(Agent):
    """See DQNConfig. No extras.

    Parameters: `{"network": ..., "epsilon": float32 scalar}`: epsilon is sent with the network, so
    that actors explore by the learner's schedule without a state.
    """

    def __init__(self, config: Any, env_spec: EnvironmentSpec, name: str = "DQN"):
        """Args:
        config: the settings.
        env_spec: spec of the environment.
        name: name of the algorithm, for messages.
        """
        check_scalar_reward(env_spec, name)
        if not isinstance(env_spec.action, dm_specs.DiscreteArray):
            got = one_line(repr(env_spec.action))
            raise ConfigError(
                f"action: {name} takes one DiscreteArray, got {got}; for other actions take impala "
                "or ppo, for continuous ones also sac or td3"
            )
        self.config = config
        self.env_spec = env_spec
        num_actions, dtype = int(env_spec.action.num_values), env_spec.action.dtype
        if config.explore is not None:
            check_explore(config.explore, num_actions, config.epsilon.spread > 0)
        self._actions = distributions.Categorical(num_actions, dtype)
        self.network = networks.make_q_network(
            config.network,
            env_spec,
            self._actions,
            config.dueling and ("streams" if config.dueling_streams else "heads"),
            config.num_atoms,
            config.noisy,
        )
        self._action_values = make_action_values(config)
        self._components = components_for(self, config.learning_rate, config.anneal_updates)
        rate = annealed(config.learning_rate, config.anneal_updates)
        self._optimizer = make_optimizer(
            rate,
            config.max_gradient_norm,
            components=self._components,
            epsilon=config.adam_epsilon,
        )

    def initial_params(self, rng: jax.Array) -> Params:
        return {"network": self.network.init(rng), "epsilon": self.config.epsilon.initial()}

    def initial_state(self, batch_size: int) -> State:
        return self.network.initial_state(batch_size)

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        values, epsilon, state = self._acting(rng, params, timestep, state, evaluation)
        key, legal = derive(rng, "exploration"), self._legal(timestep)
        if evaluation or self.config.explore is None:
            action = epsilon_greedy(key, values, epsilon, legal)
        else:
            action = explore_legal(self.config.explore, key, values, epsilon, legal)
        return AgentOutput(action.astype(self._actions.dtype), ()), state

    def action_distribution(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> action_distribution.ActionDistribution | None:
        if self.config.explore is not None and not evaluation:
            return None
        values, epsilon, _ = self._acting(rng, params, timestep, state, evaluation)
        return action_distribution.epsilon_greedy(values, epsilon, self._legal(timestep))

    def _acting(
        self, rng: jax.Array, params: Params, timestep: TimeStep, state: State, evaluation: bool
    ) -> tuple[jax.Array, Any, State]:
        """Returns the values to act by [B, num_actions], epsilon, and the state afterwards."""
        noise = derive(rng, "noise") if self.config.noisy and not evaluation else None
        outputs, state = self.network.step(params["network"], timestep, state, noise)
        epsilon: Any = self.config.evaluation_epsilon
        if not evaluation:
            epsilon = self.config.epsilon.of_streams(params["epsilon"], timestep.env_id)
        return self.values(outputs), epsilon, state

    def with_env_steps(self, params: Params, env_steps: int) -> Params:
        return self.config.epsilon.in_params(params, env_steps)

    def components(self, params: Params) -> Nest:
        return network_labels(params["network"])

    def initial_learner_state(self, params: Params) -> DQNState:
        network, key = params["network"], params_key(params, "learner")
        return DQNState(self._optimizer.init(network), jnp.zeros((), jnp.int32), network, key)

    def compute_gradients(
        self, params: Params, learner_state: DQNState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        noise = derive(learner_state.key, "noise") if self.config.noisy else None
        networks = (params["network"], learner_state.target)
        grads, logs = jax.grad(self.loss, has_aux=True)(*networks, batch, noise)
        return {"network": grads, "epsilon": jnp.zeros_like(params["epsilon"])}, logs

    def loss(
        self, network: Params, target: Params, batch: Trajectory, noise: jax.Array | None = None
    ) -> tuple[jax.Array, Logs]:
        """Returns the loss on one batch, a mean over its real transitions, and logs.

        Args:
          network: parameters of the online network.
          target: parameters of the target network.
          batch: [T + 1, B, ...].
          noise: raw key for both networks' noisy layers; None: they use their means.
        """
        config = self.config
        # The burn-in uses the same noise as the rest of the unroll.
        keys = [None if noise is None else derive(noise, name) for name in ("online", "target")]
        online = partial(self.network.unroll, network, noise=keys[0])
        frozen = partial(self.network.unroll, target, noise=keys[1])
        batch, states = burn_in([online, frozen], batch, config.burn_in)
        timestep = batch.timestep
        real = timestep.step_type[:-1] != StepType.LAST
        outputs, _ = online(timestep, states[0])
        target_outputs, _ = frozen(timestep, states[1])
        values, target_values = self.values(outputs), self.values(target_outputs)
        choices, legal = values if config.double else target_values, self._legal(timestep)
        if legal is not None:
            choices = jnp.where(legal, choices, -jnp.inf)
        choice = jnp.argmax(choices, axis=-1)
        chosen = self._actions.encode(batch.action)
        value = select(values, chosen)[:-1]
        bootstrap = select(target_outputs, self._actions.encode(choice))
        outputs = select(outputs, chosen)[:-1]
        errors = self._action_values.errors(timestep, outputs, value, bootstrap)
        weight = importance_weights(batch.probability, config.importance_exponent)
        mean = mean_over(real)
        loss = mean(errors.loss * weight)
        logs = {
            "loss": loss,
            "value": mean(value),
            "target": mean(errors.target),
            "td_error": mean(jnp.abs(errors.error)),
            "real_fraction": jnp.mean(real),
            PRIORITIES: unroll_priorities(errors.surprise, real),
        }
        return loss, logs

    def _legal(self, timestep: TimeStep) -> jax.Array | None:
        """Returns which actions are legal, bool [..., num_actions]; None: all."""
        legal = self.network.legal
        return None if legal is None else legal(timestep.observation)

    def values(self, outputs: jax.Array) -> jax.Array:
        """Returns the network's outputs as action values, [..., num_actions]."""
        return self._action_values.values(outputs)

    def num_real(self, batch: Trajectory) -> int:
        return super().num_real(learned_from(batch, self.config.burn_in))

    def apply_gradients(
        self, params: Params, learner_state: DQNState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        grads, network = self._components.trained(grads["network"]), params["network"]
        updates, opt_state = self._optimizer.update(grads, learner_state.opt_state, network)
        count = next_count(learner_state.updates, self.config.target_period)
        epsilon = self.config.epsilon.after_updates(count, params["epsilon"])
        params = {"network": optax.apply_updates(network, updates), "epsilon": epsilon}
        return params, opt_state, {"gradient_norm": optax.tree.norm(grads), "epsilon": epsilon}

    def update_learner_state(self, params: Params, opt_state: Any, learner_state: Any) -> DQNState:
        config = self.config
        updates = next_count(learner_state.updates, config.target_period)
        due = updates % config.target_period == 0
        target = optax.incremental_update(
            params["network"], learner_state.target, jnp.where(due, config.target_tau, 0.0)
        )
        return DQNState(opt_state, updates, target, derive(learner_state.key, "next"))
