"""An agent that acts on and learns from transformed data."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.action_distribution import ActionDistribution
from distrl.agents.agent import Agent, LearnerState, Logs, params_key
from distrl.agents.structs import has_memory
from distrl.random_keys import derive
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import Transform, specs_seen
from distrl.transforms.checks import check_statistics, check_step, check_unroll
from distrl.types import AgentOutput, Nest, Params, State, TimeStep, Trajectory


class TransformedState(NamedTuple):
    """The learner state."""

    agent: LearnerState
    key: jax.Array  # uint32 [2], parent of the keys of the next batch's transforms


class TransformedAgent(Agent):
    """An agent that acts on and learns from transformed time steps and batches.

    Its parameters are `{"agent": the agent's, "statistics": {transform: its statistics}}`, so that
    statistics have the parameters' version: a batch is transformed with those of the parameters
    that learn from it, and is counted in the next version's.

    Its recurrent state is `{"agent": the agent's, transform: its state}`, or `()`.

    Its gradients are `{"agent": the agent's, "statistics": the batch's}`. Those of several batches
    are combined by averaging the former and merging the latter.

    Attributes:
      transforms: pairs of a transform and the spec before it, in order.
      stateful: names of those that keep a state for each stream.
    """

    def __init__(self, agent: Agent, transforms: Sequence[Transform], env_spec: EnvironmentSpec):
        """Args:
        agent: the agent, made for transformed time steps.
        transforms: the transforms, in order, from the raw time step to the agent.
        env_spec: raw spec of the environment.

        Raises:
          ConfigError: the statistics of a transform would never change.
        """
        self.env_spec = env_spec
        self.agent = agent
        self._keeps_counts = False  # until `_counts` has been traced
        seen = specs_seen(transforms, env_spec)
        self.transforms = list(zip(transforms, seen, strict=False))
        for transform, spec in self.transforms:
            check_statistics(transform, spec)
        self._after = {each.name: spec for each, spec in zip(transforms, seen[1:], strict=True)}
        self.stateful = {
            transform.name
            for transform, spec in self.transforms
            if jax.tree.leaves(transform.initial_state(spec, 1))
        }

    def check_transforms(self, config: Any, replay: ReplayConfig, batch: Trajectory) -> None:
        """Refuses transforms that do not suit algorithm or table, or break their declarations.

        Args:
          config: the algorithm's settings.
          replay: the table's settings.
          batch: shapes and dtypes of a batch; it is only traced, and no backend is initialised.

        Raises:
          ConfigError: a transform does not suit; the message says what would.
        """
        for transform, _ in self.transforms:
            transform.check(config, self, replay)

        key = jax.ShapeDtypeStruct((2,), np.uint32)
        jax.eval_shape(self._transform, self._initial_statistics(), key, batch)

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`."""
        statistics = jax.tree.map(jnp.asarray, self._initial_statistics())
        return {"agent": self.agent.initial_params(rng), "statistics": statistics}

    def _initial_statistics(self) -> dict[str, Nest]:
        """Returns the statistics by transform, NumPy arrays, where a transform has any."""
        return {
            transform.name: initial
            for transform, spec in self.transforms
            if jax.tree.leaves(initial := transform.initial_statistics(spec))
        }

    def initial_state(self, batch_size: int) -> State:
        """See `Agent`."""
        states = {
            transform.name: transform.initial_state(spec, batch_size)
            for transform, spec in self.transforms
            if transform.name in self.stateful
        }
        inner = self.agent.initial_state(batch_size)
        return {"agent": inner, **states} if states or jax.tree.leaves(inner) else ()

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        """See `Agent`."""
        timestep, after = self._seen_by_agent(params, timestep, state)
        inner = self._part(state, "agent")
        output, inner = self.agent.actor_step(rng, params["agent"], timestep, inner, evaluation)
        return output, {"agent": inner, **after} if state != () else ()

    def action_distribution(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> ActionDistribution | None:
        """See `Agent`."""
        timestep, _ = self._seen_by_agent(params, timestep, state)
        inner = self._part(state, "agent")
        return self.agent.action_distribution(rng, params["agent"], timestep, inner, evaluation)

    def _seen_by_agent(
        self, params: Params, timestep: TimeStep, state: State
    ) -> tuple[TimeStep, dict[str, State]]:
        """Returns the transformed time step, and the states of transforms after it, by name."""
        after = {}
        for transform, _ in self.transforms:
            name = transform.name
            statistics = params["statistics"].get(name, ())
            before = timestep
            timestep, part = transform.step(statistics, self._part(state, name), before)
            check_step(transform, before, timestep, self._after[name])
            if name in self.stateful:
                after[name] = part
        return timestep, after

    @staticmethod
    def _part(state: State, name: str) -> State:
        return state.get(name, ()) if isinstance(state, dict) else ()

    def with_env_steps(self, params: Params, env_steps: int) -> Params:
        """See `Agent`."""
        return {**params, "agent": self.agent.with_env_steps(params["agent"], env_steps)}

    def components(self, params: Params) -> Nest:
        """See `Agent`: the agent's; statistics have no optimiser."""
        return self.agent.components(params["agent"])

    def initial_learner_state(self, params: Params) -> TransformedState:
        """See `Agent`."""
        key = params_key(params["agent"], "transforms")
        return TransformedState(self.agent.initial_learner_state(params["agent"]), key)

    def transform(
        self, params: Params, learner_state: TransformedState, batch: Trajectory
    ) -> tuple[Trajectory, dict[str, Any]]:
        """Returns the batch as the agent learns from it, and its statistics by transform."""
        return self._transform(params["statistics"], learner_state.key, batch)

    def _transform(
        self, statistics: dict[str, Nest], key: jax.Array, batch: Trajectory
    ) -> tuple[Trajectory, dict[str, Any]]:
        batch_statistics = {}
        state = batch.state
        for transform, _ in self.transforms:
            name = transform.name
            if name in statistics:
                batch_statistics[name] = transform.batch_statistics(batch)
            rng = derive(key, f"transform {name}")
            before, part = batch, self._part(state, name)
            batch = transform.unroll(statistics.get(name, ()), part, rng, before)
            check_unroll(transform, before, batch, self._after[name])
        return batch._replace(state=self._part(state, "agent")), batch_statistics

    def merge_statistics(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """Returns the statistics of the data of both, by transform."""
        return {
            transform.name: transform.merge_statistics(old[transform.name], new[transform.name])
            for transform, _ in self.transforms
            if transform.name in old
        }

    def compute_gradients(
        self, params: Params, learner_state: TransformedState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`; see the class for the gradients of statistics."""
        batch, statistics = self.transform(params, learner_state, batch)
        grads, logs = self.agent.compute_gradients(params["agent"], learner_state.agent, batch)
        return {"agent": grads, "statistics": statistics}, logs

    def check_shares(self) -> None:
        """See `Agent`."""
        self.agent.check_shares()

    def counted(
        self, params: Params, learner_state: TransformedState, batch: Trajectory
    ) -> Trajectory:
        """See `Agent`. Only what these depend on is computed, and nothing if they stay the same."""
        if self._keeps_counts:
            return batch
        step_type, probability = self._counts(params["statistics"], learner_state.key, batch)
        timestep = batch.timestep._replace(step_type=np.asarray(step_type))
        return batch._replace(timestep=timestep, probability=np.asarray(probability))

    @functools.cached_property
    def _counts(self) -> Callable[..., tuple[jax.Array, jax.Array]]:
        """Compiled; returns the step types and probabilities of a batch after the transforms."""

        def counts(
            statistics: Nest, key: jax.Array, batch: Trajectory
        ) -> tuple[jax.Array, jax.Array]:
            after, _ = self._transform(statistics, key, batch)
            step_type, probability = after.timestep.step_type, after.probability
            # Known from the trace: they are the inputs, whatever the batch.
            self._keeps_counts = (
                step_type is batch.timestep.step_type and probability is batch.probability
            )
            return step_type, probability

        return jax.jit(counts)

    def num_real(self, batch: Trajectory) -> int:
        """See `Agent`."""
        return self.agent.num_real(batch)

    def combine_gradients(self, grads: Sequence[Params], weights: Sequence[float]) -> Params:
        """See `Agent`."""
        inner = self.agent.combine_gradients([each["agent"] for each in grads], weights)
        statistics = functools.reduce(self.merge_statistics, (g["statistics"] for g in grads))
        return {"agent": inner, "statistics": statistics}

    def apply_gradients(
        self, params: Params, learner_state: TransformedState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        inner, opt_state, logs = self.agent.apply_gradients(
            params["agent"], learner_state.agent, grads["agent"]
        )
        statistics = self.merge_statistics(params["statistics"], grads["statistics"])
        return {"agent": inner, "statistics": statistics}, opt_state, logs

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: TransformedState
    ) -> TransformedState:
        """See `Agent`."""
        inner = self.agent.update_learner_state(params["agent"], opt_state, learner_state.agent)
        return TransformedState(inner, derive(learner_state.key, "next"))

    def learner_step(
        self, params: Params, learner_state: TransformedState, batch: Trajectory
    ) -> tuple[Params, TransformedState, Logs]:
        """See `Agent`. Calls the agent's own, which it may override, on the transformed batch."""
        batch, batch_statistics = self.transform(params, learner_state, batch)
        inner, inner_state, logs = self.agent.learner_step(
            params["agent"], learner_state.agent, batch
        )
        statistics = self.merge_statistics(params["statistics"], batch_statistics)
        after = TransformedState(inner_state, derive(learner_state.key, "next"))
        return {"agent": inner, "statistics": statistics}, after, logs


def recurrent_parts(agent: Agent) -> list[str]:
    """Returns the parts that have recurrent state, for messages; empty without memory."""
    if not isinstance(agent, TransformedAgent):
        return ["the network's core"] if has_memory(agent) else []
    return [f"the transform {name}" for name in sorted(agent.stateful)] + recurrent_parts(
        agent.agent
    )
