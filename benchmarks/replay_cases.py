"""What `replay.py` measures: the replays in use, and the baselines without any."""

import math
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs
from replay_servers import ReplayServer

from distrl import specs
from distrl.replay.buffer import ReplayBuffer, ReplayConfig, ReplayReader
from distrl.replay.columns import Block, Columns
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.replay.unrolls import Unroller
from distrl.types import Inference, TimeStep, Trajectory

KINDS = ("local", "shared", "served", "tcp", "reverb")
T = 20
BATCH = 32
_PLAYED = 60  # steps, after which the games differ
OBSERVATIONS = {
    "4 float32": dm_specs.Array((4,), np.float32),
    "4x84x84 uint8": dm_specs.Array((4, 84, 84), np.uint8),
}


def struct_of(observation: dm_specs.Array) -> Trajectory:
    """Returns the struct of unrolls of an agent that stores logits and a value."""
    spec = specs.EnvironmentSpec(observation, dm_specs.DiscreteArray(6, np.int32))
    extras = {
        "logits": jax.ShapeDtypeStruct((6,), np.float32),
        "value": jax.ShapeDtypeStruct((), np.float32),
    }
    return specs.trajectory_struct(spec, extras, ())


def observations(spec: dm_specs.Array, num_envs: int) -> npt.NDArray[Any]:
    """Returns observations `[T, num_envs, ...]`: frames of Pong-v5 while it is played at random.

    Vectors are normally distributed. Zeros a server would compress to nothing.
    """
    rng = np.random.default_rng(0)
    if spec.dtype != np.uint8:
        return rng.normal(size=(T, num_envs, *spec.shape)).astype(spec.dtype)
    import envpool

    env = envpool.make("Pong-v5", env_type="gymnasium", num_envs=num_envs, seed=0)
    frames = [env.reset()[0]]
    for _ in range(_PLAYED + T - 1):
        frames.append(env.step(rng.integers(6, size=num_envs))[0])
        frames = frames[-T:]
    return np.stack(frames)


class Steps:
    """T steps of `num_envs` environments, for repeated use."""

    def __init__(self, struct: Trajectory, seen: npt.NDArray[Any]):
        """Args: seen: the observations, `[T, num_envs, ...]`."""
        num_envs = seen.shape[1]
        self.ids = np.arange(num_envs, dtype=np.int32)
        step: TimeStep = specs.zeros(struct.timestep, num_envs)
        self.timesteps = [step._replace(observation=observation) for observation in seen]
        self.inference = Inference(
            specs.zeros(struct.action, num_envs), specs.zeros(struct.extras, num_envs), 0
        )

    def block(self, struct: Trajectory) -> Block:
        """Returns an unroll of each environment."""
        unroller = Unroller(struct, T)
        for timestep in (*self.timesteps, self.timesteps[0]):
            block = unroller.cut(self.ids, timestep, self.inference)
        assert block is not None
        return block


class Plain:
    """The baselines: `memcpy` of blocks, and a ring of NumPy arrays."""

    def __init__(self, struct: Trajectory, max_size: int, num_envs: int):
        self._columns = Columns(struct, T)
        self._block = self._columns.allocate(num_envs)
        self._block.buffer[:] = 1  # type: ignore[index]
        nbytes = self._block.buffer.nbytes  # type: ignore[union-attr]
        self._copies = np.ones((max(1, max_size // num_envs), nbytes), np.uint8)
        self._next = 0
        self._stored = self._columns.allocate(max_size)
        self._stored.buffer[:] = 1  # type: ignore[index]
        self._rng = np.random.default_rng(0)
        self._max_size = max_size

    def copy(self) -> None:
        """Copies one block."""
        assert self._block.buffer is not None
        self._next = (self._next + 1) % len(self._copies)
        np.copyto(self._copies[self._next], self._block.buffer)

    def sample(self) -> None:
        """Samples one batch."""
        indices = self._rng.integers(self._max_size, size=BATCH)
        for column, time_axis in zip(self._stored.columns, self._columns.has_time):
            axis = 1 if time_axis else 0
            out = np.empty((*column.shape[:axis], BATCH, *column.shape[axis + 1 :]), column.dtype)
            np.take(column, indices, axis=axis, out=out, mode="clip")


class Case:
    """A replay in use."""

    def __init__(self, kind: str, struct: Trajectory, config: ReplayConfig, seen: npt.NDArray[Any]):
        """Args: seen: the observations, `[T, num_envs, ...]`."""
        num_envs = seen.shape[1]
        self.kind = kind
        self._close: list[Callable[[], Any]] = []
        self.server: ReplayServer | None = None
        self.buffer, self._reader = self._make(struct, config)
        self._steps = Steps(struct, seen)
        self._block = self._steps.block(struct)
        self.add()
        for _ in range(math.ceil(1.3 * config.max_size / num_envs)):  # touches every page
            self.add()

    def _make(self, struct: Trajectory, config: ReplayConfig) -> tuple[ReplayBuffer, ReplayReader]:
        buffer: ReplayBuffer
        if self.kind == "local":
            buffer = LocalReplayBuffer(LocalTable(struct, config, BATCH), struct, config, BATCH)
            return buffer, buffer
        if self.kind == "shared":
            table = SharedTable.create(struct, config, BATCH, f"benchmark-{os.getpid()}")
            self._close.append(table.close)
            buffer = SharedReplayBuffer(table, struct, config, BATCH)
            self._close.append(buffer.close)
            return buffer, buffer
        self.server = ReplayServer(self.kind, struct, config, BATCH)
        buffer, reader = self.server.clients()
        self._close += [self.server.stop, buffer.close, reader.close]  # type: ignore[attr-defined]
        return buffer, reader

    def add(self) -> None:
        """Adds an unroll of each environment."""
        steps = self._steps
        for timestep in steps.timesteps:
            self.buffer.add(steps.ids, timestep, steps.inference)

    def insert(self) -> None:
        """Does the table's part of `add`."""
        buffer: Any = self.buffer
        if self.kind == "reverb":
            buffer._insert(self._block)
            buffer.flush()
        else:
            buffer._table.insert(self._block, None, 10.0)

    def sample(self) -> None:
        """Samples one batch."""
        self._reader.sample(10.0)

    def close(self) -> None:
        """Closes the replay and its table or server."""
        for close in reversed(self._close):
            close()
