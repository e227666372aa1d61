"""A learner's update from gradients that workers compute."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from distrl.agents.agent import PRIORITIES, Agent, LearnerState, Logs
from distrl.agents.compiling import compiler_options
from distrl.agents.losses.batch_share import weighted_mean
from distrl.gradients.shares import BatchFacts
from distrl.gradients.team import GradientTeam
from distrl.types import Array, Params, Trajectory

_EXCHANGE_S = 1.0  # between two questions which workers are this learner's


class Allocation(Protocol):
    """Decides which workers are a learner's."""

    def exchange(self, busy: float) -> Sequence[int] | None:
        """Returns the indices of the learner's workers; None: as before. Never waits.

        Args: busy: part of the time since the last call that the learner spent in updates.
        """


class SplitUpdate:
    """An update with the signature and the result of a compiled `Agent.learner_step`.

    Gradients of the batch's shares come from a `GradientTeam`; they are averaged and applied here.
    """

    def __init__(self, agent: Agent, team: GradientTeam, allocation: Allocation | None = None):
        """Args: allocation: changes the team's workers; None: they stay the same."""
        self._agent, self._team, self._allocation = agent, team, allocation
        self._exchanged_at, self._busy = time.monotonic(), 0.0
        self._options = compiler_options(agent)
        self._apply = self._compiled(self._combine_and_apply)

    def checked(self, check: Callable[[Callable[..., Any]], Callable[..., Any]]) -> "SplitUpdate":
        """Wraps the update in `UpdateCheck.checked`; returns itself."""
        self._apply = self._compiled(check(self._combine_and_apply))
        return self

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function, compiler_options=self._options)

    def __call__(
        self, params: Params, state: LearnerState, record: Array, batch: Trajectory
    ) -> tuple[Params, LearnerState, Array, Logs]:
        """Makes an update. Call `checked` before; see `UpdateCheck.checked`."""
        began = time.monotonic()
        self._exchange(began)
        facts = BatchFacts.of(self._agent, params, state, batch)
        shares = self._team.compute(params, state, batch, facts)
        whole = sum(extent.size for extent, _, _ in shares)
        parts = [Part(np.float32(extent.size / whole), *rest) for extent, *rest in shares]
        # The workers may overwrite the shares from the next call on.
        made = jax.block_until_ready(self._apply(params, state, record, parts))
        self._busy += time.monotonic() - began
        return made

    def report(self) -> dict[str, Any]:
        """Returns metrics."""
        return self._team.report()

    def close(self) -> None:
        """Stops using the workers."""
        self._team.close()

    def _exchange(self, now: float) -> None:
        elapsed = now - self._exchanged_at
        if self._allocation is None or elapsed < _EXCHANGE_S:
            return
        workers = self._allocation.exchange(self._busy / elapsed)
        self._exchanged_at, self._busy = now, 0.0
        if workers is not None and list(workers) != self._team.workers:
            self._team.assign(workers)

    def _combine_and_apply(
        self, params: Params, learner_state: LearnerState, parts: "list[Part]"
    ) -> tuple[Params, LearnerState, Logs]:
        """Makes the update from the shares' gradients; traced by JAX."""
        agent = self._agent
        grads, logs = combine(agent, parts)
        params, opt_state, more_logs = agent.apply_gradients(params, learner_state, grads)
        learner_state = agent.update_learner_state(params, opt_state, learner_state)
        return params, learner_state, {**logs, **more_logs}


class Part(NamedTuple):
    """A share's gradients and logs, and its weight in the batch."""

    weight: Any  # float32, its part of the batch's unrolls
    grads: Params
    logs: Logs


def combine(agent: Agent, parts: Sequence[Part]) -> tuple[Params, Logs]:
    """Returns a batch's gradients and logs, given those of its shares in order."""
    weights = [part.weight for part in parts]
    logs = [dict(part.logs) for part in parts]
    priorities = [each.pop(PRIORITIES) for each in logs if PRIORITIES in each]
    means = weighted_mean(logs, weights)
    if priorities:
        means[PRIORITIES] = jnp.concatenate(priorities)
    return agent.combine_gradients([part.grads for part in parts], weights), means
