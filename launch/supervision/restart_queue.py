"""The nodes that are to be started or restarted, each at its time."""

from collections.abc import Callable, Iterable

from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import SupervisedNode
from distrl.launch.supervision.outcome import ProgramOutcome
from distrl.launch.supervision.result import NOT_STARTED, Failure
from distrl.runtime.heartbeat import DOWN, LOST
from distrl.runtime.working_folder import shown


class RestartQueue:
    """Nodes that are to be started or restarted, each at its time.

    A node whose host is lost waits until the host is back.

    Args:
      journal: where restarts are shown.
      clock: the monotonic clock.
    """

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._clock = clock
        self._planned: list[tuple[float, SupervisedNode]] = []
        self._worked: set[str] = set()  # names of nodes that have had a stable life

    def __contains__(self, node: SupervisedNode) -> bool:
        return any(planned is node for _, planned in self._planned)

    def plan(self, node: SupervisedNode, delay: float = 0.0) -> None:
        """Adds a start in `delay` seconds."""
        self._planned.append((self._clock() + delay, node))
        if node.exit.seconds >= node.history.policy.stable_after:
            self._worked.add(node.name)

    def plan_restart(
        self, node: SupervisedNode, cause: str, nodes: Iterable[SupervisedNode]
    ) -> ProgramOutcome | None:
        """Adds the restart of a node after a failed life.

        Args:
          node: the node.
          cause: why that life ended, if the node itself has not said so.
          nodes: all nodes.

        Returns:
          None; or the program's outcome where the node's restart policy allows no other life, and
          its host is not what fails.
        """
        separator, traceback = "", None
        if node.failure is not None:
            cause, separator, traceback = node.failure.reason, ":", node.failure.traceback
        of_launcher = node.exit.state == NOT_STARTED
        other_cause = of_launcher or node.exit.signal == "SIGKILL"
        at_fault = node.hung_cause is not None or not other_cause
        delay = node.history.next_delay(cause, traceback, node.exit.seconds, at_fault)
        alone = ""
        if isinstance(delay, str) and self._host_is_at_fault(node, nodes):
            alone = f", {delay}, on host {node.host} alone"
            delay = node.history.patient_delay()
        if isinstance(delay, str):
            failure = Failure(node.name, cause, traceback, of_launcher=of_launcher)
            return ProgramOutcome.failed(failure, f"{node.name}{separator} {cause} ({delay})")
        pause = f" in {delay:.1f} s" if delay >= 1 else ""
        self._journal.say(
            f"{node.name}{separator} {cause}: restarting{pause} "
            f"(restart {len(node.exit.causes)}{alone}); see {shown(node.log.path)}"
        )
        self.plan(node, delay)
        return None

    def _host_is_at_fault(self, node: SupervisedNode, nodes: Iterable[SupervisedNode]) -> bool:
        """Returns whether a node that fails soon has worked, and others work on other hosts.

        One that fails after a time, or from the beginning, may do so on all of them.
        """
        stable = node.history.policy.stable_after
        if node.essential or node.name not in self._worked or node.exit.seconds >= stable:
            return False
        return any(
            each.alive
            and (each.label, each.failure, each.hung_cause) == (node.label, None, None)
            and each.host != node.host
            and self._clock() - each.started >= stable
            for each in nodes
        )

    def cancel(self, node: SupervisedNode) -> None:
        """Removes the node, if it is planned; nobody is to wait for its restart any more."""
        self._planned = [(when, planned) for when, planned in self._planned if planned is not node]
        if not node.alive and node.heartbeat.status in (DOWN, LOST):
            node.heartbeat.end(comes_back=False)

    def due(self) -> float:
        """Returns the time of the next start; infinite if there is none."""
        return min(
            (when for when, node in self._planned if node.unavailable_reason is None),
            default=float("inf"),
        )

    def take_due(self) -> list[SupervisedNode]:
        """Removes and returns the nodes to start now."""
        now = self._clock()
        due = [
            node for when, node in self._planned if when <= now and node.unavailable_reason is None
        ]
        self._planned = [(when, node) for when, node in self._planned if node not in due]
        return due
