"""Processes that only exist in a test: a kernel's calls for them, and a clock."""

import heapq
import itertools
import json
import os
import signal
import socket
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from distrl.launch.local import child, launch, processes
from distrl.launch.network import loopback
from distrl.launch.supervision import stack_dump, supervisor
from tests.support.nodes import function_node, new_program

_FIRST_PID = 1 << 23  # above those of Linux
_END_S = 300.0  # of simulated time, by which a program has ended


def empty_program(*groups: str) -> Any:
    """Returns a program with a node for each group; a group may be named several times."""
    program = new_program("simulated")
    for label in groups:
        with program.group(label):
            program.add_node(function_node(lambda: None))
    return program


class SimulatedProcess:
    """A forked process, which does what its `script` has it do.

    Attributes:
      name: the node's.
      life: of the node, from 0 in this test.
      saved: whether it has ended in order.
      asked: whether it was asked to stop.
      status: as of `os.waitpid`; None while it runs.
      stops_in: seconds from being asked to stop to its end.
      on_stop: called when it has stopped in order.
    """

    def __init__(self, kernel: "Kernel", pid: int, setup: Any, life: int):
        self.kernel, self.pid, self.name, self.life = kernel, pid, setup.name, life
        self.saved = self.asked = False
        self.status: int | None = None
        self.stops_in = 0.0
        self.on_stop: Callable[[], object] = lambda: None
        self._control = socket.socket(fileno=os.dup(setup.control.fileno()))
        self._output = os.dup(setup.output)

    def say(self, kind: str, reason: str = "", **fields: Any) -> None:
        """Sends a message to the supervisor."""
        message = {"time": self.kernel.now, "node": self.name, "kind": kind, "reason": reason}
        if self.status is None:
            self._control.send(json.dumps({**message, **fields}).encode())

    def print(self, text: str) -> None:
        if self.status is None:
            os.write(self._output, text.encode())

    def end(self, status: int) -> None:
        if self.status is None:
            self.status = status
            self._control.close()
            os.close(self._output)

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.end(number)
        elif number == signal.SIGTERM and not self.asked:
            self.asked = True
            self.kernel.after(self.stops_in, self._stop)

    def _stop(self) -> None:
        if self.status is None:
            self.saved = True
            self.on_stop()
        self.end(0)


class Kernel:
    """Forks `SimulatedProcess`es, signals them and waits for them.

    Args:
      script: called with each new process, to plan what it does.

    Attributes:
      now: seconds.
      processes: all that were forked.
      setup: of the process that is forked next.
    """

    def __init__(self, script: Callable[[SimulatedProcess], None]):
        self.now = 0.0
        self.processes: list[SimulatedProcess] = []
        self.setup: Any = None
        self._script = script
        self._running: dict[int, SimulatedProcess] = {}  # or ended and not waited for
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def sleep(self, seconds: float) -> None:
        """Lets time pass until the next event, at most `seconds`."""
        due = self._events[0][0] if self._events else float("inf")
        self.now = max(self.now, min(self.now + seconds, due))
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    def of(self, name: str) -> list[SimulatedProcess]:
        """Returns the lives of a node."""
        return [process for process in self.processes if process.name == name]

    def fork(self) -> int:
        pid = _FIRST_PID + len(self.processes)
        process = SimulatedProcess(self, pid, self.setup, len(self.of(self.setup.name)))
        self.processes.append(process)
        self._running[pid] = process
        self._script(process)
        return pid

    def kill(self, pid: int, number: int) -> None:
        if pid not in self._running:
            raise ProcessLookupError
        self._running[pid].signal(number)

    def waitid(self, kind: int, pid: int, options: int) -> object:
        del kind, options
        if pid not in self._running:
            raise ChildProcessError
        process = self._running[pid]
        return None if process.status is None else types.SimpleNamespace(si_pid=pid)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        del options
        if pid not in self._running:
            raise ChildProcessError
        status = self._running.pop(pid).status
        assert status is not None, "the launcher would block"
        return pid, status

    def take_over(
        self,
        patch: pytest.MonkeyPatch,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call,
    ) -> None:
        """Has `launch.launch` run simulated processes in simulated time.

        Args:
          patch: undoes it.
          wrap: returns what is called in the place of a function of the kernel.
        """
        make_setup, run_once = child.ChildSetup, supervisor.run_once

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            self.setup = make_setup(*arguments, **keywords)
            return self.setup

        def wait(selector: Any, seconds: float) -> None:
            """Waits for messages or for simulated time."""
            assert self.now < _END_S, "the program should have ended"
            if not wrap(selector.select)(0):
                wrap(self.sleep)(seconds)
            run_once(selector, 0.0)

        patch.setattr(child, "ChildSetup", recorded)
        patch.setattr(processes, "check_can_fork", lambda: None)
        patch.setattr(launch, "check_can_fork", lambda: None)
        patch.setattr(loopback, "check", lambda: None)
        patch.setattr(stack_dump, "py_spy", lambda: None)
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(supervisor, "run_once", wait)
        patch.setattr(time, "monotonic", lambda: 1000.0 + self.now)
        defaults = supervisor.Supervisor.__init__.__kwdefaults__
        assert defaults is not None
        patch.setitem(defaults, "clock", time.monotonic)
        for name in ("fork", "waitid", "waitpid"):
            patch.setattr(os, name, wrap(getattr(self, name)))
        for name in ("kill", "killpg"):
            patch.setattr(os, name, wrap(self.kill))
