"""Planned starts of nodes."""

from distrl.launch.supervision.node import SupervisedNode


class RestartQueue:
    """Nodes that are to be started, each at a time.

    A node whose host is lost waits until the host is back.
    """

    def __init__(self) -> None:
        self._planned: list[tuple[float, SupervisedNode]] = []

    def __contains__(self, node: SupervisedNode) -> bool:
        return any(planned is node for _, planned in self._planned)

    def plan(self, node: SupervisedNode, when: float) -> None:
        """Adds a start at a time, in seconds of the monotonic clock."""
        self._planned.append((when, node))

    def cancel(self, node: SupervisedNode) -> None:
        """Removes the node, if it is planned."""
        self._planned = [(when, planned) for when, planned in self._planned if planned is not node]

    def due(self) -> float:
        """Returns the time of the next start; infinite if there is none."""
        return min(
            (when for when, node in self._planned if node.unavailable_reason is None),
            default=float("inf"),
        )

    def take_due(self, now: float) -> list[SupervisedNode]:
        """Removes and returns the nodes to start now."""
        due = [
            node for when, node in self._planned if when <= now and node.unavailable_reason is None
        ]
        for node in due:
            self.cancel(node)
        return due
