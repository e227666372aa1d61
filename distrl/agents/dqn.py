"""DQN: Q-learning from replay, with a target network.

Mnih et al. 2015, https://doi.org/10.1038/nature14236; double Q-learning: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461; distributions over returns (C51): Bellemare et al. 2017,
https://arxiv.org/abs/1707.06887; noisy layers: Fortunato et al. 2018,
https://arxiv.org/abs/1706.10295. With n-step returns, dueling and a prioritized table these are
Rainbow (Hessel et al. 2018, https://arxiv.org/abs/1710.02298).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dm_env import specs as dm_specs

from distrl.agents import distributions, networks
from distrl.agents.agent import PRIORITIES, Agent, Logs, params_key
from distrl.agents.exploration import EpsilonSchedule, epsilon_greedy
from distrl.agents.means import mean_over
from distrl.agents.networks import NetworkConfig
from distrl.agents.prioritized import importance_weights, unroll_priorities
from distrl.agents.rlax_import import rlax
from distrl.agents.settings import check_count, check_number, check_scalar_reward
from distrl.errors import ConfigError
from distrl.replay.buffer import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import (
    TIME_FIELDS,
    AgentOutput,
    Params,
    State,
    StepType,
    TimeStep,
    Trajectory,
)


@dataclasses.dataclass(frozen=True)
class DQNConfig:
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
      num_atoms: 1: the network learns the mean return; more: the probabilities of so many returns,
        evenly spaced from value_min to value_max (C51; 51 in the paper).
      noisy: the network explores by learned noise on its fully connected layers, so that epsilon
        is normally 0: `EpsilonSchedule(0.0, 0.0)`. An actor draws anew at each step, once for all
        streams that it acts for in it; an update draws once for the online network, whose draw
        also chooses the action of double Q-learning (the paper draws again for that), and once
        for the target network. Evaluation is without noise.
      value_min: what returns lie above; for a distribution only.
      value_max: what returns lie below; for a distribution only.
      huber_delta: errors above it count linearly; None: half the squared error everywhere. Not
        for a distribution.
      target_period: every so many updates the target network moves towards the online one,
      target_tau: by this share of the way, in (0, 1]. (100, 1.0) copies it at times; (1, 0.005)
        is a moving average.
      epsilon: of the actors' epsilon-greedy actions; evaluation is greedy. Its `spread` gives each
        stream one of its own.
      burn_in: of each unroll so many steps only bring the recurrent state up to date, for both
        networks, before what is learned from; less than the unroll has transitions.
      value_rescaling: the networks' outputs are not returns but h of them, h(x) = sign(x)
        (sqrt(|x| + 1) - 1) + x / 1000, so that rewards of any size can be learned unclipped (Pohlen
        et al. 2018, https://arxiv.org/abs/1805.11593).
      importance_exponent: an unroll sampled with probability p counts with the weight
        (p / the batch's least p) ** -importance_exponent (Schaul et al. 2016, beta), so that 1
        undoes a prioritized table's bias; a uniform table has none.
    """

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

    def __post_init__(self) -> None:
        for field, kind in (("network", NetworkConfig), ("epsilon", EpsilonSchedule)):
            value = getattr(self, field)
            if not isinstance(value, kind):
                raise ConfigError(f"agent.{field}: expected a {kind.__name__}, got {value!r}")
        for field in ("n_step", "num_atoms", "target_period"):
            check_count(self, field)
        check_number(self, "value_min", lambda x: True, "that is finite")
        check_number(
            self, "value_max", lambda x: x > self.value_min, f"above value_min={self.value_min}"
        )
        check_count(self, "burn_in", least=0)
        if not isinstance(self.noisy, bool):
            raise ConfigError(f"agent.noisy: expected True or False, got {self.noisy!r}")
        check_number(self, "discount", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_number(self, "importance_exponent", lambda x: x >= 0, "of at least 0")
        check_number(self, "target_tau", lambda x: 0 < x <= 1, "in (0, 1]")
        check_number(self, "learning_rate", lambda x: x > 0, "above 0")
        for field in ("max_gradient_norm", "huber_delta"):
            if getattr(self, field) is not None:
                check_number(self, field, lambda x: x > 0, "above 0, or None")

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Refuses unrolls of which the burn-in leaves nothing. Raises ConfigError."""
        if self.burn_in >= replay.unroll_length:
            raise ConfigError(
                f"agent.burn_in={self.burn_in} leaves nothing to learn from of unrolls of "
                f"replay.unroll_length={replay.unroll_length} transitions"
            )

    def make(self, env_spec: EnvironmentSpec) -> "DQN":
        """The agent for an environment. Raises ConfigError where the two do not fit."""
        return DQN(self, env_spec)


def n_step_targets(
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    value: jax.typing.ArrayLike,
    n_step: int,
) -> jax.Array:
    """n-step returns over windows that may hold the ends of episodes anywhere.

    The target of transition t sums rewards up to step t + n, the episode's LAST or the window's
    end, whichever comes first, and bootstraps from the value there times the discount there: at a
    true end that is 0, at a time limit the value of the true final observation.

    Args:
      step_type: [T + 1, B], StepType.
      reward: float32 [T + 1, B], each of the action before; the first row is not used.
      discount: float32 [T + 1, B], gamma included; the first row is not used.
      value: float32 [T + 1, B], of each step; the first row is not used.
      n_step: 1 or more.

    Returns:
      float32 [T, B]; without meaning at transitions that are not real. No gradient flows.
    """
    step_type, reward, discount, value = (
        jnp.asarray(x) for x in (step_type, reward, discount, value)
    )
    goes_on = jnp.asarray(step_type[1:] != StepType.LAST, jnp.float32)

    def one_stream(*arrays: jax.Array) -> jax.Array:
        # RLax's lambda of 0 bootstraps there, and takes nothing of what comes after.
        return rlax.n_step_bootstrapped_returns(*arrays[:3], n_step, arrays[3])

    columns = (reward[1:], discount[1:], value[1:], goes_on)
    return jax.vmap(one_stream, in_axes=1, out_axes=1)(*columns)


class Bootstrap(NamedTuple):
    """How n-step returns end, all [T, B]: they are `reward + factor * (value at step end)`."""

    reward: jax.Array  # what is summed
    factor: jax.Array  # 0 at a true end
    end: jax.Array  # int32


def n_step_bootstrap(
    step_type: jax.typing.ArrayLike,
    reward: jax.typing.ArrayLike,
    discount: jax.typing.ArrayLike,
    n_step: int,
) -> Bootstrap:
    """The parts of `n_step_targets`, which see, for values that are no numbers."""
    step_type = jnp.asarray(step_type)
    zeros, ones = jnp.zeros(step_type.shape), jnp.ones(step_type.shape)
    steps = jnp.arange(len(ones))[:, None] * ones
    return Bootstrap(
        n_step_targets(step_type, reward, discount, zeros, n_step),
        n_step_targets(step_type, zeros, discount, ones, n_step),
        jnp.asarray(n_step_targets(step_type, zeros, ones, steps, n_step), jnp.int32),
    )


_RESCALING = rlax.SIGNED_HYPERBOLIC_PAIR
_NO_RESCALING = rlax.IDENTITY_PAIR


class DQNState(NamedTuple):
    """The learner state."""

    opt_state: Any
    updates: jax.Array  # int32, made so far
    target: Params  # of the target network
    key: jax.Array  # uint32 [2], of noisy layers in the update to come


class DQN(Agent):
    """See DQNConfig. No extras.

    Parameters: `{"network": ..., "epsilon": float32 scalar}`: epsilon goes where they go, so that
    whoever acts explores as the learner's schedule says, and holds nothing.
    """

    def __init__(self, config: DQNConfig, env_spec: EnvironmentSpec, name: str = "DQN"):
        """Args:
        config: its settings.
        env_spec: of the environment.
        name: of the algorithm that is made of it, for messages.
        """
        check_scalar_reward(env_spec, name)
        if not isinstance(env_spec.action, dm_specs.DiscreteArray):
            raise ConfigError(
                f"action: {name} takes one DiscreteArray, got "
                + " ".join(repr(env_spec.action).split())
            )
        self.config = config
        self.env_spec = env_spec
        self._actions = distributions.Categorical(
            int(env_spec.action.num_values), env_spec.action.dtype
        )
        self.network = networks.make_q_network(
            config.network, env_spec, self._actions, config.dueling, config.num_atoms, config.noisy
        )
        self._atoms = np.linspace(
            config.value_min, config.value_max, config.num_atoms, dtype=np.float32
        )
        scaling = _RESCALING if config.value_rescaling else _NO_RESCALING
        self._scale, self._unscale = scaling
        self._optimizer = optax.adam(config.learning_rate, eps=1e-5)
        if config.max_gradient_norm is not None:
            self._optimizer = optax.chain(
                optax.clip_by_global_norm(config.max_gradient_norm), self._optimizer
            )

    def initial_params(self, rng: jax.Array) -> Params:
        return {"network": self.network.init(rng), "epsilon": self.config.epsilon(0)}

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
            rng, noise = jax.random.split(rng)
        outputs, state = self.network.step(params["network"], timestep, state, noise)
        epsilon: Any = 0.0
        if not evaluation:
            epsilon = self.config.epsilon.of_streams(params["epsilon"], timestep.env_id)
        action = epsilon_greedy(rng, self.values(outputs), epsilon)
        return AgentOutput(action.astype(self._actions.dtype), ()), state

    def initial_learner_state(self, params: Params) -> DQNState:
        network = params["network"]
        key = params_key(params, use=1)
        return DQNState(self._optimizer.init(network), jnp.zeros((), jnp.int32), network, key)

    def compute_gradients(
        self, params: Params, learner_state: DQNState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        noise = learner_state.key if self.config.noisy else None
        grads, logs = jax.grad(self.loss, has_aux=True)(
            params["network"], learner_state.target, batch, noise
        )
        return {"network": grads, "epsilon": jnp.zeros_like(params["epsilon"])}, logs

    def loss(
        self, network: Params, target: Params, batch: Trajectory, noise: jax.Array | None = None
    ) -> tuple[jax.Array, Logs]:
        """The loss on one batch, a mean over its real transitions, with what is logged of it.

        Args:
          network: of the online network.
          target: of the target network.
          batch: [T + 1, B, ...].
          noise: raw key, of both networks' noisy layers; None: they have their means.
        """
        config = self.config
        own, others = (None, None) if noise is None else jax.random.split(noise)
        batch, states = self._burn_in(batch, (network, own), (target, others))
        timestep = batch.timestep
        real = timestep.step_type[:-1] != StepType.LAST
        outputs, _ = self.network.unroll(network, timestep, states[0], own)
        target_outputs, _ = self.network.unroll(target, timestep, states[1], others)
        values, target_values = self.values(outputs), self.values(target_outputs)
        choice = jnp.argmax(values if config.double else target_values, axis=-1)
        value = self._select(values, batch.action)[:-1]
        if config.num_atoms == 1:
            targets = self._targets(timestep, self._select(target_values, choice))
            error = surprise = jnp.where(real, targets - value, 0)
            if config.huber_delta is None:
                losses = 0.5 * jnp.square(error)
            else:
                losses = optax.huber_loss(error, delta=config.huber_delta)
        else:
            aim = self._target_distribution(timestep, self._select(target_outputs, choice))
            log_probs = jax.nn.log_softmax(self._select(outputs, batch.action)[:-1])
            losses = surprise = jnp.where(real, optax.kl_divergence(log_probs, aim), 0)
            targets = aim @ self._atoms
            error = jnp.where(real, targets - value, 0)
        weight = importance_weights(batch.probability, config.importance_exponent)
        mean = mean_over(real)
        loss = mean(losses * weight)
        logs = {
            "loss": loss,
            "value": mean(value),
            "target": mean(targets),
            "td_error": mean(jnp.abs(error)),
            "real_fraction": jnp.mean(real),
            PRIORITIES: unroll_priorities(surprise, real),
        }
        return loss, logs

    def values(self, outputs: jax.Array) -> jax.Array:
        """The network's outputs as action values, [..., num_actions]."""
        if self.config.num_atoms == 1:
            return outputs
        return jax.nn.softmax(outputs) @ self._atoms

    def _targets(self, timestep: TimeStep, value: jax.Array) -> jax.Array:
        """For the value of each transition, [T, B], from the value of each step, [T + 1, B]."""
        config, unscaled = self.config, self._unscale(value)
        discount = config.discount * timestep.discount
        columns = (timestep.step_type, timestep.reward, discount, unscaled)
        return self._scale(n_step_targets(*columns, config.n_step))

    def _target_distribution(self, timestep: TimeStep, logits: jax.Array) -> jax.Array:
        """As `_targets`, of probabilities [T, B, num_atoms] from logits [T + 1, B, num_atoms]."""
        config = self.config
        discount = config.discount * timestep.discount
        ends = n_step_bootstrap(timestep.step_type, timestep.reward, discount, config.n_step)
        probs = jnp.take_along_axis(jax.nn.softmax(logits), ends.end[..., None], axis=0)
        returns = ends.reward[..., None] + ends.factor[..., None] * self._unscale(self._atoms)
        project = jax.vmap(jax.vmap(rlax.categorical_l2_project, (0, 0, None)), (0, 0, None))
        return jax.lax.stop_gradient(project(self._scale(returns), probs, self._atoms))

    def _burn_in(
        self, batch: Trajectory, *networks: tuple[Params, jax.Array | None]
    ) -> tuple[Trajectory, list[State]]:
        """The batch from step `burn_in` on, and the state before it of each network and noise."""
        start = self.config.burn_in
        if start == 0:
            return batch, [batch.state for _ in networks]
        before = jax.tree.map(lambda x: x[:start], batch.timestep)
        states = [
            self.network.unroll(params, before, batch.state, noise)[1] for params, noise in networks
        ]
        rest = {
            field: jax.tree.map(lambda x: x[start:], getattr(batch, field)) for field in TIME_FIELDS
        }
        return batch._replace(**rest), jax.lax.stop_gradient(states)

    def apply_gradients(
        self, params: Params, learner_state: DQNState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        grads, network = grads["network"], params["network"]
        updates, opt_state = self._optimizer.update(grads, learner_state.opt_state, network)
        epsilon = self.config.epsilon(learner_state.updates + 1)
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
        key = jax.random.split(learner_state.key, 1)[0]
        return DQNState(opt_state, updates, target, key)

    def _select(self, values: jax.Array, action: jax.Array) -> jax.Array:
        """`values[t, b, action]`; by one-hot, which on a CPU costs less than a gather."""
        chosen = self._actions.encode(action)
        if values.ndim == chosen.ndim:
            return jnp.sum(values * chosen, axis=-1)
        return jnp.sum(values * chosen[..., None], axis=-2)
