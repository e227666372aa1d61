"""Runs a Launchpad program on this machine, in processes or in threads."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import launchpad as lp
from launchpad.launch import serialization

from distrl.errors import ConfigError
from distrl.launch import launchpad_adapter
from distrl.launch.launch_types import LAUNCH_TYPES, LOCAL_MP, TERMINALS
from distrl.launch.local import processes, threads
from distrl.launch.local.debugging import Debug
from distrl.launch.local.node_hooks import Stopper
from distrl.launch.network import loopback
from distrl.launch.network.ports import Ports
from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.session import Session, check_groups
from distrl.replay.shared import segment
from distrl.runtime.heartbeat import HeartbeatTable


def launch(
    program: lp.Program,
    launch_type: str = LOCAL_MP,
    *,
    run_dir: str | os.PathLike[str],
    local_resources: Mapping[str, Any] | None = None,
    terminal: str = "current_terminal",
    stop_grace: Mapping[str, float] | None = None,
    node_setup: Callable[[str], None] | None = None,
    restart_policies: Mapping[str, RestartPolicy] | None = None,
    limits: HangLimits | None = None,
    debug: Debug | bool = False,
    active: Mapping[str, int] | None = None,
) -> Result:
    """Runs the program until it ends, and leaves nothing of it behind.

    A node asks for the end by `launchpad.context.get_context().program_stopper(reason, finished)`
    (got in the node's main thread, called from any) or by `lp.stop()`. A node that ends in any
    other way before that, or hangs, is started again where its group's rule says so; else that is
    a failure, and ends the program. Ctrl-C, SIGTERM and SIGHUP stop the nodes in order, Ctrl-C
    again ends them at once. Call it in the main thread; it may be called again.

    Args:
      program: not launched before.
      launch_type: "local_mp", one forked process a node; "local_mt", one thread a node; "test_mt",
        threads, and every node is checked to be serializable.
      run_dir: is made; gets `logs/actor-0.log` and so on, `logs/supervisor.log` and `result.json`.
      local_resources: by group, or by node ("actor/0") in the place of its group's, environment
        variables for the processes, as a mapping or in an `lp` PythonProcess. A node that is given
        no CUDA_VISIBLE_DEVICES sees no GPU.
      terminal: "current_terminal" shows nodes' output with their names, "output_to_files" does not.
      stop_grace: by group, seconds that its nodes have to end when the program is stopped by the
        user or by its goal; `supervisor.STOP_GRACE` for groups that are not in it.
      node_setup: called with the node's name ("actor/0") in each node's process or thread, first.
      restart_policies: by group, when its nodes are restarted; nodes of other groups never are.
      limits: how long a node may hang; None: the usual ones.
      debug: with processes, the node that runs in this terminal under a debugger; with threads,
        whether to open pdb at each failure.
      active: by group, how many of its nodes are started; the others join when a user asks for
        them. All, where there is none.

    Returns:
      How it ended. With threads, look at `hung`.

    Raises:
      ConfigError: an argument that cannot work.
      processes.ForkError: local_mp in a process that has used JAX's devices, Courier or Reverb.
    """
    launch_type = getattr(launch_type, "value", launch_type)
    _check(launch_type, terminal)
    nodes = launchpad_adapter.named_nodes(program)
    check_groups(program, "restart_policies", restart_policies or {})
    names = [node.name for node in nodes]
    if isinstance(debug, Debug) and debug.node not in names:
        raise ConfigError(
            f"--debug={debug.node}: there is no such node; there is {', '.join(names)}"
        )
    in_threads = launch_type != LOCAL_MP
    env = _environments(program, names, local_resources or {})
    if launch_type == "test_mt":
        for label, group in program.groups.items():
            serialization.check_nodes_are_serializable(label, group)
    loopback.check()
    if not in_threads:
        processes.check_can_fork()

    others = ("main",) if in_threads else ()
    with Session(program, run_dir, terminal, limits, stop_grace, others) as session:
        signals, journal, supervisor = session.signals, session.journal, session.supervisor
        ports = session.enter_context(contextlib.closing(Ports()))
        heartbeats = HeartbeatTable(names)
        journal.note(f"launches {program.name!r} as {launch_type}, {len(nodes)} nodes")
        if loopback.left_open():
            journal.say(
                f"{loopback.OPEN}=1: the servers listen on all interfaces, and who reaches a port "
                "of them runs commands as you"
            )
        policies = restart_policies or {}
        workers: dict[str, SupervisedNode] = {}
        if in_threads:
            if local_resources:
                journal.note("threads share one environment: local_resources are not used")

            def tell(message: Message) -> None:
                supervisor.messages.append(message)
                signals.notify()

            session.enter_context(threads.surroundings(session.logs["main"]))
        else:
            threads_now = processes.other_threads()
            if threads_now:
                journal.note(f"forks while these threads run: {', '.join(threads_now)}")

            def close() -> Iterable[int]:
                """The launcher's descriptors, as they are at the time of a fork."""
                yield from signals.fds()
                yield from journal.fds()
                yield from ports.fds()
                yield supervisor.selector.fileno()  # type: ignore[attr-defined]
                for worker in workers.values():
                    yield from worker.fds()  # type: ignore[attr-defined]

        launchpad_adapter.prepare_launchpad()
        # When all are dead: what was killed could not remove its.
        session.callback(segment.sweep, of_this_process=True)
        for node in nodes:
            worker: SupervisedNode
            log, rule = session.logs[node.name], policies.get(node.label, RestartPolicy())
            heartbeat = heartbeats.of(node.name)
            assert heartbeat is not None
            if in_threads:
                worker = threads.SupervisedThread(
                    node, log, node_setup, tell, signals.notify, heartbeat, rule, bool(debug)
                )
            else:
                own = env.get(node.name, env.get(node.label, {}))
                its = debug if isinstance(debug, Debug) and debug.node == node.name else None
                worker = processes.SupervisedProcess(
                    node, log, supervisor, own, node_setup, close, heartbeat, rule, its
                )
                session.callback(worker.destroy)
            workers[node.name] = worker
        telling = {
            name: tell if in_threads else worker.tell  # type: ignore[attr-defined]
            for name, worker in workers.items()
        }
        launchpad_adapter.wire(
            program,
            lp.LaunchType(launch_type),
            functools.partial(_stopper, telling),
            lambda node, address: launchpad_adapter.local(ports.take()),
        )
        return session.run(workers, active)


def _stopper(telling: Mapping[str, Callable[[Message], None]], name: str) -> Stopper:
    return Stopper(name, telling[name])


def _check(launch_type: str, terminal: str) -> None:
    if launch_type not in LAUNCH_TYPES:
        raise ConfigError(f"launch type {launch_type!r}: expected one of {', '.join(LAUNCH_TYPES)}")
    if terminal not in TERMINALS:
        raise ConfigError(f"terminal {terminal!r}: expected one of {', '.join(TERMINALS)}")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("launch() was called in a thread: it needs the main thread, for signals")


def _environments(
    program: lp.Program, names: Sequence[str], resources: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """The environment variables of groups and nodes."""
    check_groups(program, "local_resources", {n: r for n, r in resources.items() if n not in names})
    found = {}
    for label, resource in resources.items():
        if getattr(resource, "args", None):
            raise ConfigError(
                f"local_resources[{label!r}].args: nodes are forked and take no arguments; use env"
            )
        env = getattr(resource, "env", resource)
        if not isinstance(env, Mapping):
            raise ConfigError(
                f"local_resources[{label!r}]: expected a mapping of environment variables or a "
                f"PythonProcess, got {type(resource).__name__}"
            )
        found[label] = {str(name): str(value) for name, value in env.items()}
    return found
