"""The largest priority so far of a prioritized table of a Reverb server, for new unrolls.

A second table on the same server holds it, as the priority of an item. So clients that update
priorities can send it, writers read it, and it is saved with the server's checkpoints. The table
has two items and removes the smaller one: the largest stays, whatever other clients insert. Unlike
in other tables, priorities of unrolls that were removed meanwhile count, too.
"""

import contextlib
import threading
import time
from typing import Any

import numpy as np

from distrl.errors import DeadlineExceeded
from distrl.replay.reverb.calls import ServerCalls

SUFFIX = "/largest_priority"  # appended to the name of the table of unrolls
_INTERVAL = 1.0  # seconds between two reads


class LargestPriority:
    """A client of the table: a writer's, or that of a client that updates priorities."""

    def __init__(self, client: Any, table: str, initial: float):
        """Args:
        client: a `reverb.Client`.
        table: name of the table of unrolls.
        initial: priority of new unrolls until a larger one is known.
        """
        self._initial = initial
        self._largest = initial
        self._due = 0.0
        self.connect(client, table)

    def connect(self, client: Any, table: str) -> None:
        """Uses another server, to which nothing has been sent yet."""
        self._client = client
        self._name = table + SUFFIX
        self._server = ServerCalls(client, self._name)
        self._sent = self._initial
        self._reading: threading.Thread | None = None

    def note(self, priority: float) -> None:
        """Notes a priority that an update sets; `send` must follow."""
        self._largest = max(self._largest, priority)

    def send(self) -> None:
        """Sends a larger priority, if there is one; waits for the server without a deadline."""
        largest = self._largest
        if largest > self._sent:
            self._client.insert(np.int8(0), {self._name: largest})
            self._sent = largest

    def of_new(self) -> float:
        """Returns the priority of new unrolls; in a thread, reads it again once a second."""
        reading = self._reading
        if time.monotonic() >= self._due and (reading is None or not reading.is_alive()):
            self._due = time.monotonic() + _INTERVAL
            self._reading = threading.Thread(target=self._try, name=f"read {self._name}")
            self._reading.daemon = True
            self._reading.start()
        return self._largest

    def _try(self) -> None:
        # A dead server is noticed, and reported, by the writer's next insert.
        with contextlib.suppress(DeadlineExceeded, RuntimeError):
            self.read(None)

    def read(self, stop: threading.Event | None) -> None:
        """Reads the server's largest priority. Raises as `ServerCalls.call`."""
        if self._server.info(stop).current_size:
            self.note(self._server.call(self._sample, "the largest priority", stop))

    def _sample(self) -> float:
        sampler = self._client._client.NewSampler(self._name, 1, 1)
        try:
            return float(sampler.GetNextTrajectory()[3])
        finally:
            sampler.Close()
