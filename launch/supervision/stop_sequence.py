"""Stops a program's nodes in order: phase by phase, with a grace period and then by force."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence

from distrl.launch.supervision.housekeeping import MAX_FAILURES
from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import SupervisedNode
from distrl.programs.groups import group_of
from distrl.runtime.working_folder import shown

STOP_S = 3.0  # for the nodes of a phase to end after they were asked to
STOP_AFTER_FAILURE_S = 1.0  # the same when a node has failed, for nodes with nothing to save
STACKS_S = 0.3  # before the end of its grace period, a node's stacks are written to its log
RETRY_S = 0.1  # between two attempts to ask or kill a node that the system has refused
SAVE_S = 30.0  # `STOP_S` of groups that save when they are stopped


def saves(node: SupervisedNode) -> bool:
    """Returns whether a node saves when it is stopped. One that may return is not the learner."""
    return group_of(node.label).saves and not node.may_return


class StopSequence:
    """The stop of all nodes, advanced by the supervisor's loop.

    Args:
      nodes: the nodes by name.
      phases: names of the nodes, in the order in which they are stopped.
      grace: by group, seconds for its nodes to end after they were asked to; `SAVE_S` or `STOP_S`
        for groups that are not in it.
      journal: for progress.
      clock: the monotonic clock.
    """

    def __init__(
        self,
        nodes: Mapping[str, SupervisedNode],
        phases: Sequence[Sequence[str]],
        grace: Mapping[str, float],
        journal: Journal,
        clock: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._phases = phases
        self._grace = grace
        self._journal = journal
        self._clock = clock
        self._begun = False
        self._phase = 0
        self._deadline: float | None = None  # the phase's; after the last one, the killed nodes'
        self._grace_s = 0.0  # the phase's
        self._stacks_shown = False
        self._failures = 0
        self._to_wake: list[SupervisedNode] = []
        self._to_ask: list[SupervisedNode] = []
        self._to_kill: list[SupervisedNode] = []

    def due(self) -> float:
        """Returns when `advance` has something to do if no node ends; infinite if never."""
        if self._to_wake or self._to_ask or self._to_kill:
            return self._clock() + RETRY_S
        if self._deadline is None:
            return float("inf")
        return self._deadline - (0.0 if self._stacks_shown else STACKS_S)

    def advance(self, failed: bool) -> bool:
        """Does what can be done now, without waiting.

        Args:
          failed: a node has failed, and others may wait for it: grace periods are short, and no
            stacks shown, except where a node saves.

        Returns:
          True while nodes are left to wait for.
        """
        try:
            return self._advance(failed)
        except Exception:  # the nodes must have their time to save
            self._failures += 1
            self._journal.note(f"stopping failed:\n{traceback.format_exc()}")
            return self._failures < MAX_FAILURES

    def _advance(self, failed: bool) -> bool:
        self._to_kill = self._kill(self._to_kill)
        if not self._begun:  # those of later phases are woken, too: others may call them
            self._begun, self._to_wake = True, list(self._nodes.values())
        self._to_wake = self._refused("waking", lambda node: node.wake(), self._to_wake)
        while self._phase < len(self._phases):
            names = self._phases[self._phase]
            alive = [self._nodes[name] for name in names if self._nodes[name].alive]
            now = self._clock()
            if self._deadline is None:
                haste = failed and not any(map(_can_save, alive))
                self._grace_s = self._grace_of(names, haste)
                self._deadline = now + self._grace_s
                self._stacks_shown = haste
                for node in alive:
                    self._journal.note(f"asking {node.name} to stop")
                    node.exit.asked = True
                self._to_ask = alive
            self._to_ask = self._refused("asking", lambda node: node.ask_to_stop(), self._to_ask)
            if alive and now < self._deadline:
                if not self._stacks_shown and now >= self._deadline - STACKS_S:
                    self._stacks_shown = True
                    for node in alive:
                        node.show_stacks()
                return True
            for node in alive:
                self._report_late(node, failed)
            self._to_ask, self._to_kill = [], self._to_kill + self._kill(alive)
            self._phase += 1
            self._deadline = None
        timeouts = [node.kill_timeout for node in self._nodes.values() if node.alive]
        if not timeouts:
            return False
        now = self._clock()
        if self._deadline is None:
            self._deadline, self._stacks_shown = now + max(timeouts), True
        return now < self._deadline

    def kill_all(self) -> None:
        """Kills all nodes, without further phases."""
        self._to_ask, self._to_kill = [], self._kill(self._nodes.values())
        self._phase = len(self._phases)
        self._deadline = None

    def _kill(self, nodes: Iterable[SupervisedNode]) -> list[SupervisedNode]:
        return self._refused("killing", lambda node: node.kill(), nodes)

    def _refused(
        self,
        what: str,
        action: Callable[[SupervisedNode], None],
        nodes: Iterable[SupervisedNode],
    ) -> list[SupervisedNode]:
        """Does something to all nodes that run; returns those where the system has refused it."""
        refused = []
        for node in nodes:
            try:
                if node.alive:
                    action(node)
            except OSError as error:
                self._journal.note(f"{what} {node.name}: {error}; trying again")
                refused.append(node)
        return refused

    def _grace_of(self, names: Sequence[str], haste: bool) -> float:
        labels = {self._nodes[name].label for name in names}
        if haste:  # a group still needs what it has beyond `STOP_S`, such as to free memory
            waits = [
                self._grace.get(label, STOP_S) for label in labels if not group_of(label).saves
            ]
            return STOP_AFTER_FAILURE_S + max([STOP_S, *waits]) - STOP_S
        usual = {label: SAVE_S if group_of(label).saves else STOP_S for label in labels}
        return max(self._grace.get(label, usual[label]) for label in labels)

    def _report_late(self, node: SupervisedNode, failed: bool) -> None:
        line = f"{node.name} did not stop within {self._grace_s:g} s"
        if failed and not _can_save(node):
            self._journal.note(line)  # it may be waiting for the node that failed
        else:
            self._journal.say(f"{line}; see its stacks in {shown(node.log.path)}")


def _can_save(node: SupervisedNode) -> bool:
    """Returns whether a node has something to save: it has not failed itself, and is not hung."""
    return saves(node) and node.exit.error is None and node.hung_cause is None
