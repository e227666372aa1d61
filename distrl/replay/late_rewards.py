"""Assigns rewards that become known late to the steps that they belong to."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.errors import SpecError
from distrl.replay.buffer import ReplayWriter
from distrl.replay.stream_index import StreamIndex
from distrl.specs import EnvironmentSpec, check
from distrl.types import Inference, StepType, TimeStep, Trajectory

_NAMES = (
    "timestep.step_type", "timestep.reward", "timestep.discount", "timestep.observation",
    "timestep.prev_action", "action", "extras", "state",
)  # fmt: skip
_STEP_TYPE, _REWARD = 0, 1  # indices of columns


def with_final_rewards(
    replay: ReplayWriter, struct: Trajectory, spec: EnvironmentSpec
) -> ReplayWriter:
    """Returns a writer for environments of `spec`: `replay` itself if rewards are never late.

    Args:
      replay: takes the steps with their final rewards.
      struct: one stream at one step, from `distrl.specs.trajectory_struct`.
      spec: spec of the environments whose steps are added.
    """
    return LateRewards(replay, struct, spec) if spec.reward_delay else replay


class LateRewards(ReplayWriter):
    """Holds back the last `reward_delay` steps of each stream until their rewards are final.

    A step has `env_info["late_reward"]` `[B, reward_delay + 1, *reward.shape]`: the parts that
    became known in it, of its own reward, of the reward of the step before it, and so on. A held
    step collects its parts, and is forwarded with the stream's `reward_delay`-th step after it,
    across ends of episodes. Each `add` thus forwards at most one step of each stream, and streams
    in lockstep stay in lockstep.

    Held steps are kept by stream; a stream's new life drops those of its previous life.
    """

    def __init__(self, replay: ReplayWriter, struct: Trajectory, spec: EnvironmentSpec):
        """Args:
        replay: takes each step with its final reward.
        struct: one stream at one step, from `distrl.specs.trajectory_struct`.
        spec: the environment's spec; its `reward_delay` is 1 or more.

        Raises:
          SpecError: `env_info` does not declare `late_reward` as `EnvironmentSpec` says.
        """
        self._replay = replay
        self._late = _late_reward_struct(spec)
        self._size = spec.reward_delay + 1  # rows of a stream's ring: held steps and the new one
        self._parts = np.arange(self._size)
        step = struct.timestep
        self._struct = (
            step.step_type, step.reward, step.discount, step.observation, step.prev_action,
            struct.action, struct.extras, struct.state,
        )  # fmt: skip
        self._leaves, self._structure = jax.tree.flatten(self._struct)
        self._has_state = bool(jax.tree.leaves(struct.state))
        self._index = StreamIndex(np.zeros(0, np.int32))
        # By row of the ring and slot of the stream; the versions come last.
        self._columns = self._allocate(0)
        # By slot of the stream:
        self._next = np.zeros(0, int)  # row of its next step
        self._held = np.zeros(0, int)  # number of held steps
        self._age = np.zeros(0, int)  # steps since the episode's FIRST
        self._lives = np.zeros(0, int)

    def needs_state(self, stream_ids: npt.NDArray[np.int32], life: int | None = None) -> bool:
        # Unrolls are cut from steps that are forwarded later: any step may begin one.
        return self._has_state

    def add(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        inference: Inference,
        life: int = 0,
    ) -> None:
        leaves = self._checked(stream_ids, timestep, inference)
        late = self._late_parts(stream_ids, timestep)
        slots = self._find(stream_ids)
        new = self._lives[slots] != life
        if new.any():
            self._held[slots[new]] = 0
            self._age[slots[new]] = self._size  # a life may begin within an episode
            self._lives[slots] = life
        self._check_owners(stream_ids, timestep.step_type, late, slots)
        row = self._next[slots]
        for column, leaf in zip(self._columns, leaves):
            column[row, slots] = leaf
        self._columns[-1][row, slots] = inference.version
        rewards = self._columns[_REWARD]
        rewards[row, slots] = 0.0  # replaced by the parts: it was a sum over several steps
        rewards[(row[:, None] - self._parts) % self._size, slots[:, None]] += late
        self._next[slots] = (row + 1) % self._size
        self._held[slots] += 1
        ready = self._held[slots] == self._size
        if ready.all():
            self._forward(stream_ids, slots, life)
        elif ready.any():
            self._forward(stream_ids[ready], slots[ready], life)

    def release(self) -> bool:
        """Forwards a held step of each stream that holds an episode's end: its reward is final."""
        count = len(self._index)
        slots, held = np.arange(count), self._held[:count]
        steps = self._parts[:, None]
        rows = (self._next[:count] - held + steps) % self._size  # the oldest first
        last = (self._columns[_STEP_TYPE][rows, slots] == StepType.LAST) & (steps < held)
        final = last.any(axis=0)
        for life in np.unique(self._lives[:count][final]):
            some = np.flatnonzero(final & (self._lives[:count] == life))
            self._forward(self._index.ids[some], some, int(life))
        return bool(final.any())

    def flush(self) -> None:
        """Forwards the held steps of ended episodes, whose rewards are final; then flushes."""
        while self.release():
            pass
        self._replay.flush()

    def _forward(
        self, stream_ids: npt.NDArray[np.int32], slots: npt.NDArray[Any], life: int
    ) -> None:
        """Forwards the oldest held step of each of these streams."""
        row = (self._next[slots] - self._held[slots]) % self._size
        self._held[slots] -= 1
        *leaves, version = [column[row, slots] for column in self._columns]
        *step, action, extras, state = self._structure.unflatten(leaves)
        self._replay.add(
            stream_ids, TimeStep(*step), Inference(action, extras, version, state), life
        )

    def _checked(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep, inference: Inference
    ) -> list[npt.NDArray[Any]]:
        """Returns the checked leaves of a step, in the order of the columns."""
        if self._has_state and inference.state is None:
            raise SpecError(
                f"state: the inference for streams {stream_ids.tolist()} has none; ask "
                "needs_state(stream_ids, life) before it"
            )
        state = inference.state if self._has_state else ()
        step = (*timestep[:5], inference.action, inference.extras, state)
        leaves, structure = jax.tree.flatten(step)
        size = len(stream_ids)
        if structure != self._structure or any(
            leaf.shape != (size, *spec.shape) or leaf.dtype != spec.dtype
            for leaf, spec in zip(leaves, self._leaves)
        ):
            for name, value, spec in zip(_NAMES, step, self._struct, strict=True):
                check(value, spec, (size,), name)
        return leaves

    def _late_parts(
        self, stream_ids: npt.NDArray[np.int32], timestep: TimeStep
    ) -> npt.NDArray[Any]:
        info = timestep.env_info
        if "late_reward" not in info:
            raise SpecError(f"env_info: expected 'late_reward', got {sorted(info) or 'nothing'}")
        check(info["late_reward"], self._late, (len(stream_ids),), "env_info['late_reward']")
        return info["late_reward"]

    def _check_owners(
        self,
        ids: npt.NDArray[np.int32],
        step_type: npt.NDArray[Any],
        late: npt.NDArray[Any],
        slots: npt.NDArray[Any],
    ) -> None:
        """Raises SpecError for a reward for a step before the episode's first action."""
        age = np.where(step_type == StepType.FIRST, 0, self._age[slots] + 1)
        self._age[slots] = age
        wrong = late.reshape(len(ids), self._size, -1).any(-1) & (self._parts >= age[:, None])
        if wrong.any():
            row, part = np.argwhere(wrong)[0]
            raise SpecError(
                f"env_info['late_reward'] of stream {ids[row]}, step {age[row]} of its episode: "
                f"part {part} is {late[row, part]}, but there was no action {part + 1} steps before"
            )

    def _find(self, stream_ids: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Returns the slot of each stream; allocates slots for new ones."""
        slots, known = self._index.find(stream_ids)
        if known.all():
            return slots
        self._index.add(stream_ids[~known])
        count, capacity = len(self._index), len(self._next)
        if count > capacity:
            columns = self._allocate(max(2 * capacity, count))
            for new, old in zip(columns, self._columns):
                new[:, :capacity] = old
            self._columns = columns
            more = columns[-1].shape[1] - capacity
            self._next, self._held = np.pad(self._next, (0, more)), np.pad(self._held, (0, more))
            self._age = np.pad(self._age, (0, more), constant_values=self._size)
            self._lives = np.pad(self._lives, (0, more))
        return self._index.find(stream_ids)[0]

    def _allocate(self, streams: int) -> list[npt.NDArray[Any]]:
        leaves = [*self._leaves, jax.ShapeDtypeStruct((), np.int32)]
        return [np.zeros((self._size, streams, *leaf.shape), leaf.dtype) for leaf in leaves]


def _late_reward_struct(spec: EnvironmentSpec) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of `env_info["late_reward"]` for one stream."""
    shape = (spec.reward_delay + 1, *spec.reward.shape)
    declared = dict(spec.env_info or {}).get("late_reward")
    if declared is None or tuple(declared.shape) != shape or declared.dtype != np.float32:
        raise SpecError(
            f"an environment with reward_delay={spec.reward_delay} must declare env_info "
            f"'late_reward' as float32{list(shape)}, got {declared}"
        )
    return jax.ShapeDtypeStruct(shape, np.float32)
