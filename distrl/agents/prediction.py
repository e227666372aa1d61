"""Auxiliary predictions: of rewards, or of returns with another discount. They choose no actions.

A prediction is a task of its own, which learns from the steps of a policy that acts, and trains a
torso that the two share. Reward prediction is of UNREAL, Jaderberg et al. 2017,
https://arxiv.org/abs/1611.05397; returns of several discounts on one torso: Fedus et al. 2019,
https://arxiv.org/abs/1902.06865.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents import networks
from distrl.agents.agent import Agent, Logs
from distrl.agents.defaults import Defaults, sampled
from distrl.agents.losses.means import mean_over
from distrl.agents.losses.returns import gae
from distrl.agents.modules import distributions
from distrl.agents.networks import NetworkConfig, check_network
from distrl.agents.optimizers import make_optimizer
from distrl.agents.settings import check_scalar_reward
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_flag, check_number, check_positive_or_none
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Params, State, StepType, TimeStep, Trajectory

TARGETS = ("reward", "return")


@dataclasses.dataclass(frozen=True)
class PredictionConfig:
    """A prediction's settings. The loss is half the mean squared error over real transitions.

    Attributes:
      target: "reward": the reward of the action that was taken, for each discrete action, or from
        the observation alone for any other action; "return": the discounted return of the
        policy that acts.
      network: torso and sizes, without core; to share a torso, those of the policy that acts.
      discount: gamma of "return", for each step, in [0, 1].
      trace: lambda of the returns, in [0, 1].
      balanced: for "reward": transitions whose reward is not 0 have half of the weight, however
        rare they are, as if they were sampled as often as the others.
      learning_rate: Adam's learning rate.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
    """

    acts: ClassVar[bool] = False

    target: str = "reward"
    network: NetworkConfig = NetworkConfig()
    discount: float = 0.9
    trace: float = 0.95
    balanced: bool = True
    learning_rate: float = 1e-3
    max_gradient_norm: float | None = 10.0

    def __post_init__(self) -> None:
        check_choice(self, "target", TARGETS)
        check_network(self)
        for field in ("discount", "trace"):
            check_number(self, field, lambda x: 0 <= x <= 1, "in [0, 1]")
        check_flag(self, "balanced")
        check_number(self, "learning_rate", lambda x: x > 0, "above 0")
        check_positive_or_none(self, "max_gradient_norm")
        if self.network.core != "none":
            raise ConfigError(
                f"agent.network.core={self.network.core}: a prediction does not act, and has no "
                "recurrent state; take network.core=none"
            )

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError for a prioritized table, whose priorities it never changes."""
        if replay.table == "prioritized":
            raise ConfigError(
                "replay.table=prioritized: a prediction computes no priorities; use "
                "replay.table=queue or uniform"
            )

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`."""
        actors, learner = actors or ActorsConfig(), learner or LearnerConfig(batch_size=16)
        replay = sampled(
            actors, learner, "uniform", unroll_length=20, max_size=1_000, min_size_to_sample=32,
            samples_per_insert=1, error_buffer=256,
        )  # fmt: skip
        return Defaults(actors, learner, replay)

    def make(self, env_spec: EnvironmentSpec) -> "Prediction":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return Prediction(self, env_spec)


class Prediction(Agent):
    """See PredictionConfig. No extras, no recurrent state."""

    def __init__(self, config: PredictionConfig, env_spec: EnvironmentSpec):
        """Args: config: the settings. env_spec: spec of the environment."""
        check_scalar_reward(env_spec, "Prediction")
        self.config, self.env_spec = config, env_spec
        action = env_spec.action
        discrete = isinstance(action, dm_specs.DiscreteArray)
        outputs = int(action.num_values) if discrete and config.target == "reward" else 1
        self._per_action = discrete and outputs > 1
        # One output for each action, in the form in which the network gives action values.
        self._actions = distributions.Categorical(outputs, np.int32)
        self.network = networks.make_q_network(config.network, env_spec, self._actions)
        self._optimizer = make_optimizer(
            config.learning_rate, config.max_gradient_norm, epsilon=1e-8
        )

    def check_shares(self) -> None:
        """See `Agent`."""
        super().check_shares()
        if self.config.target == "reward" and self.config.balanced:
            raise ConfigError(
                "learner.num_gradient_workers: balanced=True of a prediction of rewards weighs "
                "transitions by their counts in the whole batch, of which a worker has a share; "
                "take False, or 0 workers"
            )

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`."""
        return self.network.init(rng)

    def initial_state(self, batch_size: int) -> State:
        """See `Agent`."""
        return ()

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        """See `Agent`: zeros, as nothing asks it for actions."""
        action = specs.zeros(self.env_spec.action, timestep.step_type.shape[0])
        return AgentOutput(jax.tree.map(jnp.asarray, action), ()), state

    def initial_learner_state(self, params: Params) -> Any:
        """See `Agent`: the optimiser's."""
        return self._optimizer.init(params)

    def compute_gradients(
        self, params: Params, learner_state: Any, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`."""
        return jax.grad(self.loss, has_aux=True)(params, batch)

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """Returns the loss on one batch, and logs."""
        timestep, config = batch.timestep, self.config
        outputs, _ = self.network.unroll(params, timestep, batch.state)
        real = timestep.step_type[:-1] != StepType.LAST
        weight = jnp.ones(real.shape)
        if config.target == "return":
            value = outputs[..., 0]
            predicted = value[:-1]
            gamma = config.discount * timestep.discount
            columns = timestep.step_type, timestep.reward, gamma, value
            target = jax.lax.stop_gradient(predicted) + gae(*columns, config.trace)
        else:
            index = batch.action if self._per_action else jnp.zeros_like(timestep.step_type, int)
            chosen = jnp.take_along_axis(outputs, jnp.asarray(index, int)[..., None], axis=-1)
            predicted, target = chosen[:-1, ..., 0], timestep.reward[1:]
            if config.balanced:
                weight = balance(target != 0, real)
        mean = mean_over(real)
        loss = 0.5 * mean(weight * jnp.square(predicted - target))
        logs = {"loss": loss, "predicted": mean(predicted), "target": mean(target)}
        return loss, {**logs, "error": mean(jnp.abs(predicted - target))}

    def apply_gradients(
        self, params: Params, learner_state: Any, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        updates, opt_state = self._optimizer.update(grads, learner_state, params)
        logs = {"gradient_norm": optax.tree.norm(grads)}
        return optax.apply_updates(params, updates), opt_state, logs

    def update_learner_state(self, params: Params, opt_state: Any, learner_state: Any) -> Any:
        """See `Agent`."""
        return opt_state


def balance(rare: jax.Array, real: jax.Array) -> jax.Array:
    """Returns weights with which rare transitions and the others have the same sum.

    Args:
      rare: bool [T, B].
      real: bool [T, B]; the others do not count.

    Returns:
      float32 [T, B], with mean 1 over the real transitions; 1 each if there are none of one kind.
    """
    count = jnp.sum(real)
    few = jnp.sum(real & rare)
    weight = jnp.where(rare, count / (2 * jnp.maximum(few, 1)), count / (2 * (count - few) + 1e-9))
    return jnp.where((few == 0) | (few == count), 1.0, weight)
