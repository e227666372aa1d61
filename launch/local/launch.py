"""Runs a program on this machine, in processes or in threads."""

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
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
from distrl.launch.supervision.launch_options import LaunchOptions
from distrl.launch.supervision.node import Message
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.session import Session, check_groups, check_options
from distrl.programs.substrate import BUILTIN, AnyProgram, of_program
from distrl.runtime.heartbeat import Heartbeat, HeartbeatTable
from distrl.shared_memory import segment

_MAIN_LOG = "main"  # the log of threads that belong to no node


@dataclasses.dataclass(frozen=True)
class NodeOptions:
    """What the processes or threads of a program's nodes get.

    Attributes:
      local_resources: by group, or by node ("actor/0") instead, environment variables for the
        processes, as a mapping or in an `lp` PythonProcess.
      node_setup: called first in each node's process or thread, with the node's name.
      debug: with processes, the node that runs in this terminal under a debugger; with threads,
        whether to open pdb at each failure.
      hide_gpus: whether processes without CUDA_VISIBLE_DEVICES in `local_resources` see no GPU;
        False: they see those that the launcher sees.
    """

    local_resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    node_setup: Callable[[str], None] | None = None
    debug: Debug | bool = False
    hide_gpus: bool = True


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
      run_dir, terminal, stop_grace, restart_policies, limits, active, log_limit, saves, may_return:
        see `LaunchOptions`; None: its default.
      local_resources, node_setup, debug, hide_gpus: see `NodeOptions`.

    Returns:
      How the program ended. With threads, look at `hung`.

    Raises:
      ConfigError: an argument is invalid.
      processes.ForkError: local_mp in a process that has used JAX's devices, Courier or Reverb.
    """
    return launch_locally(
        program,
        launch_type,
        LaunchOptions(
            Path(run_dir),
            terminal,
            stop_grace=stop_grace or {},
            restart_policies=restart_policies or {},
            limits=limits or HangLimits(),
            active=active or {},
            log_limit=log_limit,
            saves=saves,
            may_return=may_return,
        ),
        NodeOptions(local_resources or {}, node_setup, debug, hide_gpus),
    )


def launch_locally(
    program: AnyProgram, launch_type: str, options: LaunchOptions, node_options: NodeOptions
) -> Result:
    """Does what `launch` does, with its keyword arguments in `options` and `node_options`."""
    launch_type = getattr(launch_type, "value", launch_type)
    in_threads = launch_type != LOCAL_MP
    environments = _check(program, launch_type, options, node_options)
    with Session(program, options, (_MAIN_LOG,) if in_threads else ()) as session:
        endpoints = session.enter_context(contextlib.closing(Endpoints()))
        heartbeats = HeartbeatTable([node.name for node in session.nodes])
        _note_launch(session, program, launch_type)
        make_node: Callable[[launchpad_adapter.NamedNode, Heartbeat, RestartPolicy], Any]
        if in_threads:
            if environments:
                session.journal.note("local_resources are not used: threads share one environment")
            session.enter_context(thread_environment(session.logs[_MAIN_LOG]))
            make_node = functools.partial(_make_thread, session, node_options)
        else:
            threads = other_threads()
            if threads:
                session.journal.note(f"forking while these threads run: {', '.join(threads)}")
            make_node = _Processes(session, node_options, environments, endpoints).make
        if of_program(program) != BUILTIN:
            launchpad_adapter.prepare_launchpad()
        # Called when all processes are dead: killed ones could not remove their segments.
        session.callback(segment.sweep, of_this_process=True)
        nodes: dict[str, SupervisedThread | SupervisedProcess] = {}
        for program_node in session.nodes:
            heartbeat = heartbeats.of(program_node.name)
            assert heartbeat is not None
            policy = options.restart_policy(program_node.label)
            nodes[program_node.name] = make_node(program_node, heartbeat, policy)
        launchpad_adapter.wire(
            program,
            launch_type,
            lambda name: Stopper(name, nodes[name].send),
            lambda node, index, name: endpoints.address(endpoints.take(), name),
        )
        return session.run(nodes)


def _check(
    program: AnyProgram, launch_type: str, options: LaunchOptions, node_options: NodeOptions
) -> dict[str, dict[str, str]]:
    """Refuses what cannot work; returns the nodes' environment variables, by group or node."""
    if launch_type not in LAUNCH_TYPES:
        raise ConfigError(f"launch type {launch_type!r}: expected one of {', '.join(LAUNCH_TYPES)}")
    if options.terminal not in TERMINALS:
        raise ConfigError(f"terminal {options.terminal!r}: expected one of {', '.join(TERMINALS)}")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("launch() must be called in the main thread, because of signals")
    program_nodes = launchpad_adapter.named_nodes(program)
    launchpad_adapter.check_can_run(program_nodes)
    check_options(program, options)
    names, debug = [node.name for node in program_nodes], node_options.debug
    if isinstance(debug, Debug) and debug.node not in names:
        raise ConfigError(f"--debug={debug.node}: no such node; the nodes are {', '.join(names)}")
    environments = _environments(program, names, node_options.local_resources)
    if launch_type == "test_mt":
        launchpad_adapter.check_serializable(program)
    loopback.check()
    if launch_type == LOCAL_MP:
        check_can_fork()
    return environments


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


