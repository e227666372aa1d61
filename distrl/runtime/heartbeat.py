"""What the nodes of a program do: a row for each, in memory that they share with their launcher.

The launcher writes whether a node is there, and in which life; the node writes that it lives, and
since when it works or waits. A node that dies leaves its row as it was.
"""

import mmap
import threading
import time
from collections.abc import Callable, Sequence

ABSENT, UP, DOWN, GONE = range(4)
"""A node's status: not started; there; ended, and to be started again; ended for good."""
_STATUS, _LIFE, _BEAT, _WORKING, _SINCE, _ACTED, _STARTS, _COLUMNS = range(8)


class Heartbeat:
    """One node's row. Without a table it is the node's own: what is written there, nobody reads.

    Times are nanoseconds of the monotonic clock, which is one for all processes of a machine.
    """

    def __init__(self, values: memoryview | None = None, table: "HeartbeatTable | None" = None):
        """For `HeartbeatTable.of`; values: int64 `[_COLUMNS]`."""
        self._values = memoryview(bytearray(8 * _COLUMNS)).cast("q") if values is None else values
        self.table = table

    # What the node says.

    def tick(self) -> None:
        """It works, and has just got on."""
        self._values[_SINCE] = time.monotonic_ns()
        self._values[_WORKING] = 1

    def wait(self) -> None:
        """It waits for others, with a deadline of its own."""
        self._values[_SINCE] = time.monotonic_ns()
        self._values[_WORKING] = 0

    def beat(self) -> None:
        """Its Python threads run."""
        self._values[_BEAT] = time.monotonic_ns()

    @property
    def acted(self) -> int:
        """Environment steps that the node took, in all its lives in this program."""
        return self._values[_ACTED]

    @acted.setter
    def acted(self, steps: int) -> None:
        self._values[_ACTED] = steps

    # What the launcher says.

    def begin(self, life: int) -> None:
        """The node is about to start, in this life."""
        values = self._values
        values[_LIFE], values[_BEAT] = life, 0
        values[_STARTS] += 1
        self.tick()
        values[_WORKING] = 0
        values[_STATUS] = UP

    def end(self, comes_back: bool) -> None:
        """The node has ended."""
        self._values[_STATUS] = DOWN if comes_back else GONE

    def told(self, working: bool, since: float, silent: float | None) -> None:
        """What the node says, where it runs on another host: seconds, as of now."""
        now = time.monotonic_ns()
        self._values[_SINCE] = now - int(since * 1e9)
        self._values[_WORKING] = working
        self._values[_BEAT] = 0 if silent is None else now - int(silent * 1e9)

    def mirror(self, status: int, life: int) -> None:
        """What the launcher says of a node that runs on another host."""
        self._values[_LIFE] = life
        self._values[_STATUS] = status

    # What anyone may ask.

    @property
    def status(self) -> int:
        """ABSENT, UP, DOWN or GONE."""
        return self._values[_STATUS]

    @property
    def life(self) -> int:
        """0 for the first, and more at each restart."""
        return self._values[_LIFE]

    @property
    def restarted(self) -> bool:
        """Whether it had another life in this program."""
        return self._values[_STARTS] > 1

    def at_work(self) -> float | None:
        """Seconds since it last got on; None while it waits, or has never said."""
        return _seconds_since(self._values[_SINCE]) if self._values[_WORKING] else None

    def silent(self) -> float | None:
        """Seconds since its Python threads last ran; None before they first did."""
        return _seconds_since(self._values[_BEAT]) if self._values[_BEAT] else None


def _seconds_since(nanoseconds: int) -> float:
    return (time.monotonic_ns() - nanoseconds) / 1e9


class HeartbeatTable:
    """The rows of all nodes. Made before the nodes' processes are forked, which then share it."""

    def __init__(self, names: Sequence[str]):
        """Args: names: of the nodes, as "actor/0"."""
        self._names = {name: index for index, name in enumerate(names)}
        self._values = memoryview(mmap.mmap(-1, 8 * _COLUMNS * max(1, len(names)))).cast("q")

    def of(self, name: str) -> Heartbeat | None:
        """A node's row; None where there is no such node."""
        index = self._names.get(name)
        if index is None:
            return None
        return Heartbeat(self._values[index * _COLUMNS : (index + 1) * _COLUMNS], self)


_find: Callable[[], tuple[Heartbeat, bool] | None] = lambda: None  # noqa: E731
_own = threading.local()


def install_heartbeat_lookup(find: Callable[[], tuple[Heartbeat, bool] | None]) -> None:
    """The launcher's: how a thread finds its node's seat, and whether it is the node's main thread.

    `find` gives None for threads that belong to no node.
    """
    global _find
    _find = find


def current_heartbeat() -> Heartbeat:
    """The heartbeat of the node that runs this code; a private one where there is no launcher."""
    found = _find()
    return found[0] if found is not None else _unwatched()


def main_thread_heartbeat() -> Heartbeat:
    """As `current_heartbeat` in the node's main thread; in its other threads a private one.

    So a background thread does not pass for the node's own progress.
    """
    found = _find()
    return found[0] if found is not None and found[1] else _unwatched()


def _unwatched() -> Heartbeat:
    heartbeat = getattr(_own, "heartbeat", None)
    if heartbeat is None:
        heartbeat = _own.heartbeat = Heartbeat()
    return heartbeat
