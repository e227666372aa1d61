"""The devices that an update is computed on: a batch is split over them, parameters are whole.

An update stays one function of the whole batch: XLA's partitioner splits it and adds the sums over
devices that it needs, so that means, orders and random numbers are those of one device.
"""

import contextvars
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distrl.errors import ConfigError
from distrl.types import TIME_FIELDS, Nest, Trajectory

_AXIS = "batch"  # of the mesh
_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


class Devices:
    """Where a learner computes.

    On one device everything is as without it: nothing is placed, and nothing is copied.

    Attributes:
      count: devices of this process.
    """

    def __init__(self, batch_size: int, count: int = 0):
        """Args:
        batch_size: unrolls of a batch of this process.
        count: devices of this process; 0: all that JAX has.

        Raises:
          ConfigError: there are fewer, or the batch cannot be split evenly; with the arithmetic.
        """
        found = jax.local_devices()
        if count > len(found):
            names = ", ".join(str(device) for device in found)
            raise ConfigError(f"learner.num_devices={count}: JAX has {len(found)} here ({names})")
        self.count = count or len(found)
        check_split(batch_size, self.count)
        self._batch_size = batch_size
        processes = [jax.local_devices(index) for index in range(jax.process_count())]
        if any(len(each) < self.count for each in processes):
            raise ConfigError(
                f"learner.num_devices={count}: the learner's processes have "
                f"{', '.join(str(len(each)) for each in processes)} devices; take the same number "
                "of each"
            )
        devices = [device for each in processes for device in each[: self.count]]
        self._mesh: Mesh | None = None
        if len(devices) > 1:
            self._mesh = mesh = Mesh(np.array(devices), (_AXIS,))
            self._whole = NamedSharding(mesh, PartitionSpec())
            steps, unrolls = PartitionSpec(None, _AXIS), PartitionSpec(_AXIS)
            specs: dict[str, Any] = {
                name: NamedSharding(mesh, steps if name in TIME_FIELDS else unrolls)
                for name in Trajectory._fields
            }
            self._split = Trajectory(**specs)

    @property
    def several(self) -> bool:
        """Whether an update is computed on more than one device, of all processes."""
        return self._mesh is not None

    def jit(self, learner_step: Callable[..., Any]) -> Callable[..., Any]:
        """`Agent.learner_step`, compiled; of a batch that `put` gave."""
        mesh = self._mesh
        if mesh is None:
            return jax.jit(learner_step)

        def traced(params: Nest, learner_state: Nest, batch: Trajectory) -> Any:
            token = _mesh.set(mesh)
            try:
                return learner_step(params, learner_state, batch)
            finally:
                _mesh.reset(token)

        whole = self._whole
        return jax.jit(traced, in_shardings=(whole, whole, self._split), out_shardings=whole)

    def put(self, batch: Trajectory) -> Trajectory:
        """A batch of host arrays, as an update takes it: each shard goes straight to its device.

        Args:
          batch: [T + 1, B, ...], of this process.
        """
        if self._mesh is None or jax.process_count() == 1:
            return batch  # the compiled function splits it itself
        make = jax.make_array_from_process_local_data
        return Trajectory(
            *(
                jax.tree.map(lambda x, sharding=sharding: make(sharding, np.asarray(x)), nest)
                for nest, sharding in zip(batch, self._split)
            )
        )

    def replicate(self, nest: Nest) -> Nest:
        """`nest`, whole on every device. In each process it must have the same values."""
        if self._mesh is None:
            return jax.device_put(nest)
        make = jax.make_array_from_process_local_data
        return jax.tree.map(lambda x: make(self._whole, np.asarray(x)), nest)

    def one(self, nest: Nest) -> Nest:
        """The first of this process's replicas of what an update gave; no copy."""
        if self._mesh is None:
            return nest
        return jax.tree.map(lambda x: x.addressable_data(0), nest)

    def own(self, rows: jax.Array) -> npt.NDArray[Any]:
        """Of one value for each unroll of the whole batch, those of this process's batch."""
        if self._mesh is None:
            return np.asarray(rows)
        start = jax.process_index() * self._batch_size
        return np.asarray(rows)[start : start + self._batch_size]


def check_split(batch_size: int, count: int) -> None:
    """Raises ConfigError where a batch of unrolls does not split evenly; with the arithmetic."""
    if batch_size % count == 0:
        return
    less = batch_size - batch_size % count
    sizes = " or ".join(str(size) for size in (less, less + count) if size)
    fits = max(n for n in range(1, count) if batch_size % n == 0)
    raise ConfigError(
        f"learner.batch_size={batch_size} does not split over {count} devices: {batch_size} / "
        f"{count} = {batch_size / count:.1f} unrolls each; take learner.batch_size={sizes}, or "
        f"learner.num_devices={fits}"
    )


def check_gpus(count: int, setting: str) -> None:
    """Raises ConfigError where JAX does not have the GPUs that `setting` declares.

    Where it finds none it goes on with the CPU, without a word.
    """
    found = jax.local_devices()
    if count and sum(device.platform == "gpu" for device in found) < count:
        names = ", ".join(str(device) for device in found)
        raise ConfigError(
            f"{setting}: JAX has {names} here; see docs/install.md for its CUDA build"
        )


def split(nest: Nest, axis: int = 0) -> Nest:
    """Asks for the nest's `axis` to be split over the devices of the update that is being traced.

    For parts of a batch that an agent makes anew, as by shuffling, which each device would
    otherwise compute whole. It changes no value, and does nothing on one device.
    """
    mesh = _mesh.get()
    if mesh is None:
        return nest
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXIS))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding), nest)


def merge_steps(nest: Nest) -> Nest:
    """[T, B, ...] as rows [T * B, ...], which `unmerge_steps` takes apart again.

    In which order is left open: over several devices a batch stays where it is only if its axis
    comes first.
    """
    if _mesh.get() is None:
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), nest)
    return split(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), nest))


def unmerge_steps(nest: Nest, length: int, batch_size: int) -> Nest:
    """Rows [T * B, ...] as [T, B, ...]; see `merge_steps`."""
    if _mesh.get() is None:
        return jax.tree.map(lambda x: x.reshape(length, batch_size, *x.shape[1:]), nest)
    nest = jax.tree.map(lambda x: x.reshape(batch_size, length, *x.shape[1:]), nest)
    return split(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), nest), axis=1)
