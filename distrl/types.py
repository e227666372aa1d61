"""Data that flows between the parts.

Axes: `T` is time (first), `B` a batch of streams. A stream is one sequence of experience: one
environment slot, with an id that is unique in the program. A stream's life changes when its actor
restarts. A nest is any JAX pytree of arrays.
"""

from typing import Any, NamedTuple

Array = Any  # NumPy or JAX; in a struct `jax.ShapeDtypeStruct`
Nest = Any  # a JAX pytree of arrays
Params = Any
State = Any  # an agent's recurrent state; () if it has none


class StepType:
    """A time step's position in its episode; dm_env's values, as plain integers for hot paths."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """One step of several streams; leading axis `[B]`, in a trajectory `[T + 1, B]`.

    The step from LAST to FIRST is not a transition: it enters no loss, return or counter.

    | step               | discount | bootstraps the step before | own value learned |
    |--------------------|----------|----------------------------|-------------------|
    | FIRST              | 1        | no                         | yes               |
    | MID                | 1        | yes                        | yes               |
    | MID, a lost life   | 0        | no                         | yes               |
    | LAST, a true end   | 0        | no                         | no                |
    | LAST, a time limit | 1        | yes                        | no                |
    """

    step_type: Array  # int8 [B], a StepType
    reward: Array  # float32 [B], reward of prev_action; 0 at FIRST
    discount: Array  # float32 [B], 0 or 1
    observation: Nest  # [B, ...]; at LAST the true final one
    prev_action: Nest  # [B, ...]; zeros at FIRST
    env_id: Any = ()  # int32 [B], the environment's slot in the pool; for agents the stream id
    env_info: Nest = ()  # [B, ...], for the actor only: neither agents nor tables get it


class AgentOutput(NamedTuple):
    """The result of an agent's `actor_step`, besides its next state."""

    action: Nest  # [B, ...]
    extras: Nest  # [B, ...], stored with the step: behaviour logits or log-probabilities, values


class Inference(NamedTuple):
    """An inferencer's answer for the streams of one request."""

    action: Nest  # [B, ...]
    extras: Nest  # [B, ...]
    version: int | Array  # the version of the parameters that chose the actions, or int32 [B]
    state: State | None = None  # [B, ...], the state *before* this step; None unless asked for
    source_life: int = 0  # the inferencer's life; a new one has lost the streams' recurrent state


class Trajectory(NamedTuple):
    """A batch of unrolls: T transitions and the step to bootstrap from.

    Transition t goes from step t to step t + 1: `action[t]` was taken at `timestep[t]` and led to
    `timestep[t + 1].reward` and `.discount`. It is real if `timestep.step_type[t] != LAST`.
    """

    timestep: TimeStep  # [T + 1, B, ...]; env_id and env_info are ()
    action: Nest  # [T + 1, B, ...]
    extras: Nest  # [T + 1, B, ...]
    version: Array  # int32 [T + 1, B], version of the parameters that chose the action
    state: State  # [B, ...], the recurrent state before the first step
    stream_id: Array  # int32 [B]
    life: Array  # int32 [B]
    probability: Array  # float32 [B], with which the table sampled the unroll; 1 for a queue


class Sample(NamedTuple):
    """A batch that a replay buffer gives to the learner."""

    trajectory: Trajectory
    key: Array  # uint64 [B], the items' keys in their table, for priority updates
    inserts: int = 0  # unrolls that the table had received by then; for a queue, handed out
    packed: tuple[Trajectory, Array] | None = None
    """The trajectory, and the memory, uint8 `[bytes]`, of whose `Columns` its leaves are views, but
    for `probability`; None: they are apart. It says nothing about any other trajectory."""


TIME_FIELDS = ("timestep", "action", "extras", "version")
"""Fields of a Trajectory with axes [T + 1, B, ...]; its others have [B, ...]."""
