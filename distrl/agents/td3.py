"""TD3: a deterministic policy with twin critics, a delay, and smoothed targets.

Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from distrl.agents import continuous
from distrl.agents.action_noise import NoiseSchedule, NoisyActions
from distrl.agents.agent import Agent, Logs, params_key
from distrl.agents.components import (
    ByName,
    Components,
    components_field,
    components_for,
    part_labels,
)
from distrl.agents.continuous import ContinuousDefaults
from distrl.agents.encoders import make_encoder
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.losses.batch_share import draw
from distrl.agents.losses.means import mean_over
from distrl.agents.modules import torsos
from distrl.agents.modules.normals import BoundedActions
from distrl.agents.modules.recurrence import learned_from
from distrl.agents.networks import NetworkConfig
from distrl.agents.optimizers import annealed, make_optimizer
from distrl.agents.schedules import next_count
from distrl.agents.settings import check_annealing
from distrl.field_checks import (
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_number,
    check_sizes,
)
from distrl.random_keys import derive
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, StepType, TimeStep, Trajectory


@dataclasses.dataclass(frozen=True)
class TD3Config(ContinuousDefaults):
    """TD3's settings. Losses are means over the real transitions of a batch of unrolls.

    Noise is in units of half the action's range.

    Attributes:
      hidden_sizes: layers of the policy's MLP and of each critic's.
      activation: "relu" or "tanh".
      discount: gamma, for each step, in [0, 1].
      policy_learning_rate: Adam's learning rate for the policy.
      critic_learning_rate: Adam's learning rate for the critics.
      anneal_updates: updates over which learning rates fall linearly to 0; None: constant.
      anneal_over_budget: learning rates fall linearly to 0 over `goal.max_env_steps`, if the run
        has one, instead of over `anneal_updates`.
      num_critics: critics; targets use the least of their values, and the policy maximises the
        first.
      policy_delay: updates of the critics for each update of the policy and the target networks.
      target_tau: share of the way that target networks move in an update, in (0, 1].
      target_noise: standard deviation of the noise on the target policy's actions.
      target_noise_clip: limit of the noise on the target policy's actions, in either direction.
      exploration_noise: standard deviation of the noise on the actors' actions; evaluation has
        none.
      exploration: kind of the noise, and its schedule.
      epsilon: share of the actors' actions that are uniformly random instead. By default all are
        until the first update, which `replay.min_size_to_sample` delays, and none after it.
      components: settings of the optimiser by component, policy and critics; see `ComponentConfig`.
    """

    RANDOM_STEPS: ClassVar[int] = 10_000

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    discount: float = 0.99
    policy_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    num_critics: int = 2
    policy_delay: int = 2
    target_tau: float = 0.005
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    exploration_noise: float = 0.1
    epsilon: EpsilonSchedule = EpsilonSchedule(1.0, 0.0, updates=1)
    importance_exponent: float = 0.6
    scale_integers: bool = True
    exploration: NoiseSchedule = NoiseSchedule()
    components: ByName = components_field("deterministic")
    network: NetworkConfig = continuous.SHARED
    burn_in: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "hidden_sizes")
        check_flag(self, "scale_integers")
        check_choice(self, "activation", tuple(torsos.ACTIVATIONS))
        check_kind(self, "epsilon", EpsilonSchedule)
        for field in ("num_critics", "policy_delay"):
            check_count(self, field)
        check_number(self, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "target_tau", lambda x: 0 < x <= 1, "in (0, 1]")
        for field in ("policy_learning_rate", "critic_learning_rate"):
            check_number(self, field, lambda x: x > 0, "above 0")
        check_annealing(self)
        noise = ("target_noise", "target_noise_clip", "exploration_noise")
        for field in (*noise, "importance_exponent"):
            check_number(self, field, lambda x: x >= 0, "of at least 0")
        check_kind(self, "exploration", NoiseSchedule)
        self.exploration.check(self.exploration_noise)
        self.check_shared()

    def make(self, env_spec: EnvironmentSpec) -> "TD3":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return TD3(self, env_spec)


class TD3State(NamedTuple):
    """The learner state."""

    opt_state: dict[str, Any]  # by network
    updates: jax.Array  # int32, updates made so far
    target: Params  # the target networks'
    key: jax.Array  # uint32 [2], parent of the next update's keys


class TD3(Agent):
    """See TD3Config. No extras; a recurrent state with memory.

    Parameters: `{"policy": ..., "critics": ..., "epsilon": float32 scalar}`, and "noise" if it
    changes; see DQN for epsilon. "encoder", too, if policy and critics share something.
    """

    def __init__(self, config: TD3Config, env_spec: EnvironmentSpec, name: str = "TD3"):
        """Args:
        config: the settings.
        env_spec: spec of the environment.
        name: name of the algorithm, for messages.
        """
        continuous.check_env_spec(env_spec, name)
        self.config = config
        self.env_spec = env_spec
        self.actions = BoundedActions(env_spec.action)
        self.encoder = make_encoder(config.network, env_spec, self.actions)
        self._networks = ("policy", "critics", *self.encoder.names)
        spec = self.encoder.env_spec
        sizes, activation, scaled = config.hidden_sizes, config.activation, config.scale_integers
        self.policy = continuous.make_policy(spec, sizes, activation, self.actions.size, scaled)
        make_critics = functools.partial(
            continuous.make_critics, spec, self.actions, sizes, activation, scale_integers=scaled
        )
        self.critics = make_critics(num_critics=config.num_critics)
        # With the same parameters: XLA would compute those that an index leaves out.
        self._first_critic = make_critics(num_critics=1)
        self._exploration = NoisyActions(
            config.epsilon, config.exploration_noise, config.exploration
        )
        rates = dict.fromkeys(self._networks, (config.critic_learning_rate, 1))
        rates["policy"] = (config.policy_learning_rate, config.policy_delay)
        self._components = {name: self._components_of(name, *rate) for name, rate in rates.items()}
        self._optimizers = {
            name: make_optimizer(
                annealed(rate, config.anneal_updates, delay),
                None,
                components=self._components[name],
                epsilon=1e-8,
            )
            for name, (rate, delay) in rates.items()
        }

    def _components_of(self, name: str, learning_rate: float, delay: int) -> Components:
        """Returns the components of one of the networks, which learns every `delay` updates."""
        labels = lambda params: part_labels({name: params})[name]  # noqa: E731
        return components_for(self, learning_rate, self.config.anneal_updates, labels, delay)

    def initial_params(self, rng: jax.Array) -> Params:
        return {
            "policy": self.policy.init(derive(rng, "policy")),
            "critics": self.critics.init(derive(rng, "critics")),
            **self.encoder.initial_params(rng),
            **self._exploration.initial(),
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
        x = self.act(params["policy"], features)
        if not evaluation:
            x = self._exploration.act(rng, params, x, timestep.env_id)
        return AgentOutput(self.actions.decode(x), ()), state

    def act(self, policy: Params, observation: Nest) -> jax.Array:
        """Returns the policy's action, [..., D] in units of half its range, in [-1, 1]."""
        return jnp.tanh(self.policy.apply(policy, observation))

    def with_env_steps(self, params: Params, env_steps: int) -> Params:
        return self._exploration.with_env_steps(params, env_steps)

    def components(self, params: Params) -> Nest:
        return part_labels({name: params[name] for name in self._networks})

    def initial_learner_state(self, params: Params) -> TD3State:
        opt_state = {name: self._optimizers[name].init(params[name]) for name in self._networks}
        target = {name: params[name] for name in self._networks}
        return TD3State(opt_state, jnp.zeros((), jnp.int32), target, params_key(params, "learner"))

    def _after(self, learner_state: TD3State) -> tuple[jax.Array, jax.Array]:
        """Returns the updates after the next one, and whether that changes policy and targets."""
        count = next_count(learner_state.updates, self.config.policy_delay)
        return count, count % self.config.policy_delay == 0

    def compute_gradients(
        self, params: Params, learner_state: TD3State, batch: Trajectory
    ) -> tuple[Params, Logs]:
        rng, target = derive(learner_state.key, "noise"), learner_state.target

        def loss(learned: Params) -> tuple[jax.Array, Any]:
            online, target_batch = self.encoder.encode(learned, target, batch, self.config.burn_in)
            value, logs = self.critic_loss(learned["critics"], target, rng, online, target_batch)
            return value, (logs, online)

        learned = {name: params[name] for name in self._networks if name != "policy"}
        grads, (logs, online) = jax.grad(loss, has_aux=True)(learned)
        policy = jax.lax.cond(
            self._after(learner_state)[1],
            lambda: jax.grad(self.policy_loss)(params["policy"], params["critics"], online),
            lambda: jax.tree.map(jnp.zeros_like, params["policy"]),
        )
        zeros = {name: jnp.zeros_like(params[name]) for name in self._exploration.initial()}
        return {"policy": policy, **grads, **zeros}, logs

    def critic_loss(
        self,
        critics: Params,
        target: Params,
        rng: jax.Array,
        batch: Trajectory,
        target_batch: Trajectory | None = None,
    ) -> tuple[jax.Array, Logs]:
        """Returns the critics' loss on one batch, and logs.

        Args:
          critics: parameters of the critics.
          target: parameters of the target policy and critics.
          rng: raw key for the target noise.
          batch: [T + 1, B, ...], as the critics see it.
          target_batch: the same as the target networks see it; None: as the critics do.
        """
        config, timestep = self.config, batch.timestep
        observation, _ = continuous.split_transitions(timestep.observation)
        _, next_observation = continuous.split_transitions(
            (target_batch or batch).timestep.observation
        )
        real = timestep.step_type[:-1] != StepType.LAST
        x = self.act(target["policy"], next_observation)
        limit = config.target_noise_clip
        noise = jnp.clip(config.target_noise * draw(jax.random.normal, rng, x.shape), -limit, limit)
        action = self.actions.decode(jnp.clip(x + noise, -1, 1))
        value = jnp.min(self.critics.apply(target["critics"], next_observation, action), axis=-1)
        targets = timestep.reward[1:] + config.discount * timestep.discount[1:] * value
        values = self.critics.apply(critics, observation, batch.action[:-1])
        loss, logs = continuous.critic_loss(
            values, targets, real, batch.probability, config.importance_exponent
        )
        return loss, {"loss": loss, **logs}

    def policy_loss(self, policy: Params, critics: Params, batch: Trajectory) -> jax.Array:
        """Returns minus the mean of the first critic's values of the policy's actions."""
        observation, _ = continuous.split_transitions(batch.timestep.observation)
        real = batch.timestep.step_type[:-1] != StepType.LAST
        action = self.actions.decode(self.act(policy, observation))
        return -mean_over(real)(self._first_critic.apply(critics, observation, action)[..., 0])

    def num_real(self, batch: Trajectory) -> int:
        return super().num_real(learned_from(batch, self.config.burn_in))

    def apply_gradients(
        self, params: Params, learner_state: TD3State, grads: Params
    ) -> tuple[Params, Any, Logs]:
        after, opt_state = {}, {}
        trained = {name: part.trained(grads[name]) for name, part in self._components.items()}
        for name in self._networks:
            updates, opt_state[name] = self._optimizers[name].update(
                trained[name], learner_state.opt_state[name], params[name]
            )
            after[name] = optax.apply_updates(params[name], updates)
        count, due = self._after(learner_state)
        after["policy"], opt_state["policy"] = jax.tree.map(
            lambda new, old: jnp.where(due, new, old),
            (after["policy"], opt_state["policy"]),
            (params["policy"], learner_state.opt_state["policy"]),
        )
        scalars = self._exploration.after_updates(params, count)
        logs = {"gradient_norm": optax.tree.norm(trained), **scalars}
        return {**after, **scalars}, opt_state, logs

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: TD3State
    ) -> TD3State:
        count, due = self._after(learner_state)
        share = jnp.where(due, self.config.target_tau, 0.0)
        networks = {name: params[name] for name in self._networks}
        return TD3State(
            opt_state,
            count,
            optax.incremental_update(networks, learner_state.target, share),
            derive(learner_state.key, "next"),
        )
