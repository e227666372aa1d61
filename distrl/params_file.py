"""Parameters in a file: NumPy's npz, one array a leaf, named by its path."""

import os
from pathlib import Path

import jax
import numpy as np

from distrl.types import Params


def save_params(path: Path, version: int, params: Params) -> None:
    """Writes `params` and their version to `path`, whole or not at all."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    arrays = {jax.tree_util.keystr(p): np.asarray(leaf) for p, leaf in leaves}
    part = path.with_suffix(".part.npz")
    np.savez(part, version=np.int64(version), **arrays)
    os.replace(part, path)
