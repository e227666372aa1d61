"""Fetches batches in a thread, from a sampler whose waits have no deadline."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from distrl.errors import Stopped
from distrl.replay.table.waiting import wait_until

Batch = TypeVar("Batch")


class Fetcher(Generic[Batch]):
    """Fetches one batch ahead, so that `take` can have a deadline."""

    def __init__(
        self,
        make_sampler: Callable[[], Any],
        assemble: Callable[[Any], Batch],
        name: str,
    ):
        """Args:
        make_sampler: creates the sampler, in the thread.
        assemble: returns the next batch from the sampler; waits as long as necessary.
        name: the table's name, for messages.
        """
        self._make_sampler = make_sampler
        self._assemble = assemble
        self._name = name
        self._changed = threading.Condition()
        self._ready: Batch | None = None
        self._error: Exception | None = None
        self._closed = False
        self._sampler: Any = None
        self._thread = threading.Thread(target=self._run, name=f"fetch {name}", daemon=True)
        self._thread.start()

    def take(
        self,
        timeout: float | None,
        stop: threading.Event | None,
        watch: Callable[[], None],
    ) -> Batch:
        """Returns the next batch.

        Args:
          timeout: seconds; None: no limit.
          stop: set when the program stops.
          watch: called repeatedly during the wait; may raise.

        Raises:
          Stopped, DeadlineExceeded: as `wait_until`; or this is closed.
          RuntimeError: fetching failed; its cause is the error.
        """
        with self._changed:
            wait_until(
                self._changed,
                lambda: self._ready is not None or self._error is not None or self._closed,
                stop=stop,
                timeout=timeout,
                what=lambda: f"a batch waits for samples of table {self._name!r}",
                poll=watch,
            )
            if self._ready is None:
                if self._error is None:
                    raise Stopped(f"a batch of table {self._name!r}: this client is closed")
                raise RuntimeError(f"table {self._name!r}: {self._error}") from self._error
            sample, self._ready = self._ready, None
            self._changed.notify_all()
            return sample

    def ready(self) -> bool:
        """Returns whether `take` would not wait: for a batch, or for the error that there is."""
        with self._changed:
            return self._ready is not None or self._error is not None

    def _run(self) -> None:
        try:
            sampler = self._make_sampler()
            with self._changed:
                self._sampler = sampler
                closed = self._closed
            while not closed:
                with self._changed:
                    while not self._closed and self._ready is not None:
                        self._changed.wait(1.0)
                    if self._closed:
                        return
                sample = self._assemble(sampler)
                with self._changed:
                    self._ready = sample
                    self._changed.notify_all()
                    closed = self._closed
        except Exception as error:  # raised by `take`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            sampler = self._sampler
        if sampler is not None:
            # This wakes the fetching thread at once, but takes another 3 s if the server is in this
            # process: so it runs in a thread that nobody waits for.
            threading.Thread(target=sampler.Close, name=f"close {self._name}", daemon=True).start()
        self._thread.join(1.0)
