"""Ends the connections to all hosts together, so that one that does not answer delays no other."""

import contextlib
import time
from collections.abc import Callable, Sequence

from distrl.launch.hosts.remote_host import RemoteHost
from distrl.launch.supervision.node import KILL_S
from distrl.launch.supervision.session import Session
from distrl.launch.supervision.signals import run_once

GOODBYE_S = 5.0  # for all daemons to end; after that, for the commands that have connected to them


def say_goodbye(session: Session, hosts: Sequence[RemoteHost], timeout: float = GOODBYE_S) -> None:
    """Says goodbye to the hosts' daemons, waits for their end, and closes the connections.

    Without a goodbye, if it is `kept`, a daemon that has connected by itself does so again.

    Args:
      session: the launch.
      hosts: those that have nodes.
      timeout: seconds for each of both waits; what is left then is killed.
    """
    for host in hosts:
        host.say_goodbye()
    _wait_while(session, timeout, lambda: any(each.connected for each in hosts if not each.kept))
    for host in hosts:
        host.disconnect(timeout)
    _wait_while(session, timeout + KILL_S, lambda: sum(each.reap() for each in hosts) > 0)


def _wait_while(session: Session, timeout: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + timeout
    while condition() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # waiting is refused; see `run_once`
            run_once(session.supervisor.selector, 0.1)
        session.signals.pending()  # otherwise the next wait would end at once
