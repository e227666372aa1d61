"""Frame stacking that stores each frame once."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.modules.images import LAYOUTS, channel_axis
from distrl.agents.settings import SavedSettings
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_names, is_whole
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import Transform, chosen_leaves, map_leaves
from distrl.transforms.observations import SHAPING
from distrl.types import Array, Nest, State, StepType, TimeStep, Trajectory


@dataclasses.dataclass(frozen=True)
class FrameStack(SavedSettings, Transform):
    """Stacks each observation with the ones before it, the newest last.

    Pixels `[C, H, W]` become `[num_frames * C, H, W]`, `[H, W, C]` become `[H, W, num_frames * C]`,
    and `[H, W]` become `[num_frames, H, W]`; vectors `[D]` become `[num_frames * D]`, and numbers
    `[num_frames]`. At the start of an episode its first observation is repeated. Single frames are
    sent and stored: the frames before an unroll are part of the recurrent state, and the learner
    builds the stacks.

    Attributes:
      num_frames: frames in a stack, 2 or more.
      leaves: names of the observations to stack; empty: all except symbols (DiscreteArray).
      image_layout: order of the axes of images: "chw", "hwc", or "auto", by shape: equal axes are
        the sides, else the shorter of the first and the last axis has the channels.
    """

    BEFORE: ClassVar[Mapping[str, Any]] = {"image_layout": "chw"}

    num_frames: int = 4
    leaves: tuple[str, ...] = ()
    image_layout: str = "auto"

    name = "frame_stack"
    changes = frozenset({"observation"})
    not_before: ClassVar[Mapping[str, str]] = {
        "observation_normalizer": "its statistics would count each frame once for each stack",
        **SHAPING,
    }

    def __post_init__(self) -> None:
        if not is_whole(self.num_frames, 2):
            raise ConfigError(
                f"transforms: frame_stack.num_frames must be an integer of at least 2, got "
                f"{self.num_frames!r}"
            )
        check_choice(self, "image_layout", LAYOUTS, "transforms: frame_stack")
        check_names(self, "leaves", "transforms: frame_stack")

    def _axis(self, shape: tuple[int, ...]) -> int | None:
        """Returns the axis along which frames are stacked; None: a new one, the first."""
        if len(shape) in (0, 2):  # numbers and images without channels
            return None
        return channel_axis(shape, self.image_layout) if len(shape) == 3 else 0

    def _chosen(self, observation: Nest) -> dict[str, Array]:
        return chosen_leaves(self.name, self.leaves, observation, _can_be_stacked)

    def spec(self, env_spec: EnvironmentSpec) -> EnvironmentSpec:
        """See `Transform`."""
        chosen = self._chosen(env_spec.observation)

        def stacked(name: str, leaf: Array) -> Array:
            if name not in chosen:
                return leaf
            kind, axis = getattr(leaf, "name", None), self._axis(tuple(leaf.shape))
            low, high = (
                _stack([np.broadcast_to(bound, leaf.shape)] * self.num_frames, axis)
                for bound in (getattr(leaf, "minimum", 0), getattr(leaf, "maximum", 0))
            )
            if isinstance(leaf, dm_specs.BoundedArray):
                return dm_specs.BoundedArray(low.shape, leaf.dtype, low, high, kind)
            return dm_specs.Array(low.shape, leaf.dtype, kind)

        return env_spec._replace(observation=map_leaves(stacked, env_spec.observation))

    def initial_state(self, env_spec: EnvironmentSpec, batch_size: int) -> State:
        """See `Transform`. Previous frames by name, `[B, num_frames - 1, ...]`, oldest first."""
        chosen = specs.struct(self._chosen(env_spec.observation))
        return {
            name: np.zeros((batch_size, self.num_frames - 1, *leaf.shape), leaf.dtype)
            for name, leaf in chosen.items()
        }

    def step(self, statistics: Nest, state: State, timestep: TimeStep) -> tuple[TimeStep, State]:
        """See `Transform`."""
        first = jnp.asarray(timestep.step_type) == StepType.FIRST
        after = {}

        def stack(name: str, frame: Array) -> Array:
            if name not in state:
                return frame
            frame = jnp.asarray(frame)[:, None]
            begins = first.reshape(-1, *[1] * (frame.ndim - 1))
            frames = jnp.concatenate([jnp.where(begins, frame, state[name]), frame], axis=1)
            after[name] = frames[:, 1:]
            return _stack(list(jnp.moveaxis(frames, 1, 0)), self._axis(frame.shape[2:]), 1)

        observation = map_leaves(stack, timestep.observation)
        return timestep._replace(observation=observation), after

    def unroll(
        self, statistics: Nest, state: State, rng: jax.Array, batch: Trajectory
    ) -> Trajectory:
        """See `Transform`."""
        before = self.num_frames - 1
        step_type = jnp.asarray(batch.timestep.step_type)
        rows = jnp.arange(step_type.shape[0])[:, None]
        # The first known row of each row's episode: its FIRST, or the oldest frame in the state.
        begin = jax.lax.cummax(jnp.where(step_type == StepType.FIRST, rows, -before), axis=0)

        def stack(name: str, frames: Array) -> Array:
            if name not in state:
                return frames
            known = jnp.concatenate([jnp.moveaxis(state[name], 1, 0), frames])
            columns = jnp.arange(step_type.shape[1])
            ages = range(before, -1, -1)
            return _stack(
                [known[jnp.maximum(rows - age, begin) + before, columns] for age in ages],
                self._axis(frames.shape[2:]),
                2,
            )

        observation = map_leaves(stack, batch.timestep.observation)
        return batch._replace(timestep=batch.timestep._replace(observation=observation))


def _can_be_stacked(leaf: Array) -> bool:
    return not isinstance(leaf, dm_specs.DiscreteArray)


def _stack(frames: list[Array], axis: int | None, leading: int = 0) -> Array:
    """Stacks frames `[*leading, *shape]` along an axis of their shape, or on a new one before."""
    module = np if isinstance(frames[0], np.ndarray) else jnp
    if axis is None:
        return module.stack(frames, axis=leading)
    return module.concatenate(frames, axis=leading + axis)
