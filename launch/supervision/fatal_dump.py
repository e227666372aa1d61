"""Shortens what Python prints of all its threads when a signal such as SIGABRT kills a process."""

_BEGIN, _CURRENT = "Fatal Python error: ", "Current thread "
_PARTS = (_CURRENT, "Thread 0x", '  File "', "  <", "  ...", "Extension modules: ")
_FRAMES = 8  # innermost frames of the thread that died


class FatalDump:
    """Shortens the dump, line by line, to the innermost frames of the thread that died.

    Otherwise the line before it, which says why, would be out of sight.

    Args:
      where: says, to the reader, which file has all of it.
    """

    def __init__(self, where: str):
        self._where = where
        self._inside = False
        self._frames = 0  # number of frames that are still to be shown

    def shorten(self, line: str) -> list[str]:
        """Returns what is to be shown for a line."""
        if line.startswith(_BEGIN):
            self._inside, self._frames = True, 0
        elif self._inside and line and not line.startswith(_PARTS):
            self._inside = False
        if not self._inside or line.startswith(_BEGIN):
            return [line]
        if line.startswith(_CURRENT):
            self._frames = _FRAMES
            return [line]
        if not self._frames or not line:
            return []
        self._frames -= 1
        return [line] if self._frames else [line, f"  ... all threads: {self._where}"]
