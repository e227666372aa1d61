"""Nodes as threads of the launcher."""

import contextlib
import errno
import faulthandler
import io
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from distrl.errors import Stopped
from distrl.launch import launchpad_adapter
from distrl.launch.local.child import redirect_logging
from distrl.launch.local.debugging import breakpoints_in_terminal, post_mortem
from distrl.launch.local.node_hooks import ExceptionHooks, NodeReporter
from distrl.launch.network import loopback
from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.usage import Usage, process_usage
from distrl.runtime.heartbeat import Heartbeat, install_heartbeat_lookup
from distrl.runtime.traceback_text import describe_error

START_S = 10.0  # for a thread to begin
_owner = threading.local()


def current_node() -> "SupervisedThread | None":
    """Returns the node that this thread, or the thread that started it, belongs to."""
    return getattr(_owner, "node", None)


class SupervisedThread(SupervisedNode):
    """A node in a thread, which can be asked to stop but not be killed.

    Args:
      program_node: the node of the program.
      log: gets what the node's threads write to stdout and stderr.
      node_setup: called first in the thread, with the node's name.
      send: takes messages for the supervisor, from any thread.
      wake: wakes the supervisor's loop, from any thread.
      heartbeat: the node's heartbeat.
      restart_policy: the node's restart policy.
      debug: whether pdb is opened at an exception that ends the node.
    """

    kill_timeout = 0.5
    can_be_killed = False

    def __init__(
        self,
        program_node: launchpad_adapter.NamedNode,
        log: NodeLog,
        node_setup: Callable[[str], None] | None,
        send: Callable[[Message], None],
        wake: Callable[[], None],
        heartbeat: Heartbeat,
        restart_policy: RestartPolicy,
        debug: bool = False,
    ) -> None:
        super().__init__(program_node.name, program_node.label, log, heartbeat, restart_policy)
        self.send = send
        self.reporter = NodeReporter(self.name, send)
        self.thread = threading.Thread()
        self._node = program_node.node
        self._function = program_node.node.function
        self._node_setup = node_setup
        self._wake = wake
        self._debug = debug
        self._manager: Any = None
        self._ready = threading.Event()
        self._failed = False
        self._ended = False

    def start(self) -> None:
        self.exit = NodeExit(causes=self.history.causes)
        self.reporter = NodeReporter(self.name, self.send)
        self._failed = self._ended = False
        self._ready.clear()
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.started = time.monotonic()
        _start(self.thread)
        self.alive = True
        self.exit.state = "running"
        if not self._ready.wait(START_S):
            raise RuntimeError(f"the thread of {self.name} did not start within {START_S:g} s")

    def collect(self) -> bool:
        if not self._ended:
            return False
        self.thread.join(1.0)
        self.alive = False
        self.exit.state = "failed" if self._failed else "ended"
        self.exit.seconds = time.monotonic() - self.started
        return True

    def usage(self) -> Usage | None:
        return process_usage(os.getpid(), self.thread.native_id) if self.thread.native_id else None

    def ask_to_stop(self) -> None:
        if self._manager is None:
            return
        self._manager.stop_event().set()
        # Also calls the handlers of `lp.register_stop_handler`, which may take long.
        name = f"{self.name}-stop"
        _start(threading.Thread(target=self._manager.stop_and_wait, name=name, daemon=True))

    def kill(self) -> None:
        """Does nothing: a thread cannot be ended by another."""

    def show_stacks(self, also_if_stopped: bool = False) -> None:
        # faulthandler only writes to a descriptor, and all threads' stacks.
        try:
            with tempfile.TemporaryFile() as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                self.log.feed(file.read())
        except OSError as error:
            self.log.feed(f"no stacks: {error}\n".encode())

    def _run(self) -> None:
        _owner.node = self
        self._manager = launchpad_adapter.manager_of(self._node)
        self._ready.set()
        try:
            if self._node_setup is not None:
                self._node_setup(self.name)
            self.reporter.say("running")
            self._function()
            self.reporter.say("ended")
        except Stopped as stopped:
            sys.stderr.write(describe_error(stopped) + "\n")
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                self.reporter.say("ended")
            else:
                self._failed = True
                if self._debug:
                    post_mortem(error)
                self.reporter.failure(error)
        finally:
            launchpad_adapter.close_manager(self._manager)
            self._ended = True
            self._wake()


def _start(thread: threading.Thread) -> None:
    """Starts a thread. Raises OSError if there can be no other: Python's error has no class."""
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


class _NodeStream(io.TextIOBase):
    """A stdout or stderr that sends what a node's thread writes to the node's log.

    Args:
      original: the stream that is replaced.
      other_log: for threads that belong to no node.

    Attributes:
      installed: False once the original is back; what others then write here goes to it.
    """

    def __init__(self, original: Any, other_log: NodeLog) -> None:
        self._original = original
        self._other_log = other_log
        self.installed = True

    def write(self, text: str) -> int:
        node = current_node()
        if not self.installed and node is None:
            return self._original.write(text)
        log = node.log if node is not None else self._other_log
        log.feed(text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    @property
    def buffer(self) -> Any:
        return self._original.buffer

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._original.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


@contextlib.contextmanager
def thread_environment(other_log: NodeLog) -> Iterator[None]:
    """Prepares this process for nodes that run in its threads, and restores it afterwards.

    Output goes to the log of the node whose thread writes it. A thread that a node starts belongs
    to that node.

    Args:
      other_log: for threads that belong to no node, such as those that serve Courier's calls.
    """
    originals = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    streams = {name: _NodeStream(stream, other_log) for name, stream in originals.items()}
    start = threading.Thread.start
    no_proxy = os.environ.get(launchpad_adapter.NO_GRPC_PROXY)

    def inheriting_start(thread: threading.Thread) -> None:
        node = current_node()
        if node is not None:
            run = thread.run

            def owned_run() -> None:
                _owner.node = node
                run()

            thread.run = owned_run  # type: ignore[method-assign]
        start(thread)

    def reporter() -> NodeReporter | None:
        node = current_node()
        return node.reporter if node is not None else None

    def heartbeat() -> tuple[Heartbeat, bool] | None:
        node = current_node()
        if node is None:
            return None
        return node.heartbeat, threading.current_thread() is node.thread

    reopen_ports = loopback.close_ports()
    for name, stream in streams.items():
        setattr(sys, name, stream)
        redirect_logging(originals[name], stream)
    install_heartbeat_lookup(heartbeat)
    threading.Thread.start = inheriting_start  # type: ignore[assignment,method-assign]
    launchpad_adapter.reach_loopback(os.environ)
    try:
        with ExceptionHooks(reporter), breakpoints_in_terminal():
            yield
    finally:
        reopen_ports()
        threading.Thread.start = start  # type: ignore[method-assign]
        install_heartbeat_lookup(lambda: None)
        if no_proxy is None:
            os.environ.pop(launchpad_adapter.NO_GRPC_PROXY, None)
        else:
            os.environ[launchpad_adapter.NO_GRPC_PROXY] = no_proxy
        for name, stream in streams.items():
            stream.installed = False
            if getattr(sys, name) is stream:
                setattr(sys, name, originals[name])
            redirect_logging(stream, originals[name])
