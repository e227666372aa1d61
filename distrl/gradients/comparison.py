"""Checks that a user's own loss or transform gives the same gradients in shares of a batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from distrl import random_keys, specs
from distrl.agents.agent import Agent
from distrl.agents.settings import is_own
from distrl.agents.structs import extras_struct, state_struct
from distrl.errors import ConfigError
from distrl.gradients.shares import BatchFacts, ShareGradients, leaves_of_share, split
from distrl.gradients.update import Part, combine
from distrl.random_values import random_steps
from distrl.transforms.agent import TransformedAgent
from distrl.types import StepType, Trajectory

_SHARES, _BATCH = 3, 6
# Largest error relative to a leaf's largest number. Rounding is far below it; a loss that divides
# by a share's own count is off by a third.
_TOLERANCE = 0.05
_LEAST = 1e-3  # share of the gradients' largest number; a smaller leaf may be rounding


def check_own_loss(agent: Agent, length: int) -> None:
    """Compares the gradients of a small random batch with those of its shares, combined.

    It compiles the loss twice, unless the agent and its transforms are all distrl's.

    Args:
      agent: the agent, behind its transforms if it has any.
      length: transitions of an unroll.

    Raises:
      ConfigError: they differ by more than rounding.
    """
    causes = _own_parts(agent)
    if not causes:
        return
    struct = specs.trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))
    batch = _unequal_batch(agent, length)
    params = jax.jit(agent.initial_params)(random_keys.root(0))
    state = jax.jit(agent.initial_learner_state)(params)
    whole, _ = jax.jit(agent.compute_gradients)(params, state, batch)
    gradients = ShareGradients(agent, struct, length, _BATCH)
    inputs, facts, parts = (
        gradients.select(params, state),
        BatchFacts.of(agent, params, state, batch),
        [],
    )
    for extent in split(_BATCH, _SHARES):
        results = gradients(inputs, leaves_of_share(batch, extent), extent, facts)
        parts.append(Part(extent.size / _BATCH, *gradients.result(extent.size, results)))
    combined, _ = combine(agent, parts)
    named: list[tuple[str, npt.NDArray[Any], npt.NDArray[Any]]] = []
    if isinstance(agent, TransformedAgent):  # without the statistics, which are merged
        whole, combined = whole["agent"], combined["agent"]
    leaves = jax.tree_util.tree_leaves_with_path(whole)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(combined), strict=True):
        if np.size(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            want, got = np.asarray(leaf, np.float64), np.asarray(other, np.float64)
            named.append((f"params{jax.tree_util.keystr(path)}", want, got))
    sizes = [np.abs(want).max() for _, want, _ in named]
    if not np.isfinite(sizes).all():  # random data may make no sense to a loss
        return
    for (name, want, got), size in zip(named, sizes, strict=True):
        error = np.abs(got - want).max()
        if size > _LEAST * max(sizes) and not error <= _TOLERANCE * size:
            raise ConfigError(
                f"learner.num_gradient_workers: the shares of a batch give other gradients than "
                f"the batch, by {error / size:.0%} of {name}'s largest: {'; '.join(causes)} "
                "(docs/gradient_workers.md); change that, or take 0"
            )


def _own_parts(agent: Agent) -> list[str]:
    """Returns what the agent's parts that are the user's own must do, for the message."""
    inner, transforms = agent, []
    if isinstance(agent, TransformedAgent):
        inner, transforms = agent.agent, [transform for transform, _ in agent.transforms]
    inner = getattr(inner, "agent", inner)  # the agent in a TunableAgent
    rules = []
    if is_own(inner):
        rules.append(
            f"the loss of {type(inner).__name__} must take its means by mean_over, and draw by "
            "batch_share.draw"
        )
    for transform in transforms:
        if is_own(transform):
            rules.append(
                f"the transform {transform.name} must make of each unroll what does not depend on "
                "the batch's others, and draw by batch_share.draw"
            )
    return rules


def _unequal_batch(agent: Agent, length: int) -> Trajectory:
    """Returns a random batch whose last share has no real transition."""
    random = np.random.default_rng(0)
    batch = random_steps(random, agent.env_spec, extras_struct(agent), length + 1, _BATCH)
    kinds = batch.timestep.step_type.copy()
    kinds[:, -_BATCH // _SHARES :] = StepType.LAST
    return batch._replace(
        timestep=batch.timestep._replace(step_type=kinds),
        state=jax.tree.map(np.asarray, agent.initial_state(_BATCH)),
        probability=np.linspace(0.1, 0.01, _BATCH, dtype=np.float32),
    )
