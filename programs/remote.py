"""Calls to other nodes, which survive their restart, and reports to the monitor."""

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any

from distrl.errors import PeerError, Stopped
from distrl.metrics.reports import Report, checked_metrics, first_number, kind_of
from distrl.programs.build import print_line
from distrl.programs.groups import INFERENCER
from distrl.programs.program import NodeHandle
from distrl.programs.substrate import node_context
from distrl.runtime.durations import longest_wait
from distrl.runtime.early_deadline import (
    PAUSE_S,
    call_again_if_early,
    is_deadline,
    passed_early,
)
from distrl.runtime.heartbeat import (
    DOWN,
    GONE,
    LOST,
    UP,
    current_heartbeat,
    main_thread_heartbeat,
)
from distrl.runtime.time_account import current_account

RESTART_TIMEOUT_S = 120.0  # seconds that a call waits for a peer that is being restarted
_NOTICED_S = 1.0  # seconds within which a death is noticed
_POLL_S = 0.05  # between two looks at the peer's heartbeat
_MAX_UNSENT = 300  # reports; half a minute of a monitor that does not answer


class PeerWatch:
    """Whether a peer runs, is being restarted or has ended, as far as its heartbeat shows it."""

    def __init__(self, peer: NodeHandle):
        """Args: peer: the node."""
        self._name = peer.name
        heartbeats = current_heartbeat().table
        self._heartbeat = heartbeats.of(peer.name) if heartbeats is not None else None
        self._stop = node_context.stop_event()

    @property
    def life(self) -> int:
        """The peer's life; 0 if it is not known."""
        return self._heartbeat.life if self._heartbeat is not None else 0

    @property
    def status(self) -> int | None:
        """The peer's status, see `distrl.runtime.heartbeat`; None: it is not known."""
        return self._heartbeat.status if self._heartbeat is not None else None

    def wait_for_restart(self, life: int, what: str, error: Exception) -> None:
        """Returns when the peer, whose `life` a call failed in, has begun another.

        Raises:
          Stopped: the program stops.
          PeerError: it has not been restarted, or not in time.
        """
        heartbeat = self._heartbeat
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while heartbeat is not None and heartbeat.status in (UP, DOWN, LOST):
            if heartbeat.status == UP and heartbeat.life != life:
                return
            # A process that has just died still counts as up for a moment.
            noticed_by = deadline - RESTART_TIMEOUT_S + _NOTICED_S
            if heartbeat.status == UP and time.monotonic() > noticed_by:
                break
            if time.monotonic() > deadline:
                break
            if self._stop.wait(_POLL_S):
                raise Stopped(f"{what}: the program stops") from error
        if heartbeat is not None and heartbeat.status == GONE:
            raise PeerError(f"{what}: {self._name} has ended") from error
        if heartbeat is not None and heartbeat.status == LOST:
            raise PeerError(f"{what}: the host of {self._name} is lost") from error
        raise PeerError(f"{what}: {error}") from error


class Peer:
    """A client of another node, whose errors name that node. Its deadline comes with the handle.

    While the peer is being restarted, a call waits for it and is made again; so it is if its
    deadline passes early. Methods that are called this way must be safe to call again, as Courier
    itself may do.
    """

    def __init__(self, peer: NodeHandle):
        """Args: peer: the node."""
        self._client = peer.client
        self._name = peer.name
        self._timeout = peer.timeout
        asks = peer.group == INFERENCER.name
        self._setting = "inference.timeout" if asks else "supervision.call_timeout"
        self._watch = PeerWatch(peer)
        self._life = self._watch.life  # at the last call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        remote = getattr(self._client, method)

        def call(*args: Any) -> Any:
            caller, account = main_thread_heartbeat(), current_account()
            caller.wait()
            state = account.wait()
            # A restart since the last call has ended the connection, which shows only now.
            life, self._life = self._life, self._watch.life
            try:
                while True:
                    try:
                        return call_again_if_early(lambda: remote(*args), self._timeout)
                    except Exception as error:
                        what = f"{self._name}.{method}() failed"
                        if self._timeout is not None and is_deadline(error):
                            what += f", no answer in {self._timeout:g} s ({self._setting})"
                        self._watch.wait_for_restart(life, what, error)
                        life = self._life = self._watch.life
            finally:
                account.switch(state)
                caller.tick()

        setattr(self, method, call)
        return call


class TaskVariables:
    """The parameters of one task, from a node that may serve those of several."""

    def __init__(self, learner: NodeHandle, task: str):
        """Args: learner: the node. task: name of the task."""
        self._learner = Peer(learner)
        self._task = task

    def life(self) -> int:
        """See `LearnerNode.life`; the node must be the learner's."""
        life: int = self._learner.life()
        return life

    def get_variables(self, newer_than: int, reader_domain: str = "") -> Any:
        """See `VariableService.get_variables`."""
        return self._learner.get_variables(newer_than, self._task, reader_domain)

    def get_variables_at(self, number: int, reader_domain: str = "") -> Any:
        """See `VariableService.get_variables_at`."""
        return self._learner.get_variables_at(number, self._task, reader_domain)


