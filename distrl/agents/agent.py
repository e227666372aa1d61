"""The interface of agents: pure functions over parameters.

An agent holds settings and functions, never parameters, and knows no topology. Its callers
(inferencer, learner, evaluator) jit its methods and keep the results.
"""

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.action_distribution import ActionDistribution
from distrl.agents.losses.batch_share import weighted_mean
from distrl.errors import ConfigError
from distrl.random_keys import derive, numbered, root
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, StepType, TimeStep, Trajectory

Logs = dict[str, jax.Array]  # name to scalar; PRIORITIES to [B]
PRIORITIES = "priorities"
"""The one name in logs that is not a scalar: float32 [B], finite and 0 or more, the new priority of
each unroll of the batch. The learner takes it out and sends it to a prioritized table."""

LearnerState = Any  # a learner's state besides the parameters, e.g. the optimiser's


class Agent(abc.ABC):
    """The interface of all agents. Every method is pure and can be traced by JAX.

    Attributes:
      env_spec: spec of the agent's environment.
    """

    env_spec: EnvironmentSpec

    @abc.abstractmethod
    def initial_params(self, rng: jax.Array) -> Params:
        """Returns new parameters from a raw key (uint32 [2]); see `distrl.random_keys`."""

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """Returns the recurrent state at an episode's start, [B, ...]; `()` without memory.

        All rows are the same, whatever B: a stream gets the one of a batch of 1. What should differ
        between streams follows from `timestep.env_id` in `actor_step`.
        """

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

        The caller must set the state of a stream at FIRST to the initial one, since only it knows
        about streams whose actor has restarted.

        Args:
          rng: raw key (uint32 [2]), another one in each call; see `distrl.random_keys`.
          params: the parameters to act with.
          timestep: [B, ...]; `env_id` has the streams' ids, int32 [B], so that streams may act
            differently. `env_info` is (). Rows that pad a batch have stream 0.
          state: [B, ...], before this step.
          evaluation: static; True for the greedy action (or the mode) instead of a sample.

        Returns:
          The action with the extras to store with it, and the state after this step, all
          [B, ...]. Structure, shapes and dtypes do not depend on `evaluation`; those of the state
          are `initial_state`'s.
        """

    def action_distribution(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> ActionDistribution | None:
        """Returns the distribution of `actor_step`'s actions, given the same arguments.

        With `evaluation` an agent that samples gives the distribution that it would sample from.
        None, the default: the agent has none, or does not know it.
        """
        del rng, params, timestep, state, evaluation
        return None

    def with_env_steps(self, params: Params, env_steps: int) -> Params:
        """Returns the parameters, in which all that depends on environment steps is up to date.

        The learner calls it before each update, outside of JAX: it must be cheap. It should replace
        leaves, and compute with none: else updates cannot overwrite arrays, which costs some speed.

        Args:
          params: the parameters, which are not changed; or their shapes and dtypes.
          env_steps: environment steps of all actors so far, in unrolls that reached the table.
        """
        return params

    def components(self, params: Params) -> Nest:
        """Returns the component of each leaf that an optimiser changes; () if all are one.

        Args:
          params: the parameters, or their shapes and dtypes.

        Returns:
          A nest of names with the structure of those parameters; see `distrl.agents.components`.
        """
        return ()

    @abc.abstractmethod
    def initial_learner_state(self, params: Params) -> LearnerState:
        """Returns the learner's state besides `params`, before the first step.

        Keys in it are raw keys, such as those that `params_key` returns.
        """

    @abc.abstractmethod
    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """Returns the loss's gradients on one batch.

        Args:
          params: the parameters to differentiate by.
          learner_state: the state before this step.
          batch: [T + 1, B, ...]. Transitions from LAST to FIRST contribute to no loss; the
            recurrent state is reset to the initial one at every FIRST inside the unroll.

        Returns:
          Gradients with the structure of `params`, and scalars to log; with PRIORITIES among them
          if the agent supports prioritized replay.
        """

    @abc.abstractmethod
    def apply_gradients(
        self, params: Params, learner_state: LearnerState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """Makes one optimiser step; returns parameters, optimiser state, and scalars to log."""

    @abc.abstractmethod
    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: LearnerState
    ) -> LearnerState:
        """Returns the learner state after a step that resulted in `params` and `opt_state`."""

    def learner_step(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, LearnerState, Logs]:
        """Makes one update from one batch, by the three methods above.

        Parameters and learner state keep their structure, shapes and dtypes. A learner that
        combines gradients of several batches calls the three itself.
        """
        grads, logs = self.compute_gradients(params, learner_state, batch)
        params, opt_state, more_logs = self.apply_gradients(params, learner_state, grads)
        learner_state = self.update_learner_state(params, opt_state, learner_state)
        return params, learner_state, {**logs, **more_logs}

    # Gradients of shares of a batch, computed apart; see `distrl.agents.losses.batch_share`.

    def check_shares(self) -> None:
        """Raises ConfigError if a batch's gradients cannot be computed in shares, with the reason.

        A loss allows it if it divides only by counts of `mean_over`, and draws by
        `batch_share.draw`.
        """
        if type(self).learner_step is not Agent.learner_step:
            raise ConfigError(
                f"learner.num_gradient_workers: {type(self).__name__} makes its updates itself, "
                "not one from the gradients of each batch, so that there are none to share; take 0"
            )

    def counted(self, params: Params, learner_state: LearnerState, batch: Trajectory) -> Trajectory:
        """Returns a batch of host arrays with the step types and probabilities of the loss."""
        return batch

    def num_real(self, batch: Trajectory) -> int:
        """Returns the number of transitions that the loss on a batch of host arrays is a mean over.

        Args: batch: [T + 1, B, ...], as `counted` returns it; only its step types are looked at.
        """
        return int(np.count_nonzero(batch.timestep.step_type[:-1] != StepType.LAST))

    def combine_gradients(self, grads: Sequence[Params], weights: Sequence[float]) -> Params:
        """Returns a batch's gradients from those of its shares, weighted with their sizes."""
        return weighted_mean(grads, weights)


def params_key(params: Params, purpose: str) -> jax.Array:
    """Returns a raw key (uint32 [2]) for a learner state, which depends on the seed of `params`.

    Args:
      params: new parameters.
      purpose: what the key is for; keys for different purposes are unrelated.
    """
    key = derive(root(0), purpose)
    for leaf in jax.tree.leaves(params):
        total = jnp.sum(jnp.asarray(leaf, jnp.float32))
        key = numbered(key, jax.lax.bitcast_convert_type(total, jnp.uint32))
    return key
