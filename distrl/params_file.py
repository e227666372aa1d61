"""Parameters in a file: NumPy's npz, one array a leaf, named by its path."""

import os
from pathlib import Path

import jax
import numpy as np

from distrl.errors import SpecError
from distrl.types import Nest, Params

_VERSION = "version"


def save_params(path: Path, version: int, params: Params) -> None:
    """Writes `params` and their version to `path`, whole or not at all."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    arrays = {jax.tree_util.keystr(p): np.asarray(leaf) for p, leaf in leaves}
    part = path.with_suffix(".part.npz")
    np.savez(part, version=np.int64(version), **arrays)
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
    want, structure = jax.tree_util.tree_flatten_with_path(like)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    if _VERSION not in arrays:
        raise SpecError(f"{path}: no version in it; it is no file of parameters")
    version = int(arrays.pop(_VERSION))
    leaves = []
    for key, leaf in want:
        name = jax.tree_util.keystr(key)
        expected = f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
        if name not in arrays:
            raise SpecError(
                f"{path}: no params{name}, expected {expected}; it was saved by another agent, "
                "network or other transforms"
            )
        array = arrays.pop(name)
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise SpecError(
                f"{path}: params{name}: expected {expected}, got {array.dtype}{list(array.shape)}"
            )
        leaves.append(array)
    if arrays:
        raise SpecError(
            f"{path}: params{next(iter(arrays))} is not among the agent's parameters; it was "
            "saved by another agent, network or other transforms"
        )
    return version, structure.unflatten(leaves)
