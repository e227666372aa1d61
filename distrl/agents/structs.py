"""Shapes and dtypes of what an agent's functions take and return, found by tracing them.

Nothing here initialises a JAX backend, so that the process may fork afterwards; `initial_row`
alone computes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.weak_types import strong
from distrl.errors import SpecError
from distrl.types import AgentOutput, Nest, Params, State, TimeStep

_BATCH = 3  # arbitrary, but unlikely to be the size of another axis
_KEY = jax.ShapeDtypeStruct((2,), np.uint32)  # a raw one


def params_struct(agent: Agent) -> Params:
    """Returns shapes and dtypes of the parameters."""
    return jax.eval_shape(lambda key: strong(agent.initial_params(key)), _KEY)


def extras_struct(agent: Agent) -> Nest:
    """Returns shapes and dtypes of one stream's extras, leaves `jax.ShapeDtypeStruct`.

    Traces `actor_step` without running it.

    Raises:
      SpecError: `actor_step` does not return what it must, its actions are not those of the spec,
        an extra has no leading batch axis, or the state after the step has another structure, shape
        or dtype than the initial one.
    """
    result: Any = jax.eval_shape(*first_step(agent, _BATCH))
    parts: tuple[Any, ...] = result if type(result) in (tuple, list) else (result,)
    if len(parts) != 2 or not isinstance(parts[0], AgentOutput):
        raise SpecError(
            "agent's actor_step must return two things, AgentOutput(action, extras) and the next "
            f"state, and returns {', '.join(type(part).__name__ for part in parts) or '()'}"
        )
    output, state = parts
    specs.check(
        output.action, agent.env_spec.action, (_BATCH,), "actions of the agent's actor_step"
    )
    initial = jax.eval_shape(lambda: agent.initial_state(_BATCH))
    check_kept(initial, state, "state", "actor_step")
    return _one_stream(output.extras, "extras")


def first_step(
    agent: Agent, batch_size: int
) -> tuple[Callable[..., tuple[AgentOutput, State]], jax.ShapeDtypeStruct, TimeStep]:
    """Returns `actor_step` with new parameters at an episode's start, to be traced.

    Args:
      batch_size: number of streams B.

    Returns:
      A function of a raw key and time steps [B, ...], and the shapes and dtypes of these two.
    """

    def step(rng: jax.Array, timestep: TimeStep) -> tuple[AgentOutput, State]:
        state = agent.initial_state(batch_size)
        return agent.actor_step(rng, agent.initial_params(rng), timestep, state)

    timestep = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((batch_size, *s.shape), s.dtype),
        specs.acting_struct(agent.env_spec),
    )
    return step, _KEY, timestep


def state_struct(agent: Agent) -> Nest:
    """Returns shapes and dtypes of one stream's recurrent state."""
    return _one_stream(jax.eval_shape(lambda: agent.initial_state(_BATCH)), "recurrent state")


def initial_row(agent: Agent) -> State:
    """Returns `initial_state(1)`, with which every episode of every stream begins.

    Raises:
      SpecError: the rows of a larger batch differ from it.
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
    """Raises SpecError if a leaf is a typed key, which is not stored. Args: name: the leaf's."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise SpecError(
            f"{name} is a typed key, {leaf.dtype}, which cannot be stored: use a raw one (uint32 "
            "[2]), of jax.random.PRNGKey or jax.random.key_data"
        )


def check_kept(before: Nest, after: Nest, name: str, function: str) -> None:
    """Refuses a function's result if a leaf was added or removed, or changed shape or dtype.

    Args:
      before, after: nests of arrays: the function's argument and its result; perhaps traced.
      name: what they are, for the message.
      function: the function's name, for the message.

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
