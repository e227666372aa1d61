"""Lines that stay below whatever else is written to a terminal."""

import os
import re
from collections.abc import Sequence

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# Terminals that know it draw all between the two at once.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Footer:
    """The text that draws the lines, and removes them.

    Args:
      fd: the terminal.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: list[str] = []
        self._drawn: list[int] = []  # the widths of the lines on the screen

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal that lines may have."""
        try:
            columns, rows = os.get_terminal_size(self._fd)
        except OSError:  # it is closed
            columns, rows = 80, 24
        return max(20, columns - 1), max(1, rows - 2)

    def replaced(self, lines: Sequence[str]) -> str:
        """Returns the text that draws these lines instead of the present ones."""
        self._lines = list(lines)
        return self.around("")

    def around(self, text: str) -> str:
        """Returns the text that writes whole lines above the footer."""
        if not self._lines and not self._drawn:
            return text
        erase = self._erase()
        self._drawn = [len(_STYLE.sub("", line)) for line in self._lines]
        drawn = "".join(f"{line}\x1b[K\n" for line in self._lines)
        return f"{_BEGIN}{erase}{text}{_NO_WRAP}{drawn}{_WRAP}{_END}"

    def _erase(self) -> str:
        columns = self.size[0] + 1
        # A terminal that was made narrower has wrapped them.
        rows = sum(max(1, -(-width // columns)) for width in self._drawn)
        return "\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J"
