"""The interface of agents: pure functions over parameters, and the shapes of their results.

An agent holds settings and functions, never parameters, and knows no topology. Its callers
(inferencer, learner, evaluator) jit its methods and keep the results.
"""

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.action_distribution import ActionDistribution
from distrl.agents.losses.batch_share import weighted_mean
from distrl.agents.weak_types import strong
from distrl.errors import ConfigError, SpecError
from distrl.random_keys import derive, numbered, root
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Nest, Params, State, StepType, TimeStep, Trajectory

Logs = dict[str, jax.Array]  # name to scalar; PRIORITIES to [B]
PRIORITIES = "priorities"
"""The one name in logs that is not a scalar: float32 [B], finite and 0 or more, the new priority of
each unroll of the batch. The learner takes it out and sends it to a prioritized table."""

LearnerState = Any  # a learner's state besides the parameters, e.g. the optimiser's

_BATCH = 3  # arbitrary, but unlikely to be the size of another axis
_KEY = jax.ShapeDtypeStruct((2,), np.uint32)  # a raw one


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
        """Returns the parameters with all that follows from how much the program has acted.

        The learner calls it before each update, outside of JAX: it must be cheap.

        Args:
          params: not changed.
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

        A key in it is a raw one, as of `params_key`.
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

        A loss that can divides by counts of `mean_over` only, and draws by `batch_share.draw`.
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
        """Returns a batch's gradients, given those of its shares and their parts of the batch."""
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


def params_struct(agent: Agent) -> Params:
    """Returns shapes and dtypes of the parameters, as `extras_struct` does."""
    return jax.eval_shape(lambda key: strong(agent.initial_params(key)), _KEY)


def extras_struct(agent: Agent) -> Nest:
    """Returns shapes and dtypes of one stream's extras, leaves `jax.ShapeDtypeStruct`.

    Traces `actor_step` without running it. No JAX backend is initialised, so that the process may
    fork afterwards.

    Raises:
      SpecError: an extra has no leading batch axis, or the state after the step has another
        structure, shape or dtype than the initial one.
    """

    def extras(rng: jax.Array, timestep: TimeStep) -> Nest:
        params = agent.initial_params(rng)
        state = agent.initial_state(_BATCH)
        output, after = agent.actor_step(rng, params, timestep, state)
        check_kept(state, after, "state", "actor_step")
        return output.extras

    timestep = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((_BATCH, *s.shape), s.dtype),
        specs.acting_struct(agent.env_spec),
    )
    return _one_stream(jax.eval_shape(extras, _KEY, timestep), "extras")


def state_struct(agent: Agent) -> Nest:
    """Returns shapes and dtypes of one stream's recurrent state; like `extras_struct`."""
    return _one_stream(jax.eval_shape(lambda: agent.initial_state(_BATCH)), "recurrent state")


def initial_row(agent: Agent) -> State:
    """Returns `initial_state(1)`, with which every episode of every stream begins.

    Raises:
      SpecError: the rows of a larger batch are others.
    """
    one, several = agent.initial_state(1), agent.initial_state(_BATCH)
    leaves = jax.tree_util.tree_leaves_with_path(one)
    for (path, leaf), rows in zip(leaves, jax.tree.leaves(several), strict=True):
        first = np.asarray(leaf)[0].tobytes()
        if any(row.tobytes() != first for row in np.asarray(rows)):
            raise SpecError(
                f"agent's initial_state({_BATCH}) has rows that differ from initial_state(1), in "
                f"state{jax.tree_util.keystr(path)}: every stream begins with "
                "the one row of initial_state(1); take what differs between streams from "
                "timestep.env_id in actor_step"
            )
    return one


def has_memory(agent: Agent) -> bool:
    """Returns whether an agent has recurrent state."""
    return bool(jax.tree.leaves(state_struct(agent)))


def check_raw(name: str, leaf: Any) -> None:
    """Raises SpecError if a leaf is a typed key, which is no array of numbers. Args: name: its."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise SpecError(
            f"{name} is a typed key, {leaf.dtype}, which cannot be stored: use a raw one (uint32 "
            "[2]), of jax.random.PRNGKey or jax.random.key_data"
        )


def check_kept(before: Nest, after: Nest, name: str, function: str) -> None:
    """Refuses what a function has made of a nest if a leaf comes or goes, or has another form.

    Args:
      before, after: nests of arrays, of the function's arguments and of its result; perhaps traced.
      name: what they are, for the message.
      function: the function, likewise.

    Raises:
      SpecError: a leaf's shape or dtype has changed, or the structure.
    """
    old, structure = jax.tree_util.tree_flatten_with_path(before)
    new, new_structure = jax.tree_util.tree_flatten_with_path(after)
    forms: dict[str, list[str]] = {}
    for index, leaves in enumerate((old, new)):
        for path, leaf in leaves:
            form = f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"
            forms.setdefault(name + jax.tree_util.keystr(path), ["", ""])[index] = form
    for leaf_name, (was, now) in forms.items():
        if was != now:
            given = f"{leaf_name} as {was}" if was else f"no {leaf_name}"
            raise SpecError(
                f"{function} was given {given}, and returns {now or 'none'}: it must keep each "
                "leaf, with its shape and dtype"
            )
    if old and structure != new_structure:  # the leaves have the same names
        texts = str(structure), str(new_structure)
        same = next(i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y)
        given, returned = (text[max(0, same - 40) :][:80] for text in texts)
        raise SpecError(
            f"{function} was given {name} in the structure ...{given}..., and returns "
            f"...{returned}...: it must keep the structure"
        )


def _one_stream(batched: Nest, what: str) -> Nest:
    """Removes the batch axis of every leaf."""

    def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        name = f"agent's {what}{jax.tree_util.keystr(path)}"
        check_raw(name, leaf)
        if leaf.shape[:1] != (_BATCH,):
            raise SpecError(
                f"{name}: expected a leading batch axis of {_BATCH}, got shape {list(leaf.shape)}"
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return jax.tree_util.tree_map_with_path(one, batched)
