"""Nests of arrays in a file: NumPy's npz, one array a leaf, named by its path."""

import os
from pathlib import Path

import jax
import numpy as np

from distrl.errors import SpecError
from distrl.types import Nest, Params

_VERSION = "version"


def save_params(path: Path, version: int, params: Params) -> None:
    """Writes `params` and their version to `path`, whole or not at all."""
    _save(path, {_VERSION: np.int64(version), **_named(params)})


def save_nest(path: Path, nest: Nest) -> None:
    """Writes `nest` to `path`, whole or not at all."""
    _save(path, _named(nest))


def _named(nest: Nest) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(nest)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _save(path: Path, arrays: dict) -> None:
    part = path.with_suffix(".part.npz")
    np.savez(part, **arrays)
    os.replace(part, path)


def load_params(path: Path, like: Nest) -> tuple[int, Params]:
    """What `save_params` wrote.

    Args:
      path: of the file.
      like: nest of arrays or of `jax.ShapeDtypeStruct`, as the agent's parameters are; for
        example `jax.eval_shape(agent.initial_params, jax.random.PRNGKey(0))`.

    Returns:
      The version, and the parameters as NumPy arrays.

    Raises:
      SpecError: the file holds other parameters (without a normaliser's statistics, say); the
        message names the first that is missing, too many, or of another shape or dtype.
    """
    arrays = _load(path)
    if _VERSION not in arrays:
        raise SpecError(f"{path}: no version in it; it is no file of parameters")
    version = int(arrays.pop(_VERSION))
    return version, _nest(path, arrays, like, "params")


def load_nest(path: Path, like: Nest, what: str) -> Nest:
    """What `save_nest` wrote, as NumPy arrays.

    Args:
      path: of the file.
      like: nest of arrays or of `jax.ShapeDtypeStruct`, of the same structure.
      what: it is, for messages.

    Raises:
      SpecError: as `load_params`.
    """
    return _nest(path, _load(path), like, what)


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _nest(path: Path, arrays: dict[str, np.ndarray], like: Nest, what: str) -> Nest:
    want, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for key, leaf in want:
        name = jax.tree_util.keystr(key)
        expected = f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
        if name not in arrays:
            raise SpecError(
                f"{path}: no {what}{name}, expected {expected}; it was saved by another agent, "
                "network or other transforms"
            )
        array = arrays.pop(name)
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
