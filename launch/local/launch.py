"""Runs a program on this machine, in processes or in threads."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from distrl.errors import ConfigError
from distrl.launch import launchpad_adapter
from distrl.launch.launch_types import LAUNCH_TYPES, LOCAL_MP, TERMINALS
from distrl.launch.local.debugging import Debug
from distrl.launch.local.node_hooks import Stopper
from distrl.launch.local.processes import SupervisedProcess, check_can_fork, other_threads
from distrl.launch.local.threads import SupervisedThread, thread_environment
from distrl.launch.network import loopback
from distrl.launch.network.endpoints import Endpoints
from distrl.launch.supervision.node import Message, SupervisedNode
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.session import Session, check_groups
from distrl.programs.substrate import BUILTIN, AnyProgram, of_program
from distrl.runtime.heartbeat import Heartbeat, HeartbeatTable
from distrl.shared_memory import segment

_MAIN_LOG = "main"  # of threads that belong to no node


def launch(
    program: AnyProgram,
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
    log_limit: int | None = None,
    saves: bool = False,
    may_return: Collection[str] | None = None,
    hide_gpus: bool = True,
) -> Result:
    """Runs a program until it ends, and leaves nothing of it behind.

    A node ends the program by `launchpad.context.get_context().program_stopper(reason, finished)`
    (obtained in the node's main thread, called from any thread) or by `lp.stop()`. A node whose
    group may return simply ends with status 0, and the program ends when all nodes have. A node
    that ends in any other way, or hangs, is restarted if its group's restart policy allows it;
    otherwise this is a failure and ends the program. Ctrl-C, SIGTERM and SIGHUP stop the nodes in
    order; a second Ctrl-C kills them immediately. Must be called in the main thread; may be called
    repeatedly.

    Args:
      program: the program, not launched before.
      launch_type: "local_mp": a forked process for each node; "local_mt": a thread for each node;
        "test_mt": threads, after a check that every node can be serialized.
      run_dir: the run folder, created if necessary; gets `logs/actor-0.log` and so on,
        `logs/supervisor.log`, `status.json` and `result.json`.
      local_resources: by group, or by node ("actor/0") instead, environment variables for the
        processes, as a mapping or in an `lp` PythonProcess.
      terminal: "current_terminal" shows nodes' output with their names, "live" the program's status
        below it, if stdout is a terminal; "output_to_files" neither.
      stop_grace: by group, seconds that its nodes have to end when the program is stopped; see
        `StopSequence` for other groups. After a node's failure, those that save have it, and others
        2 s less.
      node_setup: called first in each node's process or thread, with the node's name.
      restart_policies: by group, when its nodes are restarted; nodes of other groups never are.
      limits: how long nodes may hang; None: the defaults of `HangLimits`.
      debug: with processes, the node that runs in this terminal under a debugger; with threads,
        whether to open pdb at each failure.
      active: by group, how many of its nodes are started; `distrl actors` starts others. All nodes
        of groups that are not in it.
      log_limit: bytes of each log; see `LogFile`.
      saves: whether the program's learner saves checkpoints and `params.npz` in `run_dir`: the
        program has then not finished without both.
      may_return: groups whose nodes may end by themselves; None: all groups except those of
        `distrl.programs.groups`.
      hide_gpus: whether processes without CUDA_VISIBLE_DEVICES in `local_resources` see no GPU;
        False: they see those that the launcher sees.

    Returns:
      How the program ended. With threads, look at `hung`.

    Raises:
      ConfigError: an argument is invalid.
      processes.ForkError: local_mp in a process that has used JAX's devices, Courier or Reverb.
    """
    launch_type = getattr(launch_type, "value", launch_type)
    _check(launch_type, terminal)
    program_nodes = launchpad_adapter.named_nodes(program)
    launchpad_adapter.check_can_run(program_nodes)
    policies = restart_policies or {}
    check_groups(program, "restart_policies", policies)
    check_groups(program, "may_return", dict.fromkeys(may_return or ()))
    names = [node.name for node in program_nodes]
    substrate = of_program(program)
    if isinstance(debug, Debug) and debug.node not in names:
        raise ConfigError(f"--debug={debug.node}: no such node; the nodes are {', '.join(names)}")
    in_threads = launch_type != LOCAL_MP
    environments = _environments(program, names, local_resources or {})
    if launch_type == "test_mt":
        launchpad_adapter.check_serializable(program)
    loopback.check()
    if not in_threads:
        check_can_fork()

    other_logs = (_MAIN_LOG,) if in_threads else ()
    with Session(
        program, run_dir, terminal, limits, stop_grace, other_logs, log_limit, saves_here=saves
    ) as session:
        journal = session.journal
        endpoints = session.enter_context(contextlib.closing(Endpoints()))
        heartbeats = HeartbeatTable(names)
        journal.note(
            f"launching {program.name!r} as {launch_type}, {len(names)} nodes on {substrate}"
        )
        if loopback.left_open() and substrate != BUILTIN:
            journal.say(
                f"{loopback.OPEN}=1: the servers listen on all interfaces; anyone who can reach "
                "their ports can run commands as this user"
            )
        make_node: Callable[[launchpad_adapter.NamedNode, Heartbeat, RestartPolicy], Any]
        if in_threads:
            if local_resources:
                journal.note("local_resources are not used: threads share one environment")
            session.enter_context(thread_environment(session.logs[_MAIN_LOG]))
            make_node = functools.partial(_make_thread, session, node_setup, bool(debug))
        else:
            threads = other_threads()
            if threads:
                journal.note(f"forking while these threads run: {', '.join(threads)}")
            make_node = functools.partial(
                _make_process, session, node_setup, debug, environments, hide_gpus, endpoints, []
            )
        if substrate != BUILTIN:
            launchpad_adapter.prepare_launchpad()
        # Called when all processes are dead: killed ones could not remove their segments.
        session.callback(segment.sweep, of_this_process=True)
        nodes: dict[str, SupervisedNode] = {}
        send: dict[str, Callable[[Message], None]] = {}
        for program_node in program_nodes:
            heartbeat = heartbeats.of(program_node.name)
            assert heartbeat is not None
            policy = policies.get(program_node.label, RestartPolicy())
            node = make_node(program_node, heartbeat, policy)
            nodes[node.name], send[node.name] = node, node.send
        launchpad_adapter.wire(
            program,
            launch_type,
            lambda name: Stopper(name, send[name]),
            lambda node, index, name: endpoints.address(endpoints.take(), name),
        )
        return session.run(nodes, active, may_return)


def _make_thread(
    session: Session,
    node_setup: Callable[[str], None] | None,
    debug: bool,
    program_node: launchpad_adapter.NamedNode,
    heartbeat: Heartbeat,
    policy: RestartPolicy,
) -> SupervisedThread:
    def send(message: Message) -> None:
        session.supervisor.messages.append(message)
        session.signals.notify()

    log = session.logs[program_node.name]
    return SupervisedThread(
        program_node, log, node_setup, send, session.signals.notify, heartbeat, policy, debug
    )


def _make_process(
    session: Session,
    node_setup: Callable[[str], None] | None,
    debug: Debug | bool,
    environments: Mapping[str, Mapping[str, str]],
    hide_gpus: bool,
    endpoints: Endpoints,
    processes: list[SupervisedProcess],
    program_node: launchpad_adapter.NamedNode,
    heartbeat: Heartbeat,
    policy: RestartPolicy,
) -> SupervisedProcess:
    """Makes a node and appends it to `processes`, all of those made so far."""

    def launcher_fds() -> Iterator[int]:
        """Yields the launcher's descriptors at the time of a fork."""
        yield from session.signals.fds()
        yield from session.journal.fds()
        yield from endpoints.fds()
        yield session.supervisor.selector.fileno()  # type: ignore[attr-defined]
        for process in processes:
            yield from process.fds()

    name, label = program_node.name, program_node.label
    process = SupervisedProcess(
        program_node,
        session.logs[name],
        session.supervisor,
        environments.get(name, environments.get(label, {})),
        node_setup,
        launcher_fds,
        heartbeat,
        policy,
        debug if isinstance(debug, Debug) and debug.node == name else None,
        hide_gpus=hide_gpus,
    )
    session.callback(process.destroy)
    processes.append(process)
    return process


def _check(launch_type: str, terminal: str) -> None:
    if launch_type not in LAUNCH_TYPES:
        raise ConfigError(f"launch type {launch_type!r}: expected one of {', '.join(LAUNCH_TYPES)}")
    if terminal not in TERMINALS:
        raise ConfigError(f"terminal {terminal!r}: expected one of {', '.join(TERMINALS)}")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("launch() must be called in the main thread, because of signals")


def _environments(
    program: AnyProgram, names: Sequence[str], resources: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Returns the environment variables in `resources`, by group or node."""
    check_groups(program, "local_resources", {n: r for n, r in resources.items() if n not in names})
    environments = {}
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
        environments[label] = {str(name): str(value) for name, value in env.items()}
    return environments
