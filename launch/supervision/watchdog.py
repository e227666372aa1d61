"""Finds hung nodes."""

from collections.abc import Iterable

from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import SupervisedNode
from distrl.launch.supervision.restart_policy import HangLimits
from distrl.launch.supervision.running_time import RunningTime
from distrl.launch.supervision.usage import Usage
from distrl.runtime.heartbeat import Heartbeat
from distrl.runtime.working_folder import shown

_IDLE_CORES = 0.05  # a working node that uses less CPU is idle
_SILENCE_S = 2.0  # seconds without a heartbeat, which a node sends every second
_WARN_AT = 0.5  # the share of a limit at which to warn


class Watchdog:
    """Marks the hung ones of a program's nodes.

    Args:
      limits: how long nodes may hang.
      journal: where it reports.
    """

    def __init__(self, limits: HangLimits, journal: Journal) -> None:
        self._limits = limits
        self._journal = journal
        self._detectors: dict[str, HangDetector] = {}
        self._warned: set[tuple[str, str]] = set()  # groups, and the limits that they came near

    def begin(self, node: SupervisedNode) -> None:
        """To be called before each attempt to start a node."""
        node.hung_cause = None
        self._detectors[node.name] = HangDetector(node.heartbeat, self._limits)

    def check(self, nodes: Iterable[SupervisedNode], now: float) -> None:
        """Sets `hung_cause` of nodes that are hung and writes their stacks; about once a second.

        Args:
          nodes: those to check.
          now: seconds of the monotonic clock.
        """
        for node in nodes:
            usage = node.usage() if node.alive and node.hung_cause is None else None
            if usage is None:
                continue
            detector = self._detectors[node.name]
            cause = detector.check(usage, now)
            if detector.near and (node.label, detector.near[0]) not in self._warned:
                self._warned.add((node.label, detector.near[0]))
                self._warn(node, *detector.near)
            if cause is not None:
                node.hung_cause, node.hung_since = cause, now
                self._journal.say(f"{node.name} {cause}; see its stacks in {shown(node.log.path)}")
                node.show_stacks(also_if_stopped=True)

    def _warn(self, node: SupervisedNode, name: str, stuck: float, limit: float) -> None:
        """Names the setting, once for a group: its nodes may work slowly and not hang."""
        work = "while it used the CPU" if name == "busy" else "without using the CPU"
        self._journal.say(
            f"{node.name}: one step has taken {stuck:.0f} s so far, {work}; after {limit:g} s it "
            f"counts as hung: if its steps take that long, raise supervision.{name}_limit "
            f"(distrl launch: --{name}_limit)"
        )


class HangDetector:
    """Decides whether one node is hung; to be asked about once a second.

    What passes while it is not asked hardly counts, see `RunningTime`.

    Args:
      heartbeat: the node's heartbeat.
      limits: how long it may hang.

    Attributes:
      near: at the last check, the limit that the node came near, its seconds without progress,
        and the limit in seconds; None: it is not near any.
    """

    def __init__(self, heartbeat: Heartbeat, limits: HangLimits) -> None:
        self._heartbeat = heartbeat
        self._limits = limits
        self._baseline: tuple[float, float] | None = None  # seconds without progress, CPU seconds
        self._stuck_s = float("inf")  # as far as it counts; all of it before the first check
        self._stopped_s = 0.0
        self._time = RunningTime()
        self.near: tuple[str, float, float] | None = None

    def check(self, usage: Usage, now: float) -> str | None:
        """Returns why the node is considered hung, or None.

        Args:
          usage: what the node uses now.
          now: seconds of the monotonic clock.
        """
        limits = self._limits
        self.near = None
        passed = self._time.passed(now)
        self._stopped_s = self._stopped_s + passed if usage.stopped else 0.0
        if limits.stopped is not None and self._stopped_s > limits.stopped:
            return f"was stopped by a signal (SIGSTOP), {self._stopped_s:.0f} s ago"
        stuck = self._seconds_stuck()
        if stuck is None:
            self._baseline, self._stuck_s = None, 0.0
            return None
        stuck = self._stuck_s = min(stuck, self._stuck_s + passed)
        if self._baseline is None or stuck < self._baseline[0]:
            self._baseline = stuck, usage.cpu
            return None
        elapsed = stuck - self._baseline[0]
        cores = (usage.cpu - self._baseline[1]) / elapsed if elapsed > 0 else 1.0
        name, limit = ("idle", limits.idle) if cores < _IDLE_CORES else ("busy", limits.busy)
        if limit is None:
            return None
        if stuck > _WARN_AT * limit:
            self.near = name, stuck, limit
        if stuck <= limit:
            return None
        if name == "idle":
            return f"made no progress for {stuck:.0f} s without using the CPU (it is blocked)"
        return f"made no progress for {stuck:.0f} s, at {cores:.0%} of a core"

    def _seconds_stuck(self) -> float | None:
        """Returns the seconds without progress; None for a node that waits for others."""
        stuck, silent = self._heartbeat.at_work(), self._heartbeat.silent()
        if silent is not None and silent > max(stuck or 0.0, _SILENCE_S):
            return silent
        return stuck
