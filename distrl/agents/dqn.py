"""DQN: Q-learning from replay, with a target network.

Mnih et al. 2015, https://doi.org/10.1038/nature14236; double Q-learning: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461; distributions over returns (C51): Bellemare et al. 2017,
https://arxiv.org/abs/1707.06887; noisy layers: Fortunato et al. 2018,
https://arxiv.org/abs/1706.10295. With n-step returns, dueling and a prioritized table these are
Rainbow (Hessel et al. 2018, https://arxiv.org/abs/1710.02298).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dm_env import specs as dm_specs

from distrl.agents import distributions, networks
from distrl.agents.action_values import make_action_values, select
from distrl.agents.agent import PRIORITIES, Agent, Logs, params_key
from distrl.agents.defaults import Defaults, has_pixels, sampled, unrolls_within
from distrl.agents.exploration import EpsilonSchedule, epsilon_greedy, explore_legal
from distrl.agents.means import mean_over
from distrl.agents.networks import NetworkConfig
from distrl.agents.optimizers import make_optimizer
from distrl.agents.prioritized import importance_weights, unroll_priorities
from distrl.agents.recurrence import burn_in, check_memory, check_unrolls
from distrl.agents.settings import (
    SavedSettings,
    check_count,
    check_flag,
    check_function,
    check_kind,
    check_number,
    check_positive_or_none,
    check_scalar_reward,
)
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.random_keys import derive
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Params, State, StepType, TimeStep, Trajectory


@dataclasses.dataclass(frozen=True)
class DQNConfig(SavedSettings):
    """DQN's settings. The loss is a mean over the real transitions of a batch of unrolls.

    Attributes:
      network: torso, core and sizes. With the core "lstm" unrolls begin with the state that the
        actor stored.
      discount: gamma, for each step, in [0, 1].
      learning_rate: Adam's.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      n_step: rewards that a target sums before it bootstraps; fewer where the episode or the
        unroll ends before. Not corrected for exploration.
      double: the online network chooses the action that the target network values.
      dueling: a state value plus advantages (Wang et al. 2016).
      dueling_streams: the two have a last hidden layer each, as in the paper; False: they share
        it, as all runs did before this setting.
      num_atoms: 1: the network learns the mean return; more: the probabilities of that many
        returns, evenly spaced from value_min to value_max (C51; 51 in the paper).
      noisy: the network explores by learned noise on its fully connected layers; epsilon is then
        normally 0: `EpsilonSchedule(0.0, 0.0)`. An actor draws noise at each step, once for all
        its streams. An update draws once for the online network, whose draw also chooses the
        action of double Q-learning (the paper draws again for that), and once for the target
        network. Evaluation is without noise.
      value_min, value_max: bounds of returns; for distributions only.
      huber_delta: errors above it count linearly; None: half the squared error everywhere. Not
        for distributions.
      target_period: updates between two moves of the target network towards the online one.
      target_tau: share of the way of each move, in (0, 1]. Period 100 and tau 1.0 copy it at times;
        1 and 0.005 are a moving average.
      epsilon: schedule of the actors' epsilon-greedy actions. Its `spread` gives each stream an
        epsilon.
      explore: your own function in the place of epsilon-greedy actions; JAX traces it: `(rng,
        values [B, A], epsilon) -> actions`, epsilon a scalar or [B]. Not for evaluation.
      evaluation_epsilon: epsilon of evaluation, above 0 so that an episode cannot go round in
        circles up to its time limit (0.05 in the paper; 0.001 as in Dopamine, Castro et al. 2018,
        https://arxiv.org/abs/1812.06110). `load_policy` is greedy without it.
      burn_in: steps of each unroll that only bring the recurrent state of both networks up to
        date and are not learned from; less than the unroll has transitions.
      value_rescaling: the networks' outputs are not returns but h of them, h(x) = sign(x)
        (sqrt(|x| + 1) - 1) + x / 1000, so that rewards of any size can be learned unclipped (Pohlen
        et al. 2018, https://arxiv.org/abs/1805.11593).
      importance_exponent: an unroll sampled with probability p counts with the weight
        (p / the batch's least p) ** -importance_exponent (Schaul et al. 2016, beta), so that 1
        undoes a prioritized table's bias; a uniform table has none.
    """

    BEFORE: ClassVar[Mapping[str, Any]] = {"dueling_streams": False, "evaluation_epsilon": 0.0}

    network: NetworkConfig = NetworkConfig(hidden_sizes=(128, 128), activation="relu")
    discount: float = 0.99
    learning_rate: float = 1e-3
    max_gradient_norm: float | None = 10.0
    n_step: int = 1
    double: bool = True
    dueling: bool = False
    num_atoms: int = 1
    noisy: bool = False
    value_min: float = -10.0
    value_max: float = 10.0
    huber_delta: float | None = 1.0
    target_period: int = 100
    target_tau: float = 1.0
    epsilon: EpsilonSchedule = EpsilonSchedule()
    burn_in: int = 0
    value_rescaling: bool = False
    importance_exponent: float = 0.6
    evaluation_epsilon: float = 0.001
    dueling_streams: bool = True
    explore: Any = None

    def __post_init__(self) -> None:
        check_kind(self, "network", NetworkConfig)
        check_kind(self, "epsilon", EpsilonSchedule)
        for field in ("n_step", "num_atoms", "target_period"):
            check_count(self, field)
        check_number(self, "value_min", lambda x: True, "that is finite")
        check_number(
            self, "value_max", lambda x: x > self.value_min, f"above value_min={self.value_min}"
        )
        check_count(self, "burn_in", least=0)
        check_memory(self.burn_in, self.network)
        for field in ("noisy", "dueling_streams"):
            check_flag(self, field)
        check_number(self, "evaluation_epsilon", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "importance_exponent", lambda x: x >= 0, "of at least 0")
        check_number(self, "target_tau", lambda x: 0 < x <= 1, "in (0, 1]")
        check_number(self, "learning_rate", lambda x: x > 0, "above 0")
        check_positive_or_none(self, "max_gradient_norm")
        check_positive_or_none(self, "huber_delta")
        check_function(self, "explore", "(rng, values, epsilon)")

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError if unrolls are too short for `burn_in` and `n_step`."""
        check_unrolls(self.burn_in, self.n_step, replay.unroll_length)

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "DQNConfig":
        """Returns settings that suit an environment."""
        if not has_pixels(env_spec):
            return cls(n_step=5)
        epsilon = EpsilonSchedule(end=0.02, steps=40_000)
        return cls(n_step=3, learning_rate=2e-4, target_period=1_000, epsilon=epsilon)

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        Each step is trained on eight times; ends of unrolls shorten the n-step returns. With
        pixels there are as many updates as in the paper: one of 32 transitions every four steps;
        frames of 84x84 in stacks of four take 2.5 GB, and larger ones no more.
        """
        pixels = has_pixels(env_spec)
        length = 8 if pixels else 16
        max_size = unrolls_within(10_000 if pixels else 4_000, env_spec, length)
        actors = actors or ActorsConfig(num_envs=8)
        learner = learner or LearnerConfig(batch_size=4 if pixels else 8)
        replay = sampled(
            actors,
            learner,
            "uniform",
            unroll_length=length,
            max_size=max_size,
            min_size_to_sample=min(500 if pixels else 128, max_size),
            samples_per_insert=8,
            error_buffer=256,
        )
        return Defaults(actors, learner, replay, ("reward_clip" if pixels else "reward_scale",))

    def make(self, env_spec: EnvironmentSpec) -> "DQN":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return DQN(self, env_spec)


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

    def __init__(self, config: DQNConfig, env_spec: EnvironmentSpec, name: str = "DQN"):
        """Args:
        config: the settings.
        env_spec: spec of the environment.
        name: name of the algorithm, for messages.
        """
        check_scalar_reward(env_spec, name)
        if not isinstance(env_spec.action, dm_specs.DiscreteArray):
            got = " ".join(repr(env_spec.action).split())
            raise ConfigError(f"action: {name} takes one DiscreteArray, got {got}")
        self.config = config
        self.env_spec = env_spec
        self._actions = distributions.Categorical(
            int(env_spec.action.num_values), env_spec.action.dtype
        )
        self.network = networks.make_q_network(
            config.network,
            env_spec,
            self._actions,
            config.dueling and ("streams" if config.dueling_streams else "heads"),
            config.num_atoms,
            config.noisy,
        )
        self._action_values = make_action_values(config)
        self._optimizer = make_optimizer(config.learning_rate, config.max_gradient_norm)

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
        noise = None
        if self.config.noisy and not evaluation:
            noise = derive(rng, "noise")
        outputs, state = self.network.step(params["network"], timestep, state, noise)
        epsilon: Any = self.config.evaluation_epsilon
        if not evaluation:
            epsilon = self.config.epsilon.of_streams(params["epsilon"], timestep.env_id)
        values, key = self.values(outputs), derive(rng, "exploration")
        legal = self._legal(timestep)
        if evaluation or self.config.explore is None:
            action = epsilon_greedy(key, values, epsilon, legal)
        elif legal is None:
            action = self.config.explore(key, values, epsilon)
        else:
            action = explore_legal(self.config.explore, key, values, epsilon, legal)
        return AgentOutput(action.astype(self._actions.dtype), ()), state

    def with_env_steps(self, params: Params, env_steps: int) -> Params:
        return self.config.epsilon.in_params(params, env_steps)

    def initial_learner_state(self, params: Params) -> DQNState:
        network = params["network"]
        key = params_key(params, "learner")
        return DQNState(self._optimizer.init(network), jnp.zeros((), jnp.int32), network, key)

    def compute_gradients(
        self, params: Params, learner_state: DQNState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        noise = derive(learner_state.key, "noise") if self.config.noisy else None
        grads, logs = jax.grad(self.loss, has_aux=True)(
            params["network"], learner_state.target, batch, noise
        )
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
        online = functools.partial(self.network.unroll, network, noise=keys[0])
        frozen = functools.partial(self.network.unroll, target, noise=keys[1])
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

    def apply_gradients(
        self, params: Params, learner_state: DQNState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        grads, network = grads["network"], params["network"]
        updates, opt_state = self._optimizer.update(grads, learner_state.opt_state, network)
        epsilon = self.config.epsilon.after_updates(learner_state.updates + 1, params["epsilon"])
        params = {"network": optax.apply_updates(network, updates), "epsilon": epsilon}
        return params, opt_state, {"gradient_norm": optax.tree.norm(grads), "epsilon": epsilon}

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: DQNState
    ) -> DQNState:
        updates, config = learner_state.updates + 1, self.config
        due = updates % config.target_period == 0
        target = optax.incremental_update(
            params["network"], learner_state.target, jnp.where(due, config.target_tau, 0.0)
        )
        return DQNState(opt_state, updates, target, derive(learner_state.key, "next"))
