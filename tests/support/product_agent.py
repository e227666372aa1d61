"""An agent with two numbers as parameters, whose updates can be computed by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent, Logs
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Params, State, TimeStep, Trajectory


@dataclasses.dataclass(frozen=True)
class ProductConfig:
    """The `AgentConfig` of a ProductAgent. Attributes: see there; `size` of the parameters."""

    learning_rate: float = 0.1
    start: float = 1.0
    size: int = 1
    target: int = 0

    def make(self, env_spec: EnvironmentSpec) -> "ProductAgent":
        """See `AgentConfig`."""
        return ProductAgent(self, env_spec)


class ProductAgent(Agent):
    """Predicts `head * torso`; its loss is half the mean squared error to one observation.

    An update is `learning_rate` times the gradient. Parameters begin at `start`. The loss is a mean
    over all steps of a batch but the last, and the observation is number `target`.
    """

    def __init__(self, config: ProductConfig, env_spec: EnvironmentSpec):
        """Args: config: see `ProductConfig`. env_spec: its spec."""
        self.config, self.env_spec = config, env_spec

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`."""
        start = jnp.full((self.config.size,), self.config.start, jnp.float32)
        return {"torso/~/linear_0": {"w": start}, "head": {"w": start}}

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
        """See `Agent`: always action 0."""
        kind = timestep.step_type
        action = specs.zeros(self.env_spec.action, kind.shape[0])
        return AgentOutput(jnp.asarray(action), ()), state

    def initial_learner_state(self, params: Params) -> Any:
        """See `Agent`: the number of updates."""
        return jnp.zeros((), jnp.int32)

    def compute_gradients(
        self, params: Params, learner_state: Any, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`."""
        target = batch.timestep.observation[:-1, :, self.config.target]

        def loss(params: Params) -> jax.Array:
            made = params["torso/~/linear_0"]["w"][0] * params["head"]["w"][0]
            return 0.5 * jnp.mean(jnp.square(made - target))

        value, grads = jax.value_and_grad(loss)(params)
        return grads, {"loss": value}

    def apply_gradients(
        self, params: Params, learner_state: Any, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        rate = self.config.learning_rate
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), None, {}

    def update_learner_state(self, params: Params, opt_state: Any, learner_state: Any) -> Any:
        """See `Agent`."""
        return learner_state + 1


def batch_of(agent: ProductAgent, value: float, length: int = 2, size: int = 2) -> Trajectory:
    """Returns a batch `[length + 1, size]` whose observations are all `value`."""
    timestep = specs.zeros(specs.timestep_struct(agent.env_spec), length + 1, size)
    timestep = timestep._replace(observation=np.full_like(timestep.observation, value))
    shape = (length + 1, size)
    action = np.zeros(shape, agent.env_spec.action.dtype)
    numbers = np.zeros(size, np.int32)
    return Trajectory(
        timestep, action, (), np.zeros(shape, np.int32), (), numbers, numbers,
        np.ones(size, np.float32),
    )  # fmt: skip
