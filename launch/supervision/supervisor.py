"""Watches the nodes of a running program, heals it, finds what failed first, stops it in order.

It knows nothing of processes or threads: those are kinds of `SupervisedNode`.
"""

import collections
import selectors
import signal
import time
from collections.abc import Callable, Sequence

from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.restart_policy import Limits
from distrl.launch.supervision.result import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    Failure,
    NodeExit,
)
from distrl.launch.supervision.signals import Signals, run_once
from distrl.launch.supervision.watchdog import Watch, oom_kills

STOP_S = 3.0  # for a phase to end after it was asked to
STOP_LEARNER_S = 30.0  # unless the program says otherwise: it may have much to save
STOP_AFTER_FAILURE_S = 1.0
STACKS_S = 0.3  # before its time is over, a node's stacks are written to its log
LINGER_S = 2.0  # for a node to end after it has told of the exception that ends it
LOOK_S = 1.0  # between two looks of the watchdog
JUDGE_S = 0.2  # an exception may be the echo of a sudden death elsewhere, which is seen later
ENDED = "ended without being told to"


class Supervisor:
    """Runs the loop from the first start to the last end.

    Args:
      signals: entered.
      journal: where it says what it does.
      limits: how long nodes may hang.
      next_life: of a node's name, the number of the life that begins; rises.
      look: called about once a second, with all workers.
      learner_grace: seconds for the learner to end after it was asked to.
    """

    def __init__(
        self,
        signals: Signals,
        journal: Journal,
        limits: Limits,
        next_life: Callable[[str], int],
        look: Callable[[Sequence[SupervisedNode]], None] = lambda workers: None,
        learner_grace: float = STOP_LEARNER_S,
    ) -> None:
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.selector.register(signals, selectors.EVENT_READ)
        self.messages: collections.deque[Message] = collections.deque()  # filled by the workers
        self.status: str | None = None
        self.reason = ""
        self.exit_code = EXIT_FAILED
        self.failure: Failure | None = None
        self._signals = signals
        self._learner_grace = learner_grace
        self._journal = journal
        self._limits = limits
        self._next_life = next_life
        self._look = look
        self._watches: dict[str, Watch] = {}
        self._oom_kills = oom_kills()
        self._look_at = 0.0
        self._restarts: list[tuple[float, SupervisedNode]] = []  # when, whom
        self._workers: dict[str, SupervisedNode] = {}
        self._phases: list[list[str]] = []
        self._phase = 0
        self._deadline: float | None = None
        self._stacks_shown = False
        self._told: list[Message] = []  # not yet judged
        self._spoke: set[str] = set()  # nodes that have said why they end
        self._silent: list[SupervisedNode] = []  # ended without a word, not yet judged
        self._judge_at = float("inf")
        self._interrupts = 0

    def run(
        self,
        workers: Sequence[SupervisedNode],
        phases: list[list[str]],
        standby: Sequence[str] = (),
    ) -> None:
        """Starts the workers, returns when none is left (or none that can be ended).

        Those in `standby` are only started when `want` says so.
        """
        self._workers = {worker.name: worker for worker in workers}
        self._phases = phases
        for worker in workers:
            self._take_signals()
            if self.status is not None:
                break
            if worker.name not in standby:
                self._start(worker)
        while self._advance():
            run_once(self.selector, self._timeout())
            self._take_signals()
            for worker in self._workers.values():
                if worker.alive and worker.collect():
                    self._note_end(worker)
            self._take_messages()
            self._judge()
            self._heal()
            self._watch()
            self._journal.flush()

    def want(self, label: str, count: int) -> None:
        """Has the first `count` nodes of a group run, and no others of it."""
        if self.status is not None:
            return
        of_group = [worker for worker in self._workers.values() if worker.label == label]
        waiting = {worker.name for _, worker in self._restarts}
        for worker in of_group[:count]:
            worker.wanted = True
            if not worker.alive and worker.name not in waiting:
                self._journal.say(f"{worker.name} joins")
                self._restarts.append((time.monotonic(), worker))
        for worker in of_group[count:]:
            worker.wanted = False
            self._restarts = [(due, each) for due, each in self._restarts if each is not worker]
            if worker.alive and worker.leaves_by is None:
                self._journal.say(f"{worker.name} leaves")
                worker.leaves_by = time.monotonic() + STOP_S
                worker.exit.asked = True
                worker.ask_to_stop()

    def _start(self, worker: SupervisedNode) -> None:
        worker.leaves_by = None
        worker.heartbeat.begin(self._next_life(worker.name))
        worker.failure = worker.hangs = None
        self._watches[worker.name] = Watch(worker.heartbeat, self._limits)
        self._spoke.discard(worker.name)
        worker.start()

    def close(self) -> None:
        self.selector.close()

    def hung(self) -> tuple[str, ...]:
        return tuple(worker.name for worker in self._workers.values() if worker.alive)

    def _timeout(self) -> float:
        now = time.monotonic()
        starts = [when for when, worker in self._restarts if worker.away is None]
        due = min(self._judge_at, now + 1.0, *starts)
        if self._deadline is not None:
            due = min(due, self._deadline - (0.0 if self._stacks_shown else STACKS_S))
        if self._journal.waiting():
            due = min(due, now + 0.05)
        return max(0.0, due - now)

    # What happens, and what it means.

    def _take_signals(self) -> None:
        for number in self._signals.pending():
            if number == signal.SIGINT:
                self._interrupt()
            elif number in (signal.SIGTERM, signal.SIGHUP):
                self._judge(now=True)
                name = signal.Signals(number).name
                self._decide("stopped", f"{name} to the launcher", 128 + number)

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._judge(now=True)
        if self._interrupts > 1:
            self._journal.say("Ctrl-C again: ending all nodes at once")
            for worker in self._workers.values():
                if worker.alive:
                    worker.kill()
            self._phase = len(self._phases)
            self._deadline = None
        elif self.status is None:
            self._journal.say("Ctrl-C: stopping the nodes in order; Ctrl-C again ends them at once")
            self._decide("stopped", "Ctrl-C", 128 + signal.SIGINT)
        else:
            self._journal.say("stopping already; Ctrl-C again ends all nodes at once")

    def _note_end(self, worker: SupervisedNode) -> None:
        self._take_messages()  # it may have said why before it ended
        how = worker.exit
        error = how.error or how.signal or (f"status {how.code}" if how.code else "")
        self._journal.note(f"{worker.name} {how.state} {error}".rstrip())
        if worker.log.broken is not None:
            self._journal.note(f"{worker.log.path} is not complete: {worker.log.broken}")
        comes_back = False
        if worker.leaves_by is not None:
            worker.leaves_by = None
            if worker.wanted and self.status is None:  # again, since it was asked to leave
                self._restarts.append((time.monotonic(), worker))
                comes_back = True
        elif self.status is None and worker.away is not None and worker.essential:
            self._silent.append(worker)
        elif self.status is None and worker.away is not None and worker.restartable:
            self._journal.note(f"{worker.name} is done without: {worker.away}")
            self._restarts.append((time.monotonic(), worker))
            comes_back = True
        elif self.status is None and worker.restartable and worker.name not in self._spoke:
            comes_back = self._plan_restart(worker)
        elif self.status is None and worker.name not in self._spoke:
            self._silent.append(worker)
        worker.heartbeat.end(comes_back)

    # Healing.

    def _plan_restart(self, worker: SupervisedNode) -> bool:
        """Of a node that has ended, and heals: True where it will be started again."""
        failure, how = worker.failure, worker.exit
        cause = failure.reason if failure is not None else worker.hangs or self._cause(how)
        traceback = failure.traceback if failure is not None else None
        separator = ":" if failure is not None else ""
        tells = how.signal != "SIGKILL" or worker.hangs is not None
        delay = worker.history.another(cause, traceback, how.seconds, tells)
        if isinstance(delay, str):
            reason = f"{worker.name}{separator} {cause} ({delay})"
            self._decide("failed", reason, EXIT_FAILED, Failure(worker.name, cause, traceback))
            return False
        self._journal.say(
            f"{worker.name}{separator} {cause}: it is started again"
            + (f" in {delay:.1f} s" if delay >= 1 else "")
            + f" (restart {len(how.causes)}); see {worker.log.path}"
        )
        self._restarts.append((time.monotonic() + delay, worker))
        return True

    def _heal(self) -> None:
        """Starts again what is due, and ends what has failed and will not go."""
        now = time.monotonic()
        if self.status is not None:
            self._restarts = []
        for due, worker in list(self._restarts):
            if due <= now and worker.away is None:
                self._restarts.remove((due, worker))
                self._start(worker)
        for worker in self._workers.values():
            failure = worker.failure
            if not worker.alive or self.status is not None:
                continue
            if worker.leaves_by is not None:
                if now > worker.leaves_by:
                    worker.kill()
                continue
            if failure is not None and now > failure.time + LINGER_S:
                self._end_by_force(worker, failure.reason, failure.traceback)
            elif worker.hangs is not None and now > worker.hangs_since + STACKS_S:
                self._end_by_force(worker, worker.hangs, None)

    def _end_by_force(self, worker: SupervisedNode, cause: str, traceback: str | None) -> None:
        """Of a node that will not end by itself; where it cannot be killed, the program ends."""
        if worker.can_be_killed:
            worker.kill()
        else:
            self._decide(
                "failed",
                f"{worker.name} {cause}",
                EXIT_FAILED,
                Failure(worker.name, cause, traceback),
            )

    def _watch(self) -> None:
        """Once in a while, looks for nodes that hang."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self.status is None:
            for worker in self._workers.values():
                usage = worker.usage() if worker.alive and worker.hangs is None else None
                cause = None if usage is None else self._watches[worker.name].look(usage, now)
                if cause is not None:
                    worker.hangs, worker.hangs_since = cause, now
                    self._journal.say(f"{worker.name} {cause}; its stacks are in {worker.log.path}")
                    worker.show_stacks(also_if_stopped=True)
        self._look(list(self._workers.values()))

    # What failed first.

    def _take_messages(self) -> None:
        while self.messages:
            message = self.messages.popleft()
            worker = self._workers[message.node]
            if worker.leaves_by is not None and message.kind != "stop":
                self._journal.note(f"{message.node}: {message.kind} {message.reason}".rstrip())
                continue
            if message.kind == "running":
                seconds = message.time - worker.started
                self._journal.note(f"{message.node} runs, {seconds:.3f} s after its start")
                continue
            if message.kind == "failure":
                worker.exit.error = message.reason
                if worker.restartable and not message.bad_input and self.status is None:
                    worker.failure = worker.failure or message
                    continue
            if message.kind == "ended" and worker.restartable and self.status is None:
                continue
            if message.kind != "stop":
                self._spoke.add(message.node)
            if self.status is None:
                self._told.append(message)
                self._judge_at = min(self._judge_at, time.monotonic() + JUDGE_S)
            elif message.kind == "failure":
                self._journal.note(f"later: {message.node} failed: {message.reason}")

    def _judge(self, now: bool = False) -> None:
        """Decides what came first, as soon as that can be told."""
        if self.status is not None or not (self._told or self._silent):
            return
        self._told.sort(key=lambda message: message.time)
        first = self._told[0] if self._told else None
        if first is not None and first.kind == "stop":
            if first.finished:
                self._decide("finished", first.reason, EXIT_FINISHED)
            else:
                self._decide("failed", first.reason, EXIT_FAILED, Failure(first.node, first.reason))
        elif self._silent:
            worker = self._silent[0]
            cause = worker.hangs or worker.away or self._cause(worker.exit)
            self._decide(
                "failed", f"{worker.name} {cause}", EXIT_FAILED, Failure(worker.name, cause)
            )
        elif first is not None and (now or time.monotonic() >= self._judge_at):
            cause = first.reason if first.kind == "failure" else ENDED
            failure = Failure(first.node, cause, first.traceback, first.bad_input)
            separator = ":" if first.kind == "failure" else ""
            code = EXIT_BAD_INPUT if first.bad_input else EXIT_FAILED
            self._decide("failed", f"{first.node}{separator} {cause}", code, failure)
        if self.status is not None:
            self._judge_at = float("inf")
            for message in self._told:
                if message.kind == "failure" and message is not first:
                    self._journal.note(f"later: {message.node} failed: {message.reason}")

    def _decide(
        self, status: str, reason: str, exit_code: int, failure: Failure | None = None
    ) -> None:
        """Sets why the program ends; what comes first holds."""
        if self.status is not None:
            return
        self.status, self.reason, self.exit_code = status, reason, exit_code
        self.failure = failure
        if failure is not None and not failure.bad_input:
            self._journal.say(f"{failure.node} failed: stopping the other nodes")
        self._journal.note(f"{status}: {reason}")

    # Stopping.

    def _budget(self, phase: list[str]) -> float:
        if self.status == "failed":
            return STOP_AFTER_FAILURE_S
        labels = {self._workers[name].label for name in phase}
        return self._learner_grace if "learner" in labels else STOP_S

    def _note_late(self, worker: SupervisedNode, budget: float) -> None:
        line = f"{worker.name} did not stop within {budget:g} s of being asked"
        if self.status == "failed":
            self._journal.note(line)  # it may be waiting for the one that failed
        else:
            self._journal.say(f"{line}; its stacks are in {worker.log.path}")

    def _advance(self) -> bool:
        """Goes on with stopping as far as it can go now; False when all is over."""
        if self.status is None:
            return True
        while self._phase < len(self._phases):
            names = self._phases[self._phase]
            alive = [self._workers[name] for name in names if self._workers[name].alive]
            now = time.monotonic()
            if self._deadline is None:
                self._deadline = now + self._budget(names)
                self._stacks_shown = self.status == "failed"
                for worker in alive:
                    self._journal.note(f"asks {worker.name} to stop")
                    worker.exit.asked = True
                    worker.ask_to_stop()
            if alive and now < self._deadline:
                if not self._stacks_shown and now >= self._deadline - STACKS_S:
                    self._stacks_shown = True
                    for worker in alive:
                        worker.show_stacks()
                return True
            for worker in alive:
                self._note_late(worker, self._budget(names))
                worker.kill()
            self._phase += 1
            self._deadline = None
        left = [self._workers[name].last_wait for name in self.hung()]
        if left and self._deadline is None:
            self._deadline, self._stacks_shown = time.monotonic() + max(left), True
        return bool(left) and time.monotonic() < (self._deadline or 0.0)

    def _cause(self, how: NodeExit) -> str:
        """In words, how a process ended that did not say why."""
        if how.signal == "SIGKILL":
            if oom_kills() > self._oom_kills:
                return "was killed by the kernel (SIGKILL): out of memory"
            return "was killed by SIGKILL"
        if how.signal:
            return f"was killed by {how.signal}"
        return f"exited with status {how.code}" if how.code else ENDED
