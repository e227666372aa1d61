"""A node's process, from the fork to its end."""

import dataclasses
import faulthandler
import gc
import io
import json
import logging
import os
import random
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from absl import logging as absl_logging

from distrl.errors import Stopped
from distrl.launch import launchpad_adapter
from distrl.launch.local.debugging import Debug, skip_breakpoints
from distrl.launch.local.node_hooks import ExceptionHooks, NodeReporter
from distrl.launch.local.tracing import TRACE_SIGNAL, obey_trace_order, take_trace_orders
from distrl.launch.network import loopback
from distrl.launch.supervision.node import Message
from distrl.launch.supervision.signals import ignore
from distrl.programs.groups import NO_GPU, group_of
from distrl.runtime import posix
from distrl.runtime.heartbeat import Heartbeat, install_heartbeat_lookup
from distrl.runtime.host_resources import raise_oom_score
from distrl.runtime.jax_import import set_environment
from distrl.runtime.process_exit import exit_at_once
from distrl.runtime.traceback_text import describe_error

SEND_S = 5.0  # for a message to the supervisor to be taken
BEAT_S = 1.0  # between two heartbeats
STACKS_SIGNAL = signal.SIGUSR2


@dataclasses.dataclass
class ChildSetup:
    """The parent's preparations for a child, which inherits them by the fork.

    Attributes:
      name: the node's name.
      function: what the node runs.
      env: environment variables that it gets beside the launcher's.
      node_setup: called first, with the node's name.
      control: the child's end of the SOCK_SEQPACKET pair for messages.
      output: the child's end of the pipe for stdout and stderr.
      close: descriptors of the parent that the child closes.
      parent: the parent's pid.
      heartbeat: the node's heartbeat.
      debug: how the node is debugged; it then keeps the launcher's terminal.
      stop_signal: the signal that sets the node's stop event.
      make_manager: makes what has that event, in the node's main thread.
    """

    name: str
    function: Callable[[], Any]
    env: Mapping[str, str]
    node_setup: Callable[[str], None] | None
    control: socket.socket
    output: int
    close: list[int]
    parent: int
    heartbeat: Heartbeat
    debug: Debug | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    make_manager: Callable[[], Any] = launchpad_adapter.new_manager


def environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Returns a node's environment variables; without a declared GPU it sees none."""
    env = {} if declared.get("CUDA_VISIBLE_DEVICES") else NO_GPU
    return {**env, **declared}


def send(control: socket.socket, message: Message) -> None:
    """Sends a message to the supervisor."""
    text = json.dumps(dataclasses.asdict(message), ensure_ascii=False)
    control.sendall(text.encode(errors="replace"))


def run_node(setup: ChildSetup) -> NoReturn:
    """Runs the node in this process, which has just been forked with its signals blocked."""
    code = 1
    try:
        _detach_from_launcher(setup)
        code = _run(setup)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        exit_at_once(code)  # a C++ server's destructor could block an ordinary exit


def _detach_from_launcher(setup: ChildSetup) -> None:
    """Gives this copy a session, signals and streams of its own, and ends it with the launcher."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the supervisor acts on Ctrl-C
    if setup.debug is None:
        os.setsid()
    posix.end_with_parent(setup.parent, _short_name(setup.name))
    raise_oom_score(group_of(setup.name.partition("/")[0]).oom_score)
    posix.allow_any_tracer()  # py-spy, which shows our stacks, is no ancestor
    closing = {setup.output, *setup.close}
    if setup.debug is None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(setup.output, 1)
        os.dup2(setup.output, 2)
        closing.add(null)
    for fd in closing - {0, 1, 2}:
        os.close(fd)
    _new_streams()


def _short_name(name: str) -> str:
    label, _, index = name.rpartition("/")
    room = posix.NAME_LIMIT - len("distrl:") - len(index) - 1
    return f"distrl:{label[:room]}/{index}"


def _new_streams() -> None:
    """Makes Python's stdout and stderr from descriptors 1 and 2, also for logging's handlers."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        new = io.TextIOWrapper(
            io.FileIO(fd, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        redirect_logging(old, new)
    faulthandler.enable(file=2)  # a SIGSEGV leaves a traceback in the log
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True, chain=False)


def redirect_logging(old: Any, new: Any) -> None:
    """Points every logging handler that writes to the stream `old` to `new`."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers for handler in getattr(logger, "handlers", ())]
    handlers.append(absl_logging.get_absl_handler())
    for handler in handlers:
        handler = getattr(handler, "python_handler", handler)  # absl's holds the real one
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


def _run(setup: ChildSetup) -> int:
    """Runs the node and reports how it ends; returns the exit status."""
    set_environment(setup.env)
    launchpad_adapter.reach_loopback(os.environ)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all children draw the launcher's numbers
    random.seed()
    gc.freeze()  # objects from before the fork stay in shared memory
    setup.control.settimeout(SEND_S)
    reporter = NodeReporter(setup.name, lambda message: send(setup.control, message))
    main = threading.main_thread()
    install_heartbeat_lookup(lambda: (setup.heartbeat, threading.current_thread() is main))
    _stop_on_signal(setup)
    with ExceptionHooks(lambda: reporter):
        try:
            loopback.close_ports()
            if setup.node_setup is not None:
                setup.node_setup(setup.name)
            reporter.say("running")
            if setup.debug is not None:
                setup.debug.run(setup.name, setup.function)
            else:
                skip_breakpoints(setup.name)
                setup.function()
        except Stopped as stopped:
            sys.stderr.write(describe_error(stopped) + "\n")
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                return (error.code or 0) & 0xFF
            sys.stderr.write(f"{error.code}\n")
            return 1
        except BaseException as error:
            reporter.failure(error)
            return 1
        reporter.say("ended")
    return 0


def _stop_on_signal(setup: ChildSetup) -> None:
    """Makes the stop signal set the node's stop event, even while the main thread is in C code.

    A thread does so, not a handler: that could run while the main thread holds the event's lock.
    """
    manager = setup.make_manager()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wait() -> None:
        numbers = b""
        while setup.stop_signal not in numbers:
            if select.select([reader], [], [], BEAT_S)[0]:
                numbers = os.read(reader, 64)
                if TRACE_SIGNAL in numbers:
                    obey_trace_order()
            setup.heartbeat.beat()  # also where the node gets a signal more often than that
        manager.stop_event().set()
        manager.stop_and_wait()  # also calls the handlers of `lp.register_stop_handler`

    threading.Thread(target=wait, name="distrl-stop", daemon=True).start()
    if setup.stop_signal != signal.SIGTERM:  # a SIGTERM to all processes is for the supervisor
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(setup.stop_signal, ignore)
    signal.siginterrupt(setup.stop_signal, False)
    take_trace_orders()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def detach() -> None:
        """Lets the stop signal end a process that the node forks, without stopping the node."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, setup.stop_signal):
            signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=detach)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever the launcher's caller blocks
