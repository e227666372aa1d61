"""The devices that compute an update: batches are split over them, parameters are replicated.

An update stays one function of the whole batch. XLA's partitioner splits it and adds the necessary
sums over devices, so means, orders and random numbers are those of one device.
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
from distrl.types import TIME_FIELDS, Array, Nest, Trajectory

_AXIS = "batch"  # name of the mesh's axis
_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


class Devices:
    """The devices of a learner, in all its processes.

    With a single device nothing is placed explicitly, and nothing is copied.

    Attributes:
      count: number of devices of this process.
    """

    def __init__(self, batch_size: int, count: int = 0):
        """Args:
        batch_size: unrolls in a batch of this process.
        count: number of devices of this process to use; 0: all that JAX has.

        Raises:
          ConfigError: there are fewer devices, or the batch does not split evenly.
        """
        local = jax.local_devices()
        if count > len(local):
            names = ", ".join(str(device) for device in local)
            raise ConfigError(f"learner.num_devices={count}: JAX has {len(local)} here ({names})")
        self.count = count or len(local)
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
        """Whether updates are computed on more than one device, over all processes."""
        return self._mesh is not None

    def jit(
        self,
        learner_step: Callable[..., Any],
        options: dict[str, bool | str] | None = None,
        donated: tuple[int, ...] = (),
    ) -> Callable[..., Any]:
        """Compiles an update from `UpdateCheck.checked`, for batches from `put`.

        Args:
          learner_step: the function.
          options: `jax.jit`'s `compiler_options`.
          donated: numbers of the arguments that it overwrites; for a single device.
        """
        mesh = self._mesh
        if mesh is None:
            return jax.jit(learner_step, donate_argnums=donated, compiler_options=options)

        def traced(params: Nest, learner_state: Nest, record: Array, batch: Trajectory) -> Any:
            token = _mesh.set(mesh)
            try:
                return learner_step(params, learner_state, record, batch)
            finally:
                _mesh.reset(token)

        whole = self._whole
        return jax.jit(
            traced,
            in_shardings=(whole, whole, whole, self._split),
            out_shardings=whole,
            compiler_options=options,
        )

    def put(self, batch: Trajectory) -> Trajectory:
        """Returns a batch in the form that a compiled update takes.

        Each shard goes straight to its device.

        Args:
          batch: this process's host arrays, `[T + 1, B, ...]`.
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
        """Returns `nest` with a copy on each device. All processes pass the same values."""
        if self._mesh is None:
            return jax.device_put(nest)
        make = jax.make_array_from_process_local_data
        return jax.tree.map(lambda x: make(self._whole, np.asarray(x)), nest)

    def first_replica(self, nest: Nest) -> Nest:
        """Returns this process's first replica of an update's result, without a copy."""
        if self._mesh is None:
            return nest
        return jax.tree.map(lambda x: x.addressable_data(0), nest)

    def local_rows(self, rows: jax.Array) -> npt.NDArray[Any]:
        """Returns the rows of this process's batch, given one row per unroll of the whole batch."""
        if self._mesh is None:
            return np.asarray(rows)
        start = jax.process_index() * self._batch_size
        return np.asarray(rows)[start : start + self._batch_size]


def check_split(batch_size: int, count: int) -> None:
    """Raises ConfigError if a batch of unrolls does not split evenly over the devices."""
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
    """Raises ConfigError if JAX does not have the GPUs that `setting` declares.

    JAX itself would silently use the CPU.
    """
    local = jax.local_devices()
    if count and sum(device.platform == "gpu" for device in local) < count:
        names = ", ".join(str(device) for device in local)
        raise ConfigError(
            f"{setting}: JAX has {names} here; see docs/install.md for its CUDA build"
        )


def split(nest: Nest, axis: int = 0) -> Nest:
    """Constrains an axis of `nest` to be split over the devices, in an update being traced.

    For new batches that an agent makes from a batch, for example by shuffling: without it each
    device would compute all of them. Changes no value, and does nothing on a single device.
    """
    mesh = _mesh.get()
    if mesh is None:
        return nest
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, _AXIS))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding), nest)


def merge_steps(nest: Nest) -> Nest:
    """Reshapes `[T, B, ...]` to rows `[T * B, ...]`; `unmerge_steps` is the inverse.

    The order of rows is unspecified: over several devices, data stays on its device only if the
    batch axis comes first.
    """
    if _mesh.get() is None:
        return jax.tree.map(_merged, nest)
    return split(jax.tree.map(lambda x: _merged(jnp.swapaxes(x, 0, 1)), nest))


def _merged(x: jax.Array) -> jax.Array:
    """Merges the first two axes. A size of -1 would fail for arrays without elements."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def unmerge_steps(nest: Nest, length: int, batch_size: int) -> Nest:
    """Reshapes rows `[T * B, ...]` to `[T, B, ...]`; see `merge_steps`."""
    if _mesh.get() is None:
        return jax.tree.map(lambda x: x.reshape(length, batch_size, *x.shape[1:]), nest)
    nest = jax.tree.map(lambda x: x.reshape(batch_size, length, *x.shape[1:]), nest)
    return split(jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), nest), axis=1)
