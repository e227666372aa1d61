"""Nests of arrays in NumPy's npz files: one array per leaf, named by its path."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from distrl.errors import SpecError
from distrl.runtime.files import replacing, sync
from distrl.types import Array, Nest, Params

_VERSION = "version"
# Names in the state of `make_optimizer`: a chain of an optimiser and its learning rate.
_COUNT = ".count"
_OPTIMIZER, _RATE = "[0]", f"[1]{_COUNT}"


def save_params(path: Path, version: int, params: Params) -> None:
    """Writes `params` and their version to `path`, atomically."""
    _save(path, {_VERSION: np.asarray(version, np.int64), **_named(params)})


def save_nest(path: Path, nest: Nest) -> None:
    """Writes `nest` to `path`, atomically."""
    _save(path, _named(nest))


def _named(nest: Nest) -> dict[str, Array]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(nest)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _save(path: Path, arrays: dict[str, Array]) -> None:
    part = path.with_suffix(".part.npz")
    with replacing(path, part):
        # Not by `np.savez`: if it fails, it may leave closing the file to the garbage collector.
        with zipfile.ZipFile(part, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array)
        sync(part)


def load_params(path: Path, like: Nest) -> tuple[int, Params]:
    """Loads what `save_params` wrote.

    Args:
      path: the file.
      like: nest of arrays or of `jax.ShapeDtypeStruct` with the structure, shapes and dtypes of
        the agent's parameters, e.g. `params_struct(agent)`.

    Returns:
      The version, and the parameters as NumPy arrays.

    Raises:
      SpecError: the file has other parameters (for example without a normaliser's statistics);
        the message names the first that is missing, unexpected, or of another shape or dtype.
    """
    arrays = _load(path)
    if _VERSION not in arrays:
        raise SpecError(f"{path}: has no version; it is not a file of parameters")
    version = int(arrays.pop(_VERSION))
    return version, _nest(path, arrays, like, "params")


def load_nest(path: Path, like: Nest, what: str) -> Nest:
    """Loads what `save_nest` wrote, as NumPy arrays.

    In older files, optimisers with a constant learning rate lack its count of updates: that of the
    optimiser before it in the chain is used.

    Args:
      path: the file.
      like: nest of arrays or of `jax.ShapeDtypeStruct` with the same structure.
      what: the nest's name, for messages.

    Raises:
      SpecError: see `load_params`.
    """
    return _nest(path, _with_counts(_load(path), like), like, what)


def _with_counts(arrays: dict[str, Array], like: Nest) -> dict[str, Array]:
    """Returns arrays with the counts that learning rates lack; see `load_nest`."""
    counts = {}
    for path, _ in jax.tree_util.tree_flatten_with_path(like)[0]:
        name = jax.tree_util.keystr(path)
        if name.endswith(_RATE) and name not in arrays:
            optimizer = name.removesuffix(_RATE) + _OPTIMIZER
            of_optimizer = [n for n in arrays if n.startswith(optimizer) and n.endswith(_COUNT)]
            if of_optimizer:
                counts[name] = arrays[of_optimizer[0]]
    return {**arrays, **counts}


def _load(path: Path) -> dict[str, Array]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _nest(path: Path, arrays: dict[str, Array], like: Nest, what: str) -> Nest:
    expected_leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for key, leaf in expected_leaves:
        name = jax.tree_util.keystr(key)
        expected = f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
        if name not in arrays:
            raise SpecError(
                f"{path}: no {what}{name}, expected {expected}; it was saved by another agent, "
                "network or other transforms"
            )
        array = _with_type(arrays.pop(name), np.dtype(leaf.dtype))
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise SpecError(
                f"{path}: {what}{name}: expected {expected}, got {array.dtype}{list(array.shape)}"
            )
        leaves.append(array)
    if arrays:
        raise SpecError(
            f"{path}: {what}{next(iter(arrays))} is not among the agent's {what}; it was "
            "saved by another agent, network or other transforms"
        )
    return structure.unflatten(leaves)


def _with_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns a loaded array in its dtype: bfloat16 is no dtype of NumPy, and saved as bytes."""
    is_foreign = array.dtype.kind == "V" and dtype.kind == "V"
    return array.view(dtype) if is_foreign and array.dtype.itemsize == dtype.itemsize else array


def checksum(nest: Nest) -> str:
    """Returns a checksum of all values of a nest of arrays, their shapes and dtypes."""
    total = 0
    for leaf in jax.tree.leaves(nest):
        array = np.asarray(leaf)
        total = zlib.crc32(f"{array.dtype}{array.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"
