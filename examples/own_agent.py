"""Your own agent: an advantage actor-critic in JAX and Optax, in 100 lines.

distrl train --experiment=examples/own_agent.py --topology=heavy_env
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from distrl import envs
from distrl.agents.agent import Agent, Logs
from distrl.agents.losses.means import mean_over
from distrl.agents.losses.returns import gae
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms import RewardScale
from distrl.types import AgentOutput, Params, State, StepType, TimeStep, Trajectory


@dataclasses.dataclass(frozen=True)
class OwnConfig:
    """The settings. Each is a flag, such as --config.agent.learning_rate=1e-3."""

    hidden: int = 64
    discount: float = 0.99
    gae_lambda: float = 0.95
    learning_rate: float = 3e-3
    entropy_cost: float = 0.01

    def make(self, env_spec: EnvironmentSpec) -> "OwnAgent":
        return OwnAgent(self, env_spec)


class LearnerState(NamedTuple):
    opt_state: Any


class OwnAgent(Agent):
    """Pure functions over parameters: nothing is kept here but the settings."""

    def __init__(self, config: OwnConfig, env_spec: EnvironmentSpec):
        self.config, self.env_spec = config, env_spec
        self.sizes = (env_spec.observation.shape[0], config.hidden, config.hidden)
        self.num_actions = env_spec.action.num_values
        self.optimizer = optax.chain(
            optax.clip_by_global_norm(0.5), optax.adam(config.learning_rate)
        )

    def network(self, params: Params, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns logits [..., A] and values [...] of observations [..., D]."""
        for layer in params["torso"]:
            observation = jnp.tanh(observation @ layer["w"] + layer["b"])
        out = observation @ params["head"]["w"] + params["head"]["b"]
        return out[..., :-1], out[..., -1]

    def initial_params(self, rng: jax.Array) -> Params:
        sizes = (*self.sizes, self.num_actions + 1)
        layers = [
            {"w": jax.random.normal(key, (m, n)) / np.sqrt(m), "b": jnp.zeros(n)}
            for key, m, n in zip(jax.random.split(rng, 3), sizes, sizes[1:])
        ]
        layers[-1]["w"] *= 0.01  # all actions are equally likely at first
        return {"torso": layers[:-1], "head": layers[-1]}

    def initial_state(self, batch_size: int) -> State:
        return ()  # no memory

    def actor_step(
        self, rng: jax.Array, params: Params, timestep: TimeStep, state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:  # fmt: skip
        logits, _ = self.network(params, timestep.observation)
        action = logits.argmax(-1) if evaluation else jax.random.categorical(rng, logits)
        return AgentOutput(action.astype(jnp.int32), ()), state

    def initial_learner_state(self, params: Params) -> LearnerState:
        return LearnerState(self.optimizer.init(params))

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """Takes a batch [T + 1, B, ...]: T transitions, and the step to bootstrap from."""
        timestep, config = batch.timestep, self.config
        logits, value = self.network(params, timestep.observation)
        discount = config.discount * timestep.discount  # 0 at a true end
        columns = (timestep.step_type, timestep.reward, discount, value)
        advantage = gae(*columns, config.gae_lambda)
        error = jax.lax.stop_gradient(advantage + value[:-1]) - value[:-1]
        log_probs = jax.nn.log_softmax(logits[:-1])
        taken = jnp.take_along_axis(log_probs, batch.action[:-1, :, None], axis=-1)[..., 0]
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        real = timestep.step_type[:-1] != StepType.LAST  # LAST to FIRST is no transition
        losses = -taken * advantage + 0.25 * error**2 - config.entropy_cost * entropy
        loss = mean_over(real)(losses)
        return loss, {"loss": loss, "entropy": jnp.mean(entropy)}

    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        return jax.grad(self.loss, has_aux=True)(params, batch)

    def apply_gradients(
        self, params: Params, learner_state: LearnerState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        updates, opt_state = self.optimizer.update(grads, learner_state.opt_state)
        return optax.apply_updates(params, updates), opt_state, {}

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: LearnerState
    ) -> LearnerState:
        return LearnerState(opt_state)


experiment = Experiment(
    envs.make("CartPole-v1"),
    OwnConfig(),
    ReplayConfig("queue", unroll_length=16, max_size=32),
    ActorsConfig(num_actors=2, num_envs=8),
    learner=LearnerConfig(batch_size=16),
    transforms=(RewardScale(0.1),),
)
