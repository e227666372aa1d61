"""The actors' and the learner's side of the acting budget, which the monitor shares out."""

import concurrent.futures
import threading
import time
from typing import Any

from distrl.actor import ActorLoop
from distrl.budget import Lease
from distrl.errors import PeerError
from distrl.goal import Goal
from distrl.lockstep import LockstepReader
from distrl.programs.program import NodeHandle
from distrl.programs.remote import Peer
from distrl.replay.buffer import ReplayReader
from distrl.runtime.early_deadline import passed_early
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.time_account import IDLE, in_state

_LEASE_S = 1.0  # seconds that a lease should last
_MAX_WANTED = 2**40
_ASK_S = 0.05  # between two calls of an actor that waits for what others do not use
_POLL_S = 0.1  # between two calls of the learner


def has_budget(goal: Goal) -> bool:
    """Returns whether the actors have a budget."""
    return goal.acting_budget != (None, None)


class ActorLease:
    """An actor's lease, which it renews about once per second."""

    def __init__(
        self,
        monitor: NodeHandle,
        task: str,
        actor: str,
        life: int,
        step: int,
        before: int,
        stop: threading.Event,
    ):
        """Args:
        monitor: name and client of the monitor.
        task: name of the task.
        actor: name of the actor.
        life: its life.
        step: the most environment steps that one step of its pool can add.
        before: environment steps of its earlier lives in this program.
        stop: event that ends a wait.
        """
        self._monitor = Peer(monitor)
        self._who = task, actor, life
        self._step = step
        self._before = before
        self._stop = stop
        self._lease = Lease(0, 0, False)
        self._wanted = step
        self._asked = 0.0
        self.over = False

    def allows(self, actor: ActorLoop) -> bool:
        """Returns whether the actor may step; asks for more if its lease does not say.

        While others still act on their leases, waits for what they leave: that wait has no limit of
        its own, because an actor that does not act is restarted by its supervisor.
        """
        asked = False
        while not self._is_within(self._before + actor.acted, actor.episodes):
            if self.over or self._stop.is_set():
                return False
            if asked:  # the others hold the rest
                current_heartbeat().wait()
                with in_state(IDLE):
                    self._stop.wait(_ASK_S)
                current_heartbeat().tick()
            self._ask(actor)
            asked = True
        return True

    def _is_within(self, env_steps: int, episodes: int) -> bool:
        lease, step = self._lease, self._step
        return (lease.env_steps is None or env_steps + step <= lease.env_steps) and (
            lease.episodes is None or episodes + step <= lease.episodes
        )

    def _ask(self, actor: ActorLoop) -> None:
        now = time.monotonic()
        if now - self._asked < _LEASE_S:
            self._wanted = min(2 * self._wanted, _MAX_WANTED)
        self._asked = now
        counts = self._before + actor.acted, actor.episodes
        with in_state(IDLE):
            answer = self._monitor.lease(*self._who, counts, self._step, self._wanted)
        self._lease = Lease(*answer)
        self.over = self._lease.over

    def finish(self, rounds: int) -> None:
        """Reports that the actor has stopped acting, and has passed on all that it made.

        Args:
          rounds: in lockstep, the number of rounds that it has completed.
        """
        self._monitor.finish(self._who[1], rounds)


class ActingWatch:
    """Asks the monitor whether acting is over, without waiting for its answer."""

    def __init__(self, monitor: NodeHandle, task: str, reader: ReplayReader):
        """Args:
        monitor: name and client of the monitor.
        task: name of the task.
        reader: the learner's reader; in lockstep it gets the number of rounds.
        """
        self._monitor = monitor
        self._task = task
        self._rounds = reader if isinstance(reader, LockstepReader) else None
        self._asked = 0.0
        self._unanswered_since: float | None = None
        self._call: concurrent.futures.Future[Any] | None = None
        self._over = False

    def __call__(self) -> bool:
        """Returns whether acting is over, as of the last answer.

        Raises:
          PeerError: the monitor failed.
        """
        if self._over and self._rounds is None:
            return True
        if self._call is None:
            now = time.monotonic()
            if now - self._asked >= _POLL_S:
                self._asked = now
                if self._unanswered_since is None:
                    self._unanswered_since = now
                self._call = self._monitor.client.futures.acting_over(self._task)
        elif self._call.done():
            call, self._call = self._call, None
            try:
                self._over, rounds = call.result()
            except Exception as error:
                since = self._unanswered_since or 0.0
                if passed_early(error, since, self._monitor.timeout):
                    return self._over  # and ask again
                raise PeerError(f"{self._monitor.name}.acting_over() failed: {error!r}") from error
            self._unanswered_since = None
            if self._over and self._rounds is not None:
                self._rounds.end_after(rounds)
        return self._over
