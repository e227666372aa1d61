"""Describes errors for people: in one line, or as tracebacks with distrl's frames folded."""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from distrl import version
from distrl.errors import EnvironmentFault

_LINE_LIMIT = 500  # most characters of an exception in one line
FEWEST = 3  # fewest frames in a row that are folded
_FRAME = re.compile(
    r'^  File "(?P<path>[^"\n]+)", line \d+, in .*\n(?:    .*\n|  \[Previous line .*\n)*',
    re.MULTILINE,
)
_FAULT = "\ndistrl.errors.EnvironmentFault: "
_OWN = Path(version.__file__).parent
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
_PYTHON = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))


def one_line(text: object) -> str:
    """Returns a text, or an object as text, with each run of white space as one space."""
    return " ".join(str(text).split())


def describe_error(error: BaseException) -> str:
    """Returns "Type: message" in one line, of 500 characters at most.

    For an environment's fault it has the first line only: the environment's traceback follows it.
    """
    try:
        str(error)
        # With what a traceback suggests, but without notes, such as JAX's.
        text = str(traceback.TracebackException(type(error), error, None, compact=True)).strip()
    except Exception:  # as in Python's tracebacks
        text = "<exception str() failed>"
    if isinstance(error, EnvironmentFault):
        text = text.partition("\n")[0]
    return one_line(f"{type(error).__name__}{text and ': '}{text}")[:_LINE_LIMIT]


def fold(text: str, where: str) -> str:
    """Returns tracebacks with runs of frames folded into a line that counts them.

    Frames of distrl and of installed packages are folded, above the last frame of the user's own
    code. A traceback without such a frame stays whole, unless an environment is to blame, which has
    returned something wrong and so has no frame of its own left.

    Args:
      text: what `traceback.format_exception` returns, joined; or several of these.
      where: where the reader finds the whole text.
    """
    frames = list(_FRAME.finditer(text))
    whole = len(frames) if _FAULT in text else 0
    last = max((i for i, frame in enumerate(frames) if not _package(frame["path"])), default=whole)
    folded, end = [], 0
    for row in _rows(frames[:last]):
        if len(row) >= FEWEST:
            names = ", ".join(dict.fromkeys(_package(frame["path"]) for frame in row))
            folded += [text[end : row[0].start()], f"  ... {len(row)} frames of {names}: {where}\n"]
            end = row[-1].end()
    return "".join(folded) + text[end:]


def _rows(frames: list[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Yields the runs of consecutive frames of packages."""
    row: list[re.Match[str]] = []
    for frame in frames:
        if row and (not _package(frame["path"]) or frame.start() != row[-1].end()):
            yield row
            row = []
        if _package(frame["path"]):
            row.append(frame)
    yield row


def _package(path: str) -> str:
    """Returns the name of the package that a file belongs to; "" for the user's own code."""
    if Path(path).is_relative_to(_OWN):
        return _OWN.name
    for folder in _INSTALLED:
        if Path(path).is_relative_to(folder):
            return Path(path).relative_to(folder).parts[0].removesuffix(".py")
    if path.startswith("<frozen ") or any(Path(path).is_relative_to(folder) for folder in _PYTHON):
        return "Python"
    return ""
