"""Reports of what a node that only serves others spends its time on."""

import threading
import time
from collections.abc import Callable

from distrl.errors import PeerError
from distrl.metrics.reports import Report
from distrl.programs.nodes.process import has_own_process
from distrl.programs.program import NodeHandle
from distrl.programs.remote import Reporter
from distrl.runtime.time_account import ProcessAccount, current_account

REPORT_S = 0.5  # between two reports


def account_of_process() -> Callable[[], Report] | None:
    """Opens a time account of this process, since the threads of its servers have none.

    Returns:
      A function that makes a report of it; None if the node is a thread among others: its time
      cannot be known.
    """
    if not has_own_process():
        return None
    account = ProcessAccount()
    return lambda: {"time": account.totals()}


def thread_times() -> Report:
    """Returns a report of the calling thread's time."""
    return {"time": current_account().totals()}


class TimeReports:
    """Reports to the monitor what a node spends its time on, without waiting for an answer."""

    def __init__(
        self, monitor: NodeHandle, task: str, node: str, make_report: Callable[[], Report] | None
    ):
        """Args:
        monitor: takes the reports.
        task: the task whose monitor gets the reports; if the node works for several, the first.
        node: its name.
        make_report: makes a report of its time so far; None: nothing is reported.
        """
        self._reporter = Reporter(monitor, task, node)
        self._make_report = make_report
        self._due = 0.0

    def send_if_due(self) -> None:
        """Sends a report, if the last one is half a second old."""
        if self._make_report is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REPORT_S
        try:
            self._reporter(self._make_report())
        except PeerError:
            # The monitor ends before the servers that others need; where it fails, the program
            # does, with the monitor's own message.
            self._make_report = None

    def send_until(self, stop: threading.Event) -> None:
        """Sends reports until the program stops."""
        try:
            while not stop.wait(REPORT_S):
                self.send_if_due()
        finally:
            self.close()

    def close(self) -> None:
        """Gives up a report that is under way: the monitor may have ended before the node."""
        self._reporter.abandon()
