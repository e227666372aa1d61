"""Pictures in a terminal of 24-bit colours: a character is two pixels, one above the other."""

import shutil
import sys
import time

import numpy as np

from distrl.envs.rendering.pictures import Picture
from distrl.envs.rendering.rendered import Rendered
from distrl.types import TimeStep

_HOME, _CLEAR, _RESET = "\x1b[H", "\x1b[2J", "\x1b[0m"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_LINES = 2  # lines that are left for text


class TerminalPictures:
    """Draws each step, no faster than the environment's own time."""

    def __init__(self, drawn: Rendered):
        """Args: drawn: the environment with its pictures."""
        self._drawn = drawn
        self._due = 0.0
        self._begun = False

    def show(self, timestep: TimeStep | None) -> None:
        """Draws the environment. Args: timestep: its newest; None: it has several agents."""
        size = shutil.get_terminal_size()
        text = as_text(self._drawn.picture(timestep), size.columns, size.lines - _LINES)
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + 1.0 / self._drawn.fps()
        sys.stdout.write((_HOME if self._begun else _HIDE + _CLEAR + _HOME) + text)
        sys.stdout.flush()
        self._begun = True

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._begun:
            sys.stdout.write(_RESET + _SHOW + "\n")
            sys.stdout.flush()


def as_text(picture: Picture, columns: int, lines: int) -> str:
    """Returns a picture as lines of text that fit, each of which ends with a reset of colours.

    Args:
      picture: uint8 `[H, W, 3]`.
      columns, lines: size of the space.
    """
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    rows, across = max(2, int(height * scale) // 2 * 2), max(1, int(width * scale))
    y = (np.arange(rows) * height) // rows
    x = (np.arange(across) * width) // across
    pixels = picture[y][:, x]
    text = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist()):
        cells = [
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper, lower)
        ]
        text.append("".join(cells) + _RESET)
    return "\r\n".join(text) + "\r\n"
