"""What inference services have in common: an inferencer, and the figures of its batches."""

import threading
from typing import Any

from distrl.inference.messages import InferenceMessages
from distrl.inferencer import Inferencer
from distrl.runtime.heartbeat import Heartbeat
from distrl.runtime.time_account import TimeAccount


class BatchedService:
    """The base of inference services.

    Attributes:
      batches, requests: how many of each were answered.
    """

    def __init__(
        self, inferencer: Inferencer, messages: InferenceMessages, heartbeat: Heartbeat | None
    ):
        """Args:
        inferencer: runs the batches; its codec is `messages`.
        messages: the layout of requests and answers.
        heartbeat: the node's heartbeat, which records when batches run, and has this server's
          life; None: there is none.
        """
        self._heartbeat = heartbeat or Heartbeat()
        self._inferencer, self._messages = inferencer, messages
        self._lock = threading.Lock()
        self._account = TimeAccount()
        self.batches = self.requests = 0
        # With `batches`, the sums that a linear fit of batches' seconds to their rows needs.
        self._rows = self._squares = 0
        self._seconds = self._products = 0.0

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""
        self._inferencer.request_version(version)

    def times(self) -> dict[str, Any]:
        """Returns a report of what its time was spent on, and of its batches; safe in any thread.

        On its batches: the numbers of requests, batches and rows, and the sums of squared rows,
        of seconds, and of rows times seconds.
        """
        with self._lock:
            sums = [self._rows, self._squares, self._seconds, self._products]
            batches = [self.requests, self.batches, *sums]
            return {"time": self._account.totals(), "batches": batches}

    def _count(self, requests: int, rows: int, seconds: float) -> None:
        """Counts a batch; with the lock held."""
        self.batches += 1
        self.requests += requests
        self._rows += rows
        self._squares += rows * rows
        self._seconds += seconds
        self._products += rows * seconds
