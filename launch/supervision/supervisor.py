"""Runs a program's nodes: starts them, watches and restarts them, and stops them in order.

Processes and threads are kinds of `SupervisedNode`; the supervisor does not distinguish them.
"""

import collections
import functools
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from distrl.launch.supervision.housekeeping import Housekeeping
from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.outcome import ALL_RETURNED, Judge, ProgramOutcome
from distrl.launch.supervision.restart_policy import HangLimits
from distrl.launch.supervision.restart_queue import RestartQueue
from distrl.launch.supervision.result import LAUNCHER, NOT_STARTED, Failure, NodeExit
from distrl.launch.supervision.signals import Signals, run_once
from distrl.launch.supervision.stop_sequence import STACKS_S, STOP_S, StopSequence
from distrl.launch.supervision.watchdog import Watchdog

LINGER_S = 2.0  # for a node to end after it has sent the exception that ends it
TICK_S = 1.0  # between two checks for hung nodes


class Supervisor:
    """The launcher's loop, from the first start of a node to the last end.

    A step of the loop that the operating system refuses is tried again. If that lasts, or a step
    fails in another way, the program ends with that failure: its nodes stop in order, and save.

    Args:
      signals: entered; the signals to the launcher.
      journal: where it reports.
      limits: how long nodes may hang.
      next_life: returns the number of a node's next life; rising.
      on_tick: called about once a second with all nodes.
      stop_grace: by group, seconds for its nodes to end; see `StopSequence`.
      clock: the monotonic clock, for tests.
      wait: replaces the loop's wait for messages and signals in tests; takes the seconds.

    Attributes:
      selector: for what wakes the loop; the `data` of a key is called.
      messages: those of nodes, appended by `SupervisedNode`s and taken in the loop.
      outcome: why the program ends; None while it runs.
    """

    def __init__(
        self,
        signals: Signals,
        journal: Journal,
        limits: HangLimits,
        next_life: Callable[[str], int],
        on_tick: Callable[[Sequence[SupervisedNode]], None] = lambda nodes: None,
        stop_grace: Mapping[str, float] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.selector.register(signals, selectors.EVENT_READ)
        self.messages: collections.deque[Message] = collections.deque()
        self.outcome: ProgramOutcome | None = None
        self._signals = signals
        self._journal = journal
        self._next_life = next_life
        self._on_tick = on_tick
        self._stop_grace = stop_grace or {}
        self._clock = clock
        self._wait = wait or (lambda seconds: run_once(self.selector, seconds))
        self._nodes: dict[str, SupervisedNode] = {}
        self._stop = StopSequence({}, [], {}, journal, clock)
        self._judge = Judge()
        self._watchdog = Watchdog(limits, journal)
        self._restarts = RestartQueue(journal, clock)
        self._housekeeping = Housekeeping(journal)
        self._explained: set[str] = set()  # nodes that have said why their life ends
        self._interrupts = 0
        self._next_tick = 0.0

    def run(
        self,
        nodes: Sequence[SupervisedNode],
        phases: Sequence[Sequence[str]],
        standby: Sequence[str] = (),
    ) -> None:
        """Runs the nodes; returns when all have ended, or those left cannot be ended.

        Args:
          nodes: all nodes, in the order in which they are started.
          phases: their names, in the order in which they are stopped.
          standby: names of nodes that are only started by `scale`.
        """
        self._nodes = {node.name: node for node in nodes}
        self._stop = StopSequence(self._nodes, phases, self._stop_grace, self._journal, self._clock)
        steps: dict[str, Callable[[], None]] = {
            "waiting for events": lambda: self._wait(self._timeout()),
            "reading signals": self._take_signals,
            **{f"collecting {n.name}": functools.partial(self._collect, n) for n in nodes},
            "reading messages": self._take_messages,
            "judging": self._judge_now,
            "starting nodes": self._start_due,
            "ending nodes": self._end_failed_and_hung,
            "looking for hung nodes": self._tick,
            "writing to the terminal": self._journal.flush,
        }
        for node in nodes:
            node.should_run = node.name not in standby
        for node in nodes:
            self._attempt("reading signals", self._take_signals)
            if self.outcome is not None:
                break
            if node.should_run:
                self._attempt(f"starting {node.name}", functools.partial(self._start, node))
        while self.outcome is None or self._stop.advance(self.outcome.in_haste):
            for what, step in steps.items():
                self._attempt(what, step)

    def scale(self, label: str, count: int) -> None:
        """Runs the first `count` nodes of a group, and stops its others."""
        if self.outcome is not None:
            return
        group = [node for node in self._nodes.values() if node.label == label]
        for node in group[:count]:
            node.should_run = True
            if not node.alive and node not in self._restarts:
                self._journal.say(f"{node.name}: starting, scaled up")
                self._restarts.plan(node)
        for node in group[count:]:
            node.should_run = False
            self._restarts.cancel(node)
            if node.alive and node.stop_deadline is None:
                self._journal.say(f"{node.name}: stopping, scaled down")
                node.stop_deadline = self._clock() + STOP_S
                node.exit.asked = True
                node.ask_to_stop()

    def fail(self, cause: str) -> None:
        """Ends the program in order, for a reason that is no node's fault."""
        self._decide(ProgramOutcome.failed(Failure(LAUNCHER, cause, of_launcher=True), cause))

    def hung(self) -> tuple[str, ...]:
        """Returns the names of the nodes that still run."""
        return tuple(node.name for node in self._nodes.values() if node.alive)

    def close(self) -> None:
        self.selector.close()

    def _attempt(self, what: str, step: Callable[[], object]) -> None:
        """Does a step of the loop, or ends the program; see the class."""
        failure = self._housekeeping.attempt_step(what, step)
        if failure is not None and self.outcome is None:
            self._decide(ProgramOutcome.failed(failure, f"{LAUNCHER}: {failure.cause}"))
        elif failure is not None:
            self._journal.note(f"later: {failure.cause}\n{failure.traceback or ''}")

    def _collect(self, node: SupervisedNode) -> None:
        if node.alive and node.collect():
            self._on_end(node)

    def _start_due(self) -> None:
        if self.outcome is None:
            for node in self._restarts.take_due():
                self._attempt(f"starting {node.name}", functools.partial(self._start, node))

    def _start(self, node: SupervisedNode) -> None:
        node.stop_deadline = None
        node.failure = None
        try:
            self._watchdog.begin(node)
            node.begin(self._next_life(node.name))
        except OSError as error:  # one more life that has failed
            node.exit = NodeExit(NOT_STARTED, error=str(error), causes=node.history.causes)
            self._on_end(node)

    def _timeout(self) -> float:
        now = self._clock()
        due = min(now + TICK_S, self._stop.due())
        if self.outcome is None:
            due = min(due, self._judge.due, self._restarts.due())
        if self._journal.waiting():
            due = min(due, now + 0.05)
        return max(0.0, due - now)

    # Events, and the outcome.

    def _take_signals(self) -> None:
        for number in self._signals.pending():
            if number == signal.SIGINT:
                self._on_interrupt()
            elif number in (signal.SIGTERM, signal.SIGHUP):
                self._judge_now(immediately=True)
                reason = f"{signal.Signals(number).name} to the launcher"
                self._decide(ProgramOutcome("stopped", reason, 128 + number))

    def _on_interrupt(self) -> None:
        self._interrupts += 1
        self._judge_now(immediately=True)
        if self._interrupts > 1:
            self._journal.say("Ctrl-C again: killing all nodes")
            self._stop.kill_all()
        elif self.outcome is None:
            self._journal.say("stopping; press Ctrl-C again to kill immediately")
            self._decide(ProgramOutcome("stopped", "Ctrl-C", 128 + signal.SIGINT))
        else:
            self._journal.say("already stopping; press Ctrl-C again to kill immediately")

    def _take_messages(self) -> None:
        while self.messages:
            self._on_message(self.messages.popleft())

    def _on_message(self, message: Message) -> None:
        node = self._nodes[message.node]
        if node.stop_deadline is not None and message.kind != "stop":
            self._journal.note(f"{message.node}: {message.kind} {message.reason}".rstrip())
            return
        if message.kind == "running":
            seconds = message.time - node.started
            self._journal.note(f"{message.node} is running, {seconds:.3f} s after its start")
            return
        if message.kind == "failure":
            node.exit.error = message.reason
            self._journal.note(f"{message.node} failed: {message.traceback or message.reason}")
        if node.restartable and self.outcome is None:  # `_on_end` restarts it
            if message.kind == "failure" and not message.final:
                node.failure = node.failure or message
                return
            if message.kind == "ended":
                return
        if message.kind == "ended" and node.may_return:
            return
        if message.kind != "stop":
            self._explained.add(message.node)
        if self.outcome is None:
            self._judge.add_message(message, self._clock())
        elif message.kind == "failure":
            self._journal.note(f"later: {message.node} failed: {message.reason}")

    def _judge_now(self, immediately: bool = False) -> None:
        outcome = self._judge.outcome(self._clock(), immediately) if self.outcome is None else None
        if outcome is not None:
            self._decide(outcome)
            for message in self._judge.other_failures():
                self._journal.note(f"later: {message.node} failed: {message.reason}")
        elif self._judge.due == float("inf") and all(  # nobody has asked for the end, or failed
            node.has_returned for node in self._nodes.values() if node.should_run
        ):
            self._decide(ALL_RETURNED)

    def _decide(self, outcome: ProgramOutcome) -> None:
        """Ends the program, unless it is ending already."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        if outcome.failure is not None and not outcome.failure.final:
            self._journal.say(f"{outcome.failure.node} failed: stopping the other nodes")
        self._journal.note(f"{outcome.status}: {outcome.reason}")

    # Ends and restarts of nodes.

    def _on_end(self, node: SupervisedNode) -> None:
        self._take_messages()  # the node may have said why before it ended
        error = node.exit.error or node.exit.signal
        error = error or (f"status {node.exit.code}" if node.exit.code else "")
        self._journal.note(f"{node.name} {node.exit.state} {error}".rstrip())
        if node.log.broken is not None:
            self._journal.note(f"{node.log.path} is incomplete: {node.log.broken}")
        node.heartbeat.end(self._will_restart(node), node.unavailable_reason is not None)

    def _will_restart(self, node: SupervisedNode) -> bool:
        """Plans the restart of a node that has ended, or reports its end to the judge."""
        was_asked, node.stop_deadline = node.stop_deadline is not None, None
        lost = node.unavailable_reason
        if self.outcome is not None:
            return False
        if was_asked:
            if node.should_run:  # scaled up again since
                self._restarts.plan(node)
            return node.should_run
        if lost is None or not node.essential:
            if lost is not None and node.restartable:
                self._journal.note(f"continuing without {node.name}: {lost}")
                self._restarts.plan(node)
                return True
            if node.name in self._explained or node.has_returned:
                return False
        cause = node.hung_cause or lost or self._judge.describe(node.exit)
        if node.restartable and not (lost and node.essential):
            outcome = self._restarts.plan_restart(node, cause, self._nodes.values())
            if outcome is not None:
                self._decide(outcome)
            return outcome is None
        self._judge.add_silent_death(node.name, cause, node.exit.state, cause == lost)
        return False

    def _end_failed_and_hung(self) -> None:
        """Kills nodes that are hung, or do not end after they failed or were asked to."""
        now = self._clock()
        for node in self._nodes.values():
            failure = node.failure
            if not node.alive or self.outcome is not None:
                continue
            if node.stop_deadline is not None:
                if now > node.stop_deadline:
                    node.kill()
            elif failure is not None and now > failure.time + LINGER_S:
                self._end(node, Failure(node.name, failure.reason, failure.traceback))
            elif node.hung_cause is not None and now > node.hung_since + STACKS_S:
                self._end(node, Failure(node.name, node.hung_cause))

    def _end(self, node: SupervisedNode, failure: Failure) -> None:
        """Kills the node; ends the program if the node cannot be killed."""
        if node.can_be_killed:
            node.kill()
        else:
            self._decide(ProgramOutcome.failed(failure))

    def _tick(self) -> None:
        """Once a second, looks for hung nodes and calls `on_tick`."""
        now = self._clock()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        if self.outcome is None:
            check = functools.partial(self._watchdog.check, self._nodes.values(), now)
            self._housekeeping.attempt("looking for hung nodes", check)
        self._on_tick(list(self._nodes.values()))
