"""The process that forks a pool's workers and their replacements.

It is forked itself when the pool is made, and does not change: it has one thread and few
descriptors, whatever the program does later. Therefore a dead worker can be replaced by a safe
fork long after the program has started threads. The host and its workers end when the program's
process does, for whatever reason.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable

from distrl.envs.pools.forked import (
    become,
    do_nothing,
    ignore_signals,
    kill_group,
    readable,
    release_descriptors,
)
from distrl.runtime.host_resources import raise_oom_score
from distrl.runtime.posix import end_with_parent

START, STACK, KILL, CLOSE = range(4)
"""Requests of the pool: start a worker with the attached command pipe; dump a worker's stack; kill
a worker; wait for all workers to end (at most so many milliseconds, given as the worker)."""

_MESSAGE = struct.Struct("=ii")  # to the host: request and worker; from it: worker and status
_ORPHAN_CHECK = 0.5  # seconds: another child's copy of the socket may hide the parent's end
_STACK_TIMEOUT, _STACK_PAUSE = 1.0, 0.1  # seconds: for a stack to begin, and between its lines
_OOM_SCORE = 300  # a worker can be restarted, and its program should survive it

Main = Callable[[int, int], None]
"""A worker's main function; takes its index and the descriptor of its command pipe."""


class HostDied(Exception):
    """The host died, and all workers with it."""


class WorkerHost:
    """The pool's end of a host.

    Attributes:
      pid: the host's process id.
      parent: process id of the process that made it; only that process may use it.
    """

    def __init__(self, main: Main, prepare: Callable[[], None], keep: Iterable[int]):
        """Forks the host, which has no workers yet.

        Args:
          main: runs in every worker; the worker ends when it returns.
          prepare: runs first, in the host.
          keep: descriptors that workers need.
        """
        keep = set(keep)
        self._control, host_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stacks, stacks = os.pipe()
        self.parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):  # or the copies would write buffered text again
            stream.flush()
        _warn_of_jax()
        with warnings.catch_warnings():
            # Warnings of Python and JAX about threads that do not exist in the copy.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            become(lambda: _HostProcess(host_end, stacks, self.parent, main, keep).run(prepare))
        host_end.close()
        os.close(stacks)

    def fileno(self) -> int:
        """Returns a descriptor for `poll`, readable when `deaths` has news."""
        return self._control.fileno()

    def start(self, index: int, commands: int) -> None:
        """Forks worker `index` with the read end of its command pipe, and closes that end here."""
        try:
            socket.send_fds(self._control, [_MESSAGE.pack(START, index)], [commands])
        except OSError as error:
            raise HostDied from error
        finally:
            os.close(commands)

    def stack(self, index: int) -> str:
        """Returns worker `index`'s stack, as faulthandler writes it; "" without an answer."""
        self._send(STACK, index)
        text, timeout = b"", _STACK_TIMEOUT
        while readable(timeout, self._stacks) and (part := os.read(self._stacks, 65536)):
            text, timeout = text + part, _STACK_PAUSE
        return text.decode(errors="replace").rstrip()

    def kill(self, index: int) -> None:
        """Kills worker `index` and its children; `deaths` reports it."""
        self._send(KILL, index)

    def deaths(self) -> list[tuple[int, int]]:
        """Returns index and wait status of workers that ended; does not wait.

        Raises:
          HostDied: the host has ended.
        """
        deaths = []
        while readable(0, self._control.fileno()):
            try:
                message = self._control.recv(_MESSAGE.size)
            except OSError as error:
                raise HostDied from error
            if not message:
                raise HostDied
            deaths.append(_MESSAGE.unpack(message))
        return deaths

    def close(self, timeout: float) -> None:
        """Gives the workers `timeout` seconds to end, kills the rest, and ends the host."""
        try:
            self._send(CLOSE, int(timeout * 1000))
            if not self._ended(timeout + 5.0):
                os.kill(self.pid, signal.SIGKILL)
        except HostDied:
            pass  # then there is nothing to wait for
        finally:
            self._control.close()
            os.close(self._stacks)
        with contextlib.suppress(ChildProcessError):  # reaped by a wait for any child
            os.waitpid(self.pid, 0)

    def _ended(self, timeout: float) -> bool:
        """Returns whether the host closes its end within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while readable(deadline - time.monotonic(), self._control.fileno()):
            try:
                if not self._control.recv(_MESSAGE.size):
                    return True
            except OSError:
                return True
        return False

    def _send(self, request: int, value: int) -> None:
        try:
            self._control.send(_MESSAGE.pack(request, value))
        except OSError as error:
            raise HostDied from error


class _HostProcess:
    """The host's side of the connection."""

    def __init__(
        self, control: socket.socket, stacks: int, parent: int, main: Main, keep: set[int]
    ):
        self._control = control
        self._stacks = stacks
        self._parent = parent
        self._main = main
        self._keep = keep | {stacks}
        self._workers: dict[int, int] = {}  # pid to index

    def run(self, prepare: Callable[[], None]) -> None:
        """Serves requests until the pool closes, or its process is gone."""
        ignore_signals()
        control = self._control.fileno()
        self._woken, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        release_descriptors(self._keep | {control, self._woken, wakeup})
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, do_nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        prepare()
        gc.freeze()  # copied objects are never collected here, so that their finalisers do not run
        try:
            while os.getppid() == self._parent:
                ready = readable(_ORPHAN_CHECK, control, self._woken)
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._reap()
                if control in ready and not self._handle_request():
                    break
        finally:
            for pid in self._workers:
                kill_group(pid)

    def _handle_request(self) -> bool:
        """Handles one request of the pool. Returns False after the last."""
        message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE.size, 1)
        if not message:
            return False
        request, value = _MESSAGE.unpack(message)
        if request == START:
            self._fork(value, descriptors[0])
        elif request in (STACK, KILL):
            for pid, index in self._workers.items():
                if index == value and request == STACK:
                    os.kill(pid, signal.SIGUSR2)
                elif index == value:
                    kill_group(pid)
        else:
            self._wait_for_workers(value / 1000)
            return False
        return True

    def _fork(self, index: int, commands: int) -> None:
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(lambda: self._run_worker(host, index, commands))
        os.close(commands)
        self._workers[pid] = index

    def _run_worker(self, host: int, index: int, commands: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with_parent(host)
        raise_oom_score(_OOM_SCORE)
        os.setpgid(0, 0)  # so that the environment's child processes end with this process
        release_descriptors(self._keep | {commands})
        faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=False)
        self._main(index, commands)

    def _reap(self) -> None:
        """Reports to the pool which workers ended."""
        for pid in list(self._workers):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            kill_group(pid)  # its children; until it is reaped, no other process gets its id
            status = os.waitpid(pid, 0)[1]
            try:
                self._control.send(_MESSAGE.pack(self._workers.pop(pid), status))
            except OSError:
                return  # the pool's process is gone, which `run` notices next

    def _wait_for_workers(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for all workers to end by themselves."""
        deadline = time.monotonic() + timeout
        while self._workers and (left := deadline - time.monotonic()) > 0:
            if readable(left, self._woken):
                os.read(self._woken, 4096)
                self._reap()


def _warn_of_jax() -> None:
    """Warns if JAX has started, since environments could not use it in a forked process."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "backends_are_initialized", bool)():
        return
    warnings.warn(
        "a process pool is made after JAX has started: environments that use JAX may hang in its "
        "workers; make the pool before the first JAX computation",
        RuntimeWarning,
        stacklevel=4,
    )
