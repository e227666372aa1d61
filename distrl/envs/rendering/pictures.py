"""Pictures: what a `render` must return, and observations that are pictures themselves."""

import ctypes.util
import os
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.types import Nest

Picture = npt.NDArray[np.uint8]
"""uint8 `[H, W, 3]`, red, green, blue."""

_LEAST = 16  # pixels of a side; smaller ones are grids of symbols, such as MiniGrid's


def checked(picture: Any, name: str) -> Picture:
    """Returns the checked result of a `render`. Args: name: the environment's name, for messages.

    Raises:
      ConfigError: it is no picture.
    """
    if isinstance(picture, (list, tuple)) and picture:  # gymnasium's pictures since the last call
        picture = picture[-1]
    array = np.asarray(picture)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        got = "None" if picture is None else f"{array.dtype}{list(array.shape)}"
        hint = ""
        if picture is None:
            hint = "; make it with render_mode='rgb_array', or let its builder take a `render_mode`"
        raise ConfigError(
            f"{name} has no pictures: its render() must return uint8 [H, W, 3], got {got}{hint}"
        )
    return array


def is_picture(spec: Any) -> bool:
    """Returns whether the spec of an observation's leaf is that of one picture, or of several."""
    sides = sorted(spec.shape)[-2:]
    return spec.dtype == np.uint8 and len(spec.shape) >= 3 and min(sides) >= _LEAST


def newest_picture(observation: Nest) -> Picture:
    """Returns the picture in the observation of one environment, the newest of a stack.

    Args:
      observation: its first leaf that is a picture is `[..., C, H, W]` or `[..., H, W, C]`, with
        the newest last.
    """
    leaf = next(each for each in jax.tree.leaves(observation) if is_picture(each))
    while leaf.ndim > 3:
        leaf = leaf[-1]
    if leaf.shape[2] > min(leaf.shape[:2]):  # [C, H, W]
        leaf = np.moveaxis(leaf, 0, 2)
    leaf = leaf[:, :, -3:] if leaf.shape[2] % 3 == 0 else leaf[:, :, -1:].repeat(3, axis=2)
    return np.ascontiguousarray(leaf)


def choose_renderer() -> None:
    """Lets MuJoCo and pygame draw where there is no display. Call it before they are imported.

    Their environment variables, MUJOCO_GL and SDL_VIDEODRIVER, stay as they are where they are set.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if has_display():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if "MUJOCO_GL" in os.environ:
        return
    for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def has_display() -> bool:
    """Returns whether windows can be opened."""
    return any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
