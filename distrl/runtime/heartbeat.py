"""Heartbeats: a row for each node, in memory that the nodes share with their launcher.

The launcher writes a node's status and life; the node writes that it is alive, and since when it
works or waits. A node that dies leaves its row as it was.
"""

import mmap
import threading
import time
from collections.abc import Callable, Sequence

ABSENT, UP, DOWN, GONE, LOST = range(5)
"""A node's status: not started; running; ended and to be restarted; ended for good; ended with its
host, and to be restarted if that comes back."""
_STATUS, _LIFE, _BEAT, _WORKING, _SINCE, _ACTED, _STARTS, _ENDED, _MADE, _COLUMNS = range(10)


class Heartbeat:
    """One node's row. Without a table it is private: nobody else reads it.

    Times are nanoseconds of the monotonic clock, which all processes of a machine share.

    Attributes:
      table: the table of all nodes; None: a private heartbeat.
    """

    def __init__(self, values: memoryview | None = None, table: "HeartbeatTable | None" = None):
        """For `HeartbeatTable.of`. Args: values: int64 `[_COLUMNS]`. table: see the class."""
        self._values = memoryview(bytearray(8 * _COLUMNS)).cast("q") if values is None else values
        self.table = table

    # Written by the node.

    def tick(self) -> None:
        """Records progress: the node is working."""
        self._values[_SINCE] = time.monotonic_ns()
        self._values[_WORKING] = 1

    def wait(self) -> None:
        """Records that the node waits for others; such a wait has its own deadline."""
        self._values[_SINCE] = time.monotonic_ns()
        self._values[_WORKING] = 0

    def beat(self) -> None:
        """Records that the node's Python threads run."""
        self._values[_BEAT] = time.monotonic_ns()

    @property
    def acted(self) -> int:
        """Environment steps that the node has taken, in all its lives in this program."""
        return self._values[_ACTED]

    @acted.setter
    def acted(self, steps: int) -> None:
        self._values[_ACTED] = steps

    @property
    def made_file(self) -> bool:
        """Whether the node has made the file that it shares, in any life in this program."""
        return bool(self._values[_MADE])

    @made_file.setter
    def made_file(self, made: bool) -> None:
        self._values[_MADE] = made

    # Written by the launcher.

    def begin(self, life: int) -> None:
        """Records that the node is about to start in this life."""
        values = self._values
        values[_LIFE], values[_BEAT] = life, 0
        values[_STARTS] += 1
        self.tick()
        values[_WORKING] = 0
        values[_STATUS] = UP

    def not_started(self) -> None:
        """Records that the node has not started after all: its next life may be the first one."""
        self._values[_STARTS] -= 1

    def end(self, comes_back: bool, host_lost: bool = False) -> None:
        """Records that the node has ended.

        Args:
          comes_back: whether it will be restarted.
          host_lost: whether its host must come back first.
        """
        self._values[_ENDED] = self._values[_LIFE] + 1
        self._values[_STATUS] = GONE if not comes_back else LOST if host_lost else DOWN

    def mirror_acted(self, steps: int) -> None:
        """Takes the node's steps from another table, if it knows of more."""
        self._values[_ACTED] = max(steps, self._values[_ACTED])

    def mirror_activity(self, working: bool, since: float, silent: float | None) -> None:
        """Copies what a node on another host has written.

        Args:
          working: whether it works; otherwise it waits.
          since: seconds since it last made progress or began to wait.
          silent: see `silent`.
        """
        now = time.monotonic_ns()
        self._values[_SINCE] = now - int(since * 1e9)
        self._values[_WORKING] = working
        self._values[_BEAT] = 0 if silent is None else now - int(silent * 1e9)

    def mirror_status(self, status: int, life: int, acted: int = 0) -> None:
        """Copies what the launcher knows of a node on another host. Args: see the properties."""
        self._values[_LIFE] = life
        self.mirror_acted(acted)
        if status in (DOWN, GONE, LOST):
            self._values[_ENDED] = life + 1
        self._values[_STATUS] = status

    # Read by anyone.

    @property
    def status(self) -> int:
        """ABSENT, UP, DOWN, GONE or LOST."""
        return self._values[_STATUS]

    @property
    def life(self) -> int:
        """0 for the first life, and more after each restart."""
        return self._values[_LIFE]

    @property
    def ended(self) -> tuple[int, int] | None:
        """The life that has ended, and `acted` at its end; None: none has, or another has begun.

        The two belong together, also while the launcher begins the next life: it writes the life
        before the status, and before the node acts.
        """
        life, acted = self._values[_ENDED] - 1, self._values[_ACTED]
        return (life, acted) if 0 <= life == self._values[_LIFE] else None

    @property
    def activity_known(self) -> bool:
        """False for a node on another host, if only its status and life are known here."""
        return self._values[_SINCE] != 0

    @property
    def restarted(self) -> bool:
        """Whether the node has had another life in this program."""
        return self._values[_STARTS] > 1

    def at_work(self) -> float | None:
        """Returns seconds since the last progress; None while the node waits, or before any."""
        return _seconds_since(self._values[_SINCE]) if self._values[_WORKING] else None

    def silent(self) -> float | None:
        """Returns seconds since the node's Python threads last ran; None before they first did."""
        return _seconds_since(self._values[_BEAT]) if self._values[_BEAT] else None


def _seconds_since(nanoseconds: int) -> float:
    return (time.monotonic_ns() - nanoseconds) / 1e9


class HeartbeatTable:
    """The rows of all nodes. Create it before forking the nodes' processes, which then share it."""

    def __init__(self, names: Sequence[str]):
        """Args: names: node names, e.g. "actor/0"."""
        self._names = {name: index for index, name in enumerate(names)}
        self._values = memoryview(mmap.mmap(-1, 8 * _COLUMNS * max(1, len(names)))).cast("q")

    def of(self, name: str) -> Heartbeat | None:
        """Returns a node's row; None if there is no such node."""
        index = self._names.get(name)
        if index is None:
            return None
        return Heartbeat(self._values[index * _COLUMNS : (index + 1) * _COLUMNS], self)

    def group(self, label: str) -> dict[str, Heartbeat]:
        """Returns the rows of a group's nodes, by name."""
        rows = {name: self.of(name) for name in self._names if name.rpartition("/")[0] == label}
        return {name: row for name, row in rows.items() if row is not None}


_find: Callable[[], tuple[Heartbeat, bool] | None] = lambda: None  # noqa: E731
_private = threading.local()


def install_heartbeat_lookup(find: Callable[[], tuple[Heartbeat, bool] | None]) -> None:
    """Installs the launcher's way to find the calling thread's heartbeat.

    Args:
      find: returns the heartbeat of the calling thread's node, and whether it is the node's main
        thread; None for threads that belong to no node.
    """
    global _find
    _find = find


def current_heartbeat() -> Heartbeat:
    """Returns the heartbeat of the node that runs this code; a private one without a launcher."""
    entry = _find()
    return entry[0] if entry is not None else _private_heartbeat()


def main_thread_heartbeat() -> Heartbeat:
    """Returns `current_heartbeat` in the node's main thread; in its other threads a private one.

    So a background thread does not count as progress of the node.
    """
    entry = _find()
    return entry[0] if entry is not None and entry[1] else _private_heartbeat()


def _private_heartbeat() -> Heartbeat:
    heartbeat = getattr(_private, "heartbeat", None)
    if heartbeat is None:
        heartbeat = _private.heartbeat = Heartbeat()
    return heartbeat
