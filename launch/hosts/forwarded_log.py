"""A node's log on its own host: the output is sent to the launcher."""

import base64
import pathlib

from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.supervision.node_logs import NodeLog

OUTPUT_LIMIT = 8 << 20  # unsent bytes; output beyond them is dropped


class ForwardedLog(NodeLog):
    """Sends a node's output to the launcher.

    Args:
      name: the node's name.
      channel: the connection to the launcher.
    """

    def __init__(self, name: str, channel: JsonLineChannel) -> None:
        self.path = pathlib.Path(name)
        self._name = name
        self._channel = channel
        self._dropped = 0

    @property
    def broken(self) -> None:
        """None: the launcher has the file."""

    def fds(self) -> list[int]:
        """Returns no descriptors: nothing is open."""
        return []

    def feed(self, data: bytes) -> None:
        """See `NodeLog.feed`."""
        if self._channel.unsent() > OUTPUT_LIMIT:
            self._dropped += len(data)
            return
        if self._dropped:
            note = f"\n[{self._dropped} bytes left out: the launcher is slow to read]\n"
            data, self._dropped = note.encode() + data, 0
        self._channel.send("output", node=self._name, data=base64.b64encode(data).decode())

    def close(self) -> None:
        """Does nothing: nothing is open."""