def _note_launch(session: Session, program: AnyProgram, launch_type: str) -> None:
    substrate = of_program(program)
    session.journal.note(
        f"launching {program.name!r} as {launch_type}, {len(session.nodes)} nodes on {substrate}"
    )
    if loopback.left_open() and substrate != BUILTIN:
        session.journal.say(
            f"{loopback.OPEN}=1: the servers listen on all interfaces; anyone who can reach "
            "their ports can run commands as this user"
        )


def _make_thread(
    session: Session,
    options: NodeOptions,
    program_node: launchpad_adapter.NamedNode,
    heartbeat: Heartbeat,
    policy: RestartPolicy,
) -> SupervisedThread:
    def send(message: Message) -> None:
        session.supervisor.messages.append(message)
        session.signals.notify()

    return SupervisedThread(
        program_node,
        session.logs[program_node.name],
        options.node_setup,
        send,
        session.signals.notify,
        heartbeat,
        policy,
        bool(options.debug),
    )


@dataclasses.dataclass(frozen=True)
class _Processes:
    """Makes a program's nodes as processes, each of which closes the launcher's descriptors."""

    session: Session
    options: NodeOptions
    environments: Mapping[str, Mapping[str, str]]
    endpoints: Endpoints
    made: list[SupervisedProcess] = dataclasses.field(default_factory=list)

    def make(
        self, program_node: launchpad_adapter.NamedNode, heartbeat: Heartbeat, policy: RestartPolicy
    ) -> SupervisedProcess:
        """Makes a node, which is killed when the session ends."""
        name, debug = program_node.name, self.options.debug
        of_group = self.environments.get(program_node.label, {})
        process = SupervisedProcess(
            program_node,
            self.session.logs[name],
            self.session.supervisor,
            self.environments.get(name, of_group),
            self.options.node_setup,
            self._launcher_fds,
            heartbeat,
            policy,
            debug if isinstance(debug, Debug) and debug.node == name else None,
            hide_gpus=self.options.hide_gpus,
        )
        self.session.callback(process.destroy)
        self.made.append(process)
        return process

    def _launcher_fds(self) -> Iterator[int]:
        """Yields the launcher's descriptors at the time of a fork."""
        yield from self.session.signals.fds()
        yield from self.session.journal.fds()
        yield from self.endpoints.fds()
        yield self.session.supervisor.selector.fileno()  # type: ignore[attr-defined]
        for process in self.made:
            yield from process.fds()
