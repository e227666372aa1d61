"""Synchronous collection: actors act in rounds, and the learner learns between them.

In a round every actor makes an unroll of each of its streams, all with the parameters that the
round began with. It ends when `min_actors` have delivered and the grace time is over, or all have.
Data of an actor that delivers later is kept or dropped, by rule, and counted. An actor that was
late joins the round that is open when it has delivered. Rounds do not wait for actors that have
left; of fewer than `min_actors`, all must deliver.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from distrl.replay.table.waiting import wait_until

_JOIN_S = 0.2  # seconds that `CollectionRounds.join` waits for the next round


class CollectionRounds:
    """Decides when a round begins and ends; in the learner's process. Thread safe.

    An actor may repeat any of its calls.
    """

    def __init__(
        self,
        num_actors: int,
        min_actors: int,
        grace: float,
        keep_late: bool,
        life: int = 0,
        clock: Callable[[], float] = time.monotonic,
        gone: Callable[[], frozenset[int]] = frozenset,
    ):
        """Args:
        num_actors: actors that the program begins with.
        min_actors: number of actors that must have delivered before a round ends.
        grace: seconds that the other actors then have.
        keep_late: keep late data; otherwise drop it.
        life: life of the learner's process; rounds of different lives have different numbers.
        clock: the monotonic clock.
        gone: returns the actors that have ended and are not restarted.
        """
        self._min_actors, self._gone = min_actors, gone
        self._grace, self._keep_late, self._clock = grace, keep_late, clock
        self._changed = threading.Condition()
        self._round = life << 32
        self._open = False
        self._version = 0
        self._delivered: set[int] = set()  # actors that have delivered in this round
        self._members = set(range(num_actors))  # actors that have not left
        # Actors whose offer was taken in this round and that have not delivered. The round waits
        # for them: otherwise, what they insert after its end would be late, and kept although the
        # rule is to drop late data.
        self._promised: set[int] = set()
        self._enough_since = 0.0
        self._answers: dict[int, tuple[tuple[int, int], bool]] = {}  # by actor: the last offer
        self._counted: dict[int, tuple[int, int]] = {}  # by actor: the last delivery
        self._counts = dict.fromkeys(
            ("rounds", "unrolls_in_time", "unrolls_late_kept", "unrolls_late_dropped"), 0
        )

    def counts(self) -> dict[str, int]:
        """Returns rounds that have ended, and unrolls delivered in time, late, and dropped."""
        with self._changed:
            return dict(self._counts)

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Continues from a mapping that `counts` returned; counts that it lacks are 0."""
        with self._changed:
            self._counts = {name: int(counts.get(name, 0)) for name in self._counts}

    # Called by the learner:

    def collect(
        self, version: int, stop: threading.Event | None = None, timeout: float | None = None
    ) -> None:
        """Opens a round with parameters of a version, or stays in an open one, until it has ended.

        Raises:
          Stopped: the program stops.
          DeadlineExceeded: too few actors have delivered; the round stays open.
        """
        with self._changed:
            if not self._open:
                self._round += 1
                self._version, self._open = version, True
                self._delivered.clear()
                self._promised.clear()
                self._changed.notify_all()
            wait_until(
                self._changed, self._is_over, stop=stop, timeout=timeout, what=self._describe
            )
            self._open = False
            self._counts["rounds"] += 1

    def _is_over(self) -> bool:
        gone = self._gone()
        acting = self._members - gone
        if not acting or self._promised - gone:  # with no actor left, the next round has no data
            return False
        if len(self._delivered) < min(self._min_actors, len(acting)):
            return False
        return acting <= self._delivered or self._clock() - self._enough_since >= self._grace

    def _describe(self) -> str:
        acting = len(self._members - self._gone())
        return (
            f"a round waits for {min(self._min_actors, acting)} of {acting} actors "
            f"(actors.min_actors); {len(self._delivered)} have delivered: "
            f"{sorted(self._delivered)}, and {sorted(self._promised)} are still acting"
        )

    # Called by actors:

    def join(self, actor: int, after: int) -> tuple[int, int] | None:
        """Returns the number of an open round, and the version of its parameters.

        Waits briefly; returns None if there is none yet that the actor has not delivered in.

        Args:
          actor: index of the actor.
          after: the last round that it joined in its life; -1: none.
        """

        def can_join() -> bool:
            return self._open and self._round != after and actor not in self._delivered

        with self._changed:
            self._members.add(actor)
            if actor in self._promised:  # its earlier life had offered unrolls
                self._promised.remove(actor)
                self._changed.notify_all()
            if not self._changed.wait_for(can_join, _JOIN_S):
                return None
            return self._round, self._version

    def offer(self, actor: int, life: int, number: int, unrolls: int) -> bool:
        """Returns whether an actor is to insert the unrolls that it made in a round.

        Args:
          actor: index of the actor.
          life: the actor's life.
          number: the round's number.
          unrolls: number of unrolls.
        """
        with self._changed:
            key, answer = self._answers.get(actor, ((-1, -1), False))
            if key == (life, number):
                return answer
            in_time = self._open and number == self._round
            kept = self._keep_late or in_time
            self._answers[actor] = (life, number), kept
            if in_time:
                self._promised.add(actor)
            elif not kept:
                self._counts["unrolls_late_dropped"] += unrolls
            return kept

    def deliver(self, actor: int, life: int, number: int, unrolls: int) -> None:
        """Notes that what was offered is in the table. Arguments as for `offer`."""
        with self._changed:
            if self._counted.get(actor) == (life, number):
                return
            self._counted[actor] = life, number
            if not (self._open and number == self._round):
                self._counts["unrolls_late_kept"] += unrolls
                return
            self._counts["unrolls_in_time"] += unrolls
            self._promised.discard(actor)
            self._delivered.add(actor)
            if len(self._delivered) <= self._min_actors:
                self._enough_since = self._clock()
            self._changed.notify_all()

    def leave(self, actor: int) -> None:
        """Notes that an actor has stopped acting: no round waits for it."""
        with self._changed:
            self._members.discard(actor)
            self._promised.discard(actor)
            self._changed.notify_all()
