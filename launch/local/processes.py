"""Nodes as processes, forked from the launcher."""

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from distrl.errors import ConfigError
from distrl.launch import launchpad_adapter
from distrl.launch.local import child
from distrl.launch.local.debugging import Debug
from distrl.launch.local.node_pipes import Hub, NodePipes
from distrl.launch.supervision import stack_dump
from distrl.launch.supervision.node import KILL_S, Message, SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.signals import WATCHED, name_of
from distrl.launch.supervision.usage import Usage, process_usage
from distrl.runtime.heartbeat import Heartbeat

_POLL_S = 0.01  # between two looks whether a killed process has ended


class ForkError(ConfigError):
    """A fork of this process would give nodes that hang."""


def check_can_fork() -> None:
    """Raises ForkError if this process has used a library that does not survive a fork."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        raise ForkError(
            "local_mp forks this process, and JAX has already created its devices in it (by a jax "
            "array or jax.devices()): do so in the nodes only, or launch with local_mt"
        )
    try:
        grpc_is_running = launchpad_adapter.grpc_is_running()
    except OSError as error:
        raise ForkError(f"local_mp cannot look at this process's threads: {error}") from error
    if grpc_is_running:
        raise ForkError(
            "local_mp forks this process, which has already used Courier or Reverb (by a launch "
            "with local_mt or test_mt, perhaps): launch with local_mp from a new process"
        )


class SupervisedProcess(SupervisedNode):
    """A node in a forked process with its own session and process group.

    Args:
      program_node: the node of the program.
      log: gets its stdout and stderr.
      hub: the loop that reads what it sends.
      env: environment variables that it gets beside the launcher's.
      node_setup: called first in the process, with the node's name.
      launcher_fds: returns the launcher's descriptors, which the child closes.
      heartbeat: the node's heartbeat.
      restart_policy: the node's restart policy.
      debug: how it is debugged; it then keeps the launcher's terminal.
      stop_signal: the signal that asks it to stop.
      hide_gpus: whether it sees no GPU unless `env` has CUDA_VISIBLE_DEVICES.

    Attributes:
      pid: 0 before its start, and after its end was collected: only an uncollected pid is surely
        the node's.
    """

    def __init__(
        self,
        program_node: launchpad_adapter.NamedNode,
        log: NodeLog,
        hub: Hub,
        env: Mapping[str, str],
        node_setup: Callable[[str], None] | None,
        launcher_fds: Callable[[], Iterable[int]],
        heartbeat: Heartbeat,
        restart_policy: RestartPolicy,
        debug: Debug | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        hide_gpus: bool = True,
    ) -> None:
        super().__init__(program_node.name, program_node.label, log, heartbeat, restart_policy)
        self._debug = debug
        self._stop_signal = stop_signal
        self._hub = hub
        self._node = program_node.node
        self._function = program_node.node.function
        self._env = child.environment(env) if hide_gpus else dict(env)
        self._node_setup = node_setup
        self._launcher_fds = launcher_fds
        self._pipes: NodePipes | None = None
        self._killed_at: float | None = None  # the first time
        self.pid = 0

    def send(self, message: Message) -> None:
        """Sends a message to the supervisor; in the child, which has copies of the sockets."""
        assert self._pipes is not None
        child.send(self._pipes.child_control, message)

    def fds(self) -> list[int]:
        """Returns the launcher's descriptors for this node."""
        return [*self.log.fds(), *(self._pipes.fds() if self._pipes is not None else [])]

    def start(self) -> None:
        self.exit = NodeExit(causes=self.history.causes)
        self._killed_at = None
        pipes = self._pipes = NodePipes(self._hub, self.log)
        try:
            self._fork(pipes)
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_child_ends()
        self.alive = True
        self.exit.state = "running"

    def _fork(self, pipes: NodePipes) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
                stream.flush()  # else the child would write the buffered text again
        setup = child.ChildSetup(
            self.name,
            self._function,
            self._env,
            self._node_setup,
            pipes.child_control,
            pipes.child_output,
            [],
            os.getpid(),
            self.heartbeat,
            self._debug,
            stop_signal=self._stop_signal,
            make_manager=functools.partial(launchpad_adapter.manager_of, self._node),
        )
        setup.close += {*self._launcher_fds(), *self.fds()}
        # Blocked until the child has replaced the launcher's handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        try:
            self.started = time.monotonic()
            self.pid = os.fork()
            if self.pid == 0:
                child.run_node(setup)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def collect(self) -> bool:
        if not self._has_ended():
            return False
        # Also ends what the node has started. The zombie keeps the group's number from reuse.
        self._signal_group(signal.SIGKILL)
        if self._pipes is not None and not self._pipes.drain():
            return False
        self._reap()
        self._close_pipes()
        self.exit.seconds = time.monotonic() - self.started
        self.alive = False
        return True

    def wake(self) -> None:
        self._signal_group(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        self.wake()
        self._signal(self._stop_signal)

    def usage(self) -> Usage | None:
        return process_usage(self.pid) if self.pid else None

    def kill(self) -> None:
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        self._signal_group(signal.SIGKILL)
        self._signal(signal.SIGKILL)  # its group may not exist yet

    def show_stacks(self, also_if_stopped: bool = False) -> None:
        try:
            if also_if_stopped and self.pid:
                self.log.feed(stack_dump.dump(self.pid).encode())
            else:
                self._signal(child.STACKS_SIGNAL)
        except OSError as error:
            self.log.feed(f"no stacks: {error}\n".encode())

    def destroy(self) -> None:
        """Kills the process if it still runs; for when the supervisor itself fails.

        Raises:
          TimeoutError: it has not ended within `KILL_S` of its first kill, as in a system call that
            cannot be interrupted.
        """
        try:
            if self.alive:
                self.kill()
                self._wait_for_end()
                self._reap()
                self.alive = False
        finally:
            self._close_pipes()

    def _wait_for_end(self) -> None:
        """Waits for the kernel to end the process, which was killed."""
        assert self._killed_at is not None
        while not self._has_ended():
            if time.monotonic() - self._killed_at > KILL_S:
                raise TimeoutError(f"{self.name}, process {self.pid}, was killed and has not ended")
            time.sleep(_POLL_S)

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # other code in this process has reaped it

    def _reap(self) -> None:
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            self.pid = 0
            self.exit.state = "failed"
            self.exit.error = self.exit.error or "its exit status was taken by other code"
            return
        self.pid = 0
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            self.exit.signal = name_of(-code)
        else:
            self.exit.code = code
        self.exit.state = "killed" if self._killed_at is not None else "failed" if code else "ended"

    def _signal(self, number: int) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _signal_group(self, number: int) -> None:
        if self.pid and self._debug is None:  # a debugged node is in the launcher's group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _close_pipes(self) -> None:
        if self._pipes is not None:
            self._pipes.close()
            self._pipes = None


def other_threads() -> list[str]:
    """Returns the names of Python threads beside the main one: a fork may copy their locks."""
    return [t.name for t in threading.enumerate() if t is not threading.main_thread()]
