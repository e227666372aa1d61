"""What an agent is: pure functions over parameters, and the shapes that they give.

An agent holds settings and functions, never parameters, and knows no topology. Whoever calls it
(inferencer, learner, evaluator) jits its methods and keeps what they return.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.errors import SpecError
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, TimeStep, Trajectory

Logs = dict[str, jax.Array]  # name to scalar; PRIORITIES to [B]
PRIORITIES = "priorities"
"""The one name in logs that is no scalar: float32 [B], finite and 0 or more, the new priority of
each unroll of the batch. The learner takes it out, and sends it to a prioritized table."""

LearnerState = Any  # what a learner keeps beside the parameters: the optimiser's state and the like

_BATCH = 3  # any size will do; one that is unlikely to be another axis by chance


class Agent(abc.ABC):
    """The interface of all agents. Every method is pure and can be traced by JAX.

    Attributes:
      env_spec: what the agent's environment takes and gives.
    """

    env_spec: EnvironmentSpec

    @abc.abstractmethod
    def initial_params(self, rng: jax.Array) -> Params:
        """Fresh parameters from a raw key (uint32 [2])."""

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """The recurrent state at an episode's start, [B, ...]; `()` for an agent without memory."""

    @abc.abstractmethod
    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        """Chooses one action for each of B streams.

        The state of a stream at FIRST must be the initial one already: the caller puts it there,
        since only it knows about streams that begin a new life.

        Args:
          rng: raw key (uint32 [2]).
          params: the parameters to act with.
          timestep: [B, ...]; `env_id` is the streams' ids, int32 [B], so that streams may act in
            ways of their own. `env_info` is (). Rows that pad a batch are of stream 0.
          state: [B, ...], before this step.
          evaluation: static; True for the greedy action (or the mode) instead of a sample.

        Returns:
          the action with the extras to store beside it, and the state after this step, all
          [B, ...]. Structure, shapes and dtypes do not depend on `evaluation`.
        """

    @abc.abstractmethod
    def initial_learner_state(self, params: Params) -> LearnerState:
        """What the learner keeps from step to step beside `params`."""

    @abc.abstractmethod
    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """The loss's gradients on one batch.

        Args:
          params: to differentiate by.
          learner_state: before this step.
          batch: [T + 1, B, ...]. Transitions from LAST to FIRST reach no loss; the recurrent state
            is set to the initial one at every FIRST inside the unroll.

        Returns:
          gradients with the structure of `params`, and scalars to log; with PRIORITIES among them
          where the agent can tell what is worth to be sampled again.
        """

    @abc.abstractmethod
    def apply_gradients(
        self, params: Params, learner_state: LearnerState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """One optimiser step; returns the new parameters, the new optimiser state, and scalars."""

    @abc.abstractmethod
    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: LearnerState
    ) -> LearnerState:
        """The learner state after a step that gave `params` and `opt_state`."""

    def learner_step(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, LearnerState, Logs]:
        """One update from one batch, composed of the three methods above.

        A learner that gathers gradients from elsewhere calls the three itself.
        """
        grads, logs = self.compute_gradients(params, learner_state, batch)
        params, opt_state, more_logs = self.apply_gradients(params, learner_state, grads)
        learner_state = self.update_learner_state(params, opt_state, learner_state)
        return params, learner_state, {**logs, **more_logs}


def params_key(params: Params, use: int) -> jax.Array:
    """A raw key (uint32 [2]) for a learner state, drawn from the parameters: other seed, other key.

    Args:
      params: fresh ones.
      use: what the key is for; keys of different uses are unrelated.
    """
    key = jax.random.PRNGKey(use)
    for leaf in jax.tree.leaves(params):
        total = jnp.sum(jnp.asarray(leaf, jnp.float32))
        key = jax.random.fold_in(key, jax.lax.bitcast_convert_type(total, jnp.uint32))
    return key


def extras_struct(agent: Agent) -> Nest:
    """Shapes and dtypes of the agent's extras, of one stream: leaves `jax.ShapeDtypeStruct`.

    Traces `actor_step` without running it. No JAX backend is made, so that the process may fork
    afterwards.

    Raises:
      SpecError: where an extra has no leading batch axis.
    """
    key = jax.ShapeDtypeStruct((2,), np.uint32)

    def extras(rng: jax.Array, timestep: TimeStep) -> Nest:
        params = agent.initial_params(rng)
        output, _ = agent.actor_step(rng, params, timestep, agent.initial_state(_BATCH))
        return output.extras

    timestep = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((_BATCH, *s.shape), s.dtype),
        specs.acting_struct(agent.env_spec),
    )
    return _one_stream(jax.eval_shape(extras, key, timestep), "extras")


def state_struct(agent: Agent) -> Nest:
    """Shapes and dtypes of the agent's recurrent state, of one stream; like `extras_struct`."""
    return _one_stream(jax.eval_shape(lambda: agent.initial_state(_BATCH)), "recurrent state")


def _one_stream(batched: Nest, what: str) -> Nest:
    """Takes the batch axis off every leaf."""

    def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if leaf.shape[:1] != (_BATCH,):
            raise SpecError(
                f"agent's {what}{jax.tree_util.keystr(path)}: expected a leading batch axis of "
                f"{_BATCH}, got shape {list(leaf.shape)}"
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree_util.tree_map_with_path(one, batched)
