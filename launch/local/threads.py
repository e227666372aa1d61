"""Nodes as threads of the launcher."""

import contextlib
import faulthandler
import io
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from launchpad.launch import worker_manager

from distrl.errors import Stopped
from distrl.launch import launchpad_adapter
from distrl.launch.local.child import redirect_logging
from distrl.launch.local.debugging import post_mortem, stopping_here
from distrl.launch.local.node_hooks import ExceptionHooks, NodeReporter, one_line
from distrl.launch.network import loopback
from distrl.launch.supervision import watchdog
from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import NodeExit
from distrl.runtime.heartbeat import Heartbeat, install_heartbeat_lookup

_owner = threading.local()


def current_worker() -> "SupervisedThread | None":
    """The node whose thread this is; threads that a node has started belong to it too."""
    return getattr(_owner, "worker", None)


class SupervisedThread(SupervisedNode):
    """A node in a thread. It can be asked to stop, and cannot be killed.

    Args:
      tell: takes messages for the supervisor, from any thread.
      wake: has the supervisor look again.
      debug: an exception that ends it comes to the user first, in pdb.
    """

    kill_timeout = 0.5
    can_be_killed = False

    def __init__(
        self,
        node: launchpad_adapter.NamedNode,
        log: NodeLog,
        node_setup: Callable[[str], None] | None,
        tell: Callable[[Message], None],
        wake: Callable[[], None],
        heartbeat: Heartbeat,
        restart_policy: RestartPolicy,
        debug: bool = False,
    ) -> None:
        super().__init__(node.name, node.label, log, heartbeat, restart_policy)
        self._debug = debug
        self._tell = tell
        self.telling = NodeReporter(node.name, tell)
        self._function = node.node.function
        self._node_setup = node_setup
        self._ready = threading.Event()
        self._manager: worker_manager.WorkerManager | None = None
        self._failed = False
        self._over = False
        self._wake = wake
        self.thread = threading.Thread()

    def start(self) -> None:
        self.exit = NodeExit(causes=self.history.causes)
        self.telling = NodeReporter(self.name, self._tell)
        self._failed = self._over = False
        self._ready.clear()
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.started = time.monotonic()
        self.alive = True
        self.exit.state = "running"
        self.thread.start()
        if not self._ready.wait(10.0):
            raise RuntimeError(f"the thread of {self.name} did not start within 10 s")

    def collect(self) -> bool:
        if not self._over:
            return False
        self.thread.join(1.0)
        self.alive = False
        self.exit.state = "failed" if self._failed else "ended"
        self.exit.seconds = time.monotonic() - self.started
        return True

    def usage(self) -> watchdog.Usage | None:
        return watchdog.usage(os.getpid(), self.thread.native_id) if self.thread.native_id else None

    def ask_to_stop(self) -> None:
        if self._manager is None:
            return
        self._manager.stop_event().set()
        # Also calls what `lp.register_stop_handler` was given, which may take its time.
        name = f"{self.name}-stop"
        threading.Thread(target=self._manager.stop_and_wait, name=name, daemon=True).start()

    def kill(self) -> None:
        """Nothing: a thread cannot be ended by another."""

    def show_stacks(self, also_if_stopped: bool = False) -> None:
        # faulthandler writes all threads' stacks to a descriptor only.
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            self.log.feed(file.read())

    def _run(self) -> None:
        _owner.worker = self
        self._manager = launchpad_adapter.new_manager()
        self._ready.set()
        try:
            if self._node_setup is not None:
                self._node_setup(self.name)
            self.telling.say("running")
            self._function()
            self.telling.say("ended")
        except Stopped as stopped:
            sys.stderr.write(one_line(stopped) + "\n")
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                self.telling.say("ended")
            else:
                self._failed = True
                if self._debug:
                    post_mortem(error)
                self.telling.failure(error)
        finally:
            self._over = True
            self._wake()


class _NodeStream(io.TextIOBase):
    """stdout or stderr: what a node's thread writes goes to the node's log."""

    def __init__(self, original: Any, other: NodeLog) -> None:
        self._original = original
        self._other = other
        self.installed = True

    def write(self, text: str) -> int:
        worker = current_worker()
        if not self.installed and worker is None:
            return self._original.write(text)
        log = worker.log if worker is not None else self._other
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
def surroundings(other: NodeLog) -> Iterator[None]:
    """What nodes need of their process while they run in threads; all is put back afterwards.

    Output goes to the log of the node whose thread writes it (or which started that thread), and
    to `other` from threads that belong to no node, such as those that serve Courier's calls.
    """
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    proxies = {name: _NodeStream(stream, other) for name, stream in streams.items()}
    start = threading.Thread.start
    no_proxy = os.environ.get(launchpad_adapter.NO_GRPC_PROXY)

    def inheriting_start(thread: threading.Thread) -> None:
        worker = current_worker()
        if worker is not None:
            run = thread.run

            def owned_run() -> None:
                _owner.worker = worker
                run()

            thread.run = owned_run  # type: ignore[method-assign]
        start(thread)

    def owner() -> NodeReporter | None:
        worker = current_worker()
        return worker.telling if worker is not None else None

    def heartbeat() -> tuple[Heartbeat, bool] | None:
        worker = current_worker()
        if worker is None:
            return None
        return worker.heartbeat, threading.current_thread() is worker.thread

    open_again = loopback.close_ports()
    for name, proxy in proxies.items():
        setattr(sys, name, proxy)
        redirect_logging(streams[name], proxy)
    install_heartbeat_lookup(heartbeat)
    threading.Thread.start = inheriting_start  # type: ignore[assignment,method-assign]
    launchpad_adapter.reach_loopback(os.environ)
    try:
        with ExceptionHooks(owner), stopping_here():
            yield
    finally:
        open_again()
        threading.Thread.start = start  # type: ignore[method-assign]
        install_heartbeat_lookup(lambda: None)
        if no_proxy is None:
            os.environ.pop(launchpad_adapter.NO_GRPC_PROXY, None)
        else:
            os.environ[launchpad_adapter.NO_GRPC_PROXY] = no_proxy
        for name, proxy in proxies.items():
            proxy.installed = False
            if getattr(sys, name) is proxy:
                setattr(sys, name, streams[name])
            redirect_logging(proxy, streams[name])
