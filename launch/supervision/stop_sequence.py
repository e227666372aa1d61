"""Stops a program's nodes in order: phase by phase, with a grace period and then by force."""

from collections.abc import Callable, Mapping, Sequence

from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import SupervisedNode
from distrl.programs.groups import group_of

STOP_S = 3.0  # for the nodes of a phase to end after they were asked to
STOP_AFTER_FAILURE_S = 1.0  # the same when the program has failed, for every phase
STACKS_S = 0.3  # before the end of its grace period, a node's stacks are written to its log
SAVE_S = 30.0  # the same for groups that save when they are stopped


class StopSequence:
    """The stop of all nodes, advanced by the supervisor's loop.

    Args:
      nodes: by name.
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
        self._deadline: float | None = None  # of the phase; after the last one, of the killed nodes
        self._stacks_shown = False

    def due(self) -> float:
        """Returns when `advance` has something to do if no node ends; infinite if never."""
        if self._deadline is None:
            return float("inf")
        return self._deadline - (0.0 if self._stacks_shown else STACKS_S)

    def advance(self, failed: bool) -> bool:
        """Does what can be done now, without waiting.

        Args:
          failed: the program stops after a failure: grace periods are short, and no stacks shown.

        Returns:
          True while nodes are left to wait for.
        """
        if not self._begun:
            self._begun = True
            for node in self._nodes.values():  # those of later phases too: others may call them
                if node.alive:
                    node.wake()
        while self._phase < len(self._phases):
            names = self._phases[self._phase]
            alive = [self._nodes[name] for name in names if self._nodes[name].alive]
            grace = self._grace_of(names, failed)
            now = self._clock()
            if self._deadline is None:
                self._deadline = now + grace
                self._stacks_shown = failed
                for node in alive:
                    self._journal.note(f"asking {node.name} to stop")
                    node.exit.asked = True
                    node.ask_to_stop()
            if alive and now < self._deadline:
                if not self._stacks_shown and now >= self._deadline - STACKS_S:
                    self._stacks_shown = True
                    for node in alive:
                        node.show_stacks()
                return True
            for node in alive:
                self._report_late(node, grace, failed)
                node.kill()
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
        for node in self._nodes.values():
            if node.alive:
                node.kill()
        self._phase = len(self._phases)
        self._deadline = None

    def _grace_of(self, names: Sequence[str], failed: bool) -> float:
        if failed:
            return STOP_AFTER_FAILURE_S
        labels = {self._nodes[name].label for name in names}
        usual = {label: SAVE_S if group_of(label).saves else STOP_S for label in labels}
        return max(self._grace.get(label, usual[label]) for label in labels)

    def _report_late(self, node: SupervisedNode, grace: float, failed: bool) -> None:
        line = f"{node.name} did not stop within {grace:g} s"
        if failed:
            self._journal.note(line)  # it may be waiting for the node that failed
        else:
            self._journal.say(f"{line}; see its stacks in {node.log.path}")