class TaskRounds:
    """The rounds of a task, which its learner's node has; see `CollectionRounds`."""

    def __init__(self, learner: NodeHandle, task: str):
        """Args: learner: the node. task: name of the task."""
        self._learner = Peer(learner)
        self._task = task

    def join(self, actor: int, after: int) -> tuple[int, int] | None:
        """See `CollectionRounds.join`."""
        return self._learner.join_round(self._task, actor, after)

    def offer(self, actor: int, life: int, number: int, unrolls: int) -> bool:
        """See `CollectionRounds.offer`."""
        return self._learner.offer_unrolls(self._task, actor, life, number, unrolls)

    def deliver(self, actor: int, life: int, number: int, unrolls: int) -> None:
        """See `CollectionRounds.deliver`."""
        self._learner.deliver_unrolls(self._task, actor, life, number, unrolls)

    def leave(self, actor: int) -> None:
        """See `CollectionRounds.leave`."""
        self._learner.leave_rounds(self._task, actor)


class Reporter:
    """Sends a node's reports to the monitor, in order, without waiting for it.

    Attributes:
      answer: what the monitor answered last, see `MonitorNode.report`.
    """

    def __init__(self, monitor: NodeHandle, task: str, node: str):
        """Args:
        monitor: the monitor's node.
        task: the task that the reports are about.
        node: name of the sender.
        """
        self._monitor = monitor
        self._task = task
        self._node = node
        # The number of the last call, above those of earlier lives.
        self._number = first_number(current_heartbeat().life) - 1
        self.answer: tuple[int, dict[str, int]] = 0, {}
        self._unsent: list[Report] = []
        self._sending: concurrent.futures.Future[Any] | None = None
        self._sent: list[Report] = []  # the reports that `_sending` is about
        self._sent_at = 0.0  # for the first time

    def __call__(self, report: Report) -> None:
        """Sends `report`, or keeps it until the previous one has arrived.

        Raises:
          PeerError: the monitor failed, or has not answered for long.
          SpecError: the monitor would refuse the report, see `Monitor.report`.
        """
        kind_of(self._node, report)  # here, where the traceback shows who made it
        checked_metrics(self._node, report)
        self._unsent.append(report)
        if self._sending is not None:
            if not self._sending.done():
                if len(self._unsent) > _MAX_UNSENT:
                    raise PeerError(
                        f"{self._monitor.name} has left {_MAX_UNSENT} reports unanswered"
                    )
                return
            self._finish(0)
        if self._sending is None:
            self._send()

    def flush(self, timeout: float = 2.0) -> None:
        """Sends what is left, within `timeout` seconds for each of the two calls at most.

        Call it before a long time without reports: the newest may not have been sent.

        Raises:
          PeerError: the monitor failed, or has not answered.
        """
        while self._sending is not None:
            self._finish(timeout)
        if self._unsent:
            self._send()
        while self._sending is not None:
            self._finish(timeout)

    def close(self, timeout: float = 2.0) -> None:
        """As `flush`, at the end of the node's life; says what is lost if the monitor is late."""
        try:
            self.flush(timeout)
        except PeerError as error:
            print_line(f"distrl: the last reports are lost: {error}")

    def abandon(self, timeout: float = 0.5) -> None:
        """Ends the call in progress, for which Courier's client would wait when it is deleted.

        Args:
          timeout: seconds to wait for the answer: Courier aborts the process if one comes in the
            moment in which its call is cancelled, so that only a silent monitor's call may be.
        """
        if self._sending is not None:
            concurrent.futures.wait([self._sending], timeout)
            self._sending.cancel()

    def _send(self) -> None:
        self._sent, self._unsent = self._unsent, []
        self._number += 1
        self._sent_at = time.monotonic()
        self._call()

    def _call(self) -> None:
        futures = self._monitor.client.futures
        self._sending = futures.report(self._task, self._node, self._number, self._sent)

    def _finish(self, timeout: float) -> None:
        """Waits for the answer; sends the reports again if the deadline passed early."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            self.answer = sending.result(longest_wait(timeout))
        except Exception as error:
            if passed_early(error, self._sent_at, self._monitor.timeout):
                if timeout:  # else it is called again for the next report
                    time.sleep(PAUSE_S)
                self._call()  # with the same number: the monitor drops what it has already
                return
            raise PeerError(f"{self._monitor.name}.report() failed: {error!r}") from error


def stop_and_tick(stop: threading.Event) -> Callable[[], bool]:
    """Returns a loop's stop condition, which also notes the node's progress at each call."""
    heartbeat = current_heartbeat()

    def should_stop() -> bool:
        heartbeat.tick()
        return stop.is_set()

    return should_stop
