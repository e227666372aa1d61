"""Files in shared memory that outlive the process of the node that made them."""

from distrl.errors import SharedMemoryLost
from distrl.runtime.heartbeat import current_heartbeat
from distrl.shared_memory import segment
from distrl.shared_memory.segment import Kind


def left_by_earlier_life(name: str, kind: Kind) -> bool:
    """Returns whether the calling node is to keep using a file that it made in an earlier life.

    Otherwise it makes the file, and calls `note_made`.

    Raises:
      SharedMemoryLost: it has made the file, which is gone. A second one would not be the one that
        other nodes still map.
    """
    heartbeat = current_heartbeat()
    if heartbeat.restarted and segment.exists(name, kind):
        return True
    if heartbeat.made_file:
        raise _lost(name, kind)
    return False


def note_made() -> None:
    """Notes that the calling node has made its file."""
    current_heartbeat().made_file = True


def check_not_lost(name: str, kind: Kind, maker: str) -> None:
    """Raises SharedMemoryLost if a file that was made is gone: a wait for it would never end.

    Args:
      name: the file's name.
      kind: what is in it.
      maker: name of the node that makes it. Without our launcher it is not known whether it has.
    """
    table = current_heartbeat().table
    row = None if table is None else table.of(maker)
    if row is not None and row.made_file and not segment.exists(name, kind):
        raise _lost(name, kind)


def _lost(name: str, kind: Kind) -> SharedMemoryLost:
    return SharedMemoryLost(
        f"{kind.noun} {name!r} has vanished from {segment.FOLDER}, and nodes that have opened it "
        "still use it: another program has removed it, such as systemd at your logout "
        "(RemoveIPC=yes; `loginctl enable-linger` prevents it); the same command resumes from the "
        "last checkpoint"
    )
