"""The process that forks a pool's workers, and forks them again.

It is forked itself when the pool is made, and stays as it was then: one thread, few descriptors,
whatever the program does later. So a worker that died can be replaced by a fork that is safe,
long after this process has started threads. It ends, and its workers with it, when the program's
process is gone, however that ended.
"""

import contextlib
import ctypes
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

START, STACK, KILL, CLOSE = range(4)
"""What the pool asks for: a worker with the command pipe that comes along; where a worker is now;
that it be killed; that all workers be awaited for a while (milliseconds, in the worker's place)."""

_MESSAGE = struct.Struct("=ii")  # to the host: what and which worker; from it: worker and status
_PR_SET_PDEATHSIG = 1
_ORPHAN_CHECK = 0.5  # seconds: a copy of the socket in some other child may hide the parent's end
_STACK_TIMEOUT, _STACK_PAUSE = 1.0, 0.1  # seconds: for a stack to begin, and between its lines
_libc = ctypes.CDLL(None, use_errno=True)

Main = Callable[[int, int], None]
"""What a worker runs: its index and the descriptor of its command pipe."""


class HostDied(Exception):
    """The host is gone, and all workers with it."""


class WorkerHost:
    """The pool's end of a host.

    Attributes:
      pid: of the host.
      parent: of the process that made it, which alone may use it.
    """

    def __init__(self, main: Main, prepare: Callable[[], None], keep: Iterable[int]):
        """Forks the host, which has no workers yet.

        Args:
          main: runs in every worker; the worker ends when it returns.
          prepare: runs in the host first.
          keep: descriptors that workers need.
        """
        keep = set(keep)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stacks, stacks = os.pipe()
        self.parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):  # or the copies would write what waits there again
            stream.flush()
        _warn_of_jax()
        with warnings.catch_warnings():
            # Python's and JAX's: of threads that are not there any more in the copy.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            become(lambda: _Serving(theirs, stacks, self.parent, main, keep).run(prepare))
        theirs.close()
        os.close(stacks)

    def fileno(self) -> int:
        """For `poll`: readable when `deaths` has something to tell."""
        return self._control.fileno()

    def start(self, index: int, commands: int) -> None:
        """Forks worker `index`, with the reading end of its command pipe, and closes that here."""
        try:
            socket.send_fds(self._control, [_MESSAGE.pack(START, index)], [commands])
        except OSError as error:
            raise HostDied from error
        finally:
            os.close(commands)

    def stack(self, index: int) -> str:
        """Where worker `index` is now, as faulthandler writes it; "" where it does not say."""
        self._send(STACK, index)
        text, timeout = b"", _STACK_TIMEOUT
        while readable(timeout, self._stacks) and (part := os.read(self._stacks, 65536)):
            text, timeout = text + part, _STACK_PAUSE
        return text.decode(errors="replace").rstrip()

    def kill(self, index: int) -> None:
        """Kills worker `index` and its own children; `deaths` will tell."""
        self._send(KILL, index)

    def deaths(self) -> list[tuple[int, int]]:
        """Index and wait status of workers that ended; does not wait.

        Raises:
          HostDied: the host itself did.
        """
        found = []
        while readable(0, self._control.fileno()):
            try:
                message = self._control.recv(_MESSAGE.size)
            except OSError as error:
                raise HostDied from error
            if not message:
                raise HostDied
            found.append(_MESSAGE.unpack(message))
        return found

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
        with contextlib.suppress(ChildProcessError):  # reaped by one who waits for any child
            os.waitpid(self.pid, 0)

    def _ended(self, timeout: float) -> bool:
        """Waits until the host has closed its end."""
        deadline = time.monotonic() + timeout
        while readable(deadline - time.monotonic(), self._control.fileno()):
            try:
                if not self._control.recv(_MESSAGE.size):
                    return True
            except OSError:
                return True
        return False

    def _send(self, what: int, value: int) -> None:
        try:
            self._control.send(_MESSAGE.pack(what, value))
        except OSError as error:
            raise HostDied from error


class _Serving:
    """The host's own side."""

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
        """Until the pool closes, or its process is gone."""
        ignore_signals()
        control = self._control.fileno()
        self._woken, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        release_descriptors(self._keep | {control, self._woken, wakeup})
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, do_nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        prepare()
        gc.freeze()  # what was copied is never collected here: no finaliser of it runs
        try:
            while os.getppid() == self._parent:
                ready = readable(_ORPHAN_CHECK, control, self._woken)
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    self._reap()
                if control in ready and not self._obey():
                    break
        finally:
            for pid in self._workers:
                kill_group(pid)

    def _obey(self) -> bool:
        """Does what the pool asks for; False once that was the last."""
        message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE.size, 1)
        if not message:
            return False
        what, value = _MESSAGE.unpack(message)
        if what == START:
            self._fork(value, descriptors[0])
        elif what in (STACK, KILL):
            for pid, index in self._workers.items():
                if index == value and what == STACK:
                    os.kill(pid, signal.SIGUSR2)
                elif index == value:
                    kill_group(pid)
        else:
            self._await(value / 1000)
            return False
        return True

    def _fork(self, index: int, commands: int) -> None:
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(lambda: self._work(host, index, commands))
        os.close(commands)
        self._workers[pid] = index

    def _work(self, host: int, index: int, commands: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != host:
            return  # it died before we asked to be told
        os.setpgid(0, 0)  # so that what the environment starts ends with this process
        release_descriptors(self._keep | {commands})
        faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=False)
        self._main(index, commands)

    def _reap(self) -> None:
        """Tells the pool which workers ended."""
        for pid in list(self._workers):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            kill_group(pid)  # its children; while it is not reaped, nobody else has its number
            status = os.waitpid(pid, 0)[1]
            try:
                self._control.send(_MESSAGE.pack(self._workers.pop(pid), status))
            except OSError:
                return  # the pool's process is gone; `run` sees that next

    def _await(self, timeout: float) -> None:
        """Waits for all workers to end by themselves, but not longer."""
        deadline = time.monotonic() + timeout
        while self._workers and (left := deadline - time.monotonic()) > 0:
            if readable(left, self._woken):
                os.read(self._woken, 4096)
                self._reap()


def _warn_of_jax() -> None:
    """Warns where environments that use JAX could not do so in the copy."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "backends_are_initialized", bool)():
        return
    warnings.warn(
        "a process pool is made after JAX has started: environments that use JAX may hang in its "
        "workers; make the pool before the first JAX computation",
        RuntimeWarning,
        stacklevel=4,
    )
