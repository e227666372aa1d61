"""Runs a program on several hosts: a daemon on each, one supervisor here."""

import base64
import functools
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.hosts.code_identity import identity
from distrl.launch.hosts.goodbye import say_goodbye
from distrl.launch.hosts.join_server import JoinServer
from distrl.launch.hosts.remote_host import HostState, RemoteHost, check_refused
from distrl.launch.hosts.remote_node import RemoteHeartbeat, SupervisedRemoteNode
from distrl.launch.network.credentials import Credentials, make_credentials
from distrl.launch.network.sealing import seal
from distrl.launch.supervision.launch_options import LaunchOptions
from distrl.launch.supervision.result import FINAL, Result
from distrl.launch.supervision.session import Session, check_options
from distrl.launch.supervision.signals import run_once
from distrl.programs.groups import group_of
from distrl.programs.placement import Host, Placement
from distrl.programs.substrate import AnyProgram, of_program
from distrl.runtime.heartbeat import HeartbeatTable
from distrl.saved.by_value import dumps

JOIN_S = 120.0  # for all hosts to join
BUILD_S = 600.0  # in addition, for daemons that send signs of life to import and build the program


def launch_on_machines(
    program: AnyProgram,
    experiment: Experiment,
    placement: Placement,
    connect: Callable[[Host], Sequence[str]],
    options: LaunchOptions,
    *,
    tunnel_port: int = 0,
    join_port: int = 0,
    credentials: Credentials | None = None,
    join_timeout: float = JOIN_S,
    keep_daemons: bool = False,
    lost: Callable[[], str | None] = lambda: None,
) -> Result:
    """Runs the program until it ends, and leaves nothing of it behind on any host.

    Works like `distrl.launch.local.launch.launch`, except that a lost host takes its nodes with it.
    Nodes of restartable groups are restarted when the host is back, and the program runs without
    them until then; losing the learner's host ends the program.

    Args:
      program: a program from `distrl.programs.multi_machine`, not launched before.
      experiment: the program's experiment, which says what each group gets of a host.
      placement: the host of each node.
      connect: returns the command that connects to a host's daemon, see
        `distrl.launch.hosts.ssh`; an empty command: the daemon connects to `join_port`.
      options: the launch's options. `run_dir`, which is absolute, is here for logs, `status.json`
        and `result.json`, and on the learner's host for what the nodes write.
      tunnel_port: port on which each host listens for the others; 0: any port that is free there.
      join_port: port on which the launcher listens for daemons; 0: it does not.
      credentials: the credentials of daemons that connect by themselves; None: new ones.
      join_timeout: seconds for all hosts to join, in any order; those that have joined may take
        `BUILD_S` longer to import and build the program.
      keep_daemons: where the same command would resume, as after a signal or the loss of a host,
        daemons that connect by themselves wait for the next launcher.
      lost: returns why no host can be reached any more, None while they can; called each second.

    Raises:
      ConfigError: an argument that cannot work; a host that does not join, or runs other code.
    """
    check_options(program, options)
    with Session(program, options) as session:
        log_names = [f"host-{host.name}" for host in placement.used]
        session.journal.note(
            f"launching {program.name!r} on {', '.join(log_names)}, {len(session.nodes)} nodes on "
            f"{of_program(program)}"
        )
        credentials = credentials or make_credentials()
        hosts: list[RemoteHost] = []
        if join_port:
            names = [host.name for host in placement.hosts]
            join_server = JoinServer(session, names, hosts, credentials, join_port)
            session.callback(join_server.close)
            session.ticks.append(join_server.tick)
            lost = functools.partial(_first_reason, [join_server.lost, lost])
            session.journal.say(f"waiting for the hosts' daemons on port {join_port}")

        def begin(host: Host) -> dict[str, Any]:
            payload = _payload(program, experiment, placement, host, options.run_dir)
            return {"payload": payload, "tunnel_port": tunnel_port}

        logs = options.run_dir / "logs"
        session.callback(say_goodbye, session, hosts)
        _add_hosts(session, hosts, placement, connect, begin, credentials, logs)
        nodes = _make_nodes(session, hosts, placement, options)
        result = _wait_for_hosts(session, hosts, time.monotonic() + join_timeout, lost)
        if result is None:
            session.ticks.append(functools.partial(_fail_if_lost, session, lost))
            result = session.run(nodes)
        else:
            result = result.write(options.run_dir)
            session.journal.say(
                f"{result.status}: {result.reason} (exit status {result.exit_code})"
            )
        _keep(hosts, keep_daemons, result)
        return result


def _add_hosts(
    session: Session,
    hosts: list[RemoteHost],
    placement: Placement,
    connect: Callable[[Host], Sequence[str]],
    begin: Callable[[Host], dict[str, Any]],
    credentials: Credentials,
    logs: Path,
) -> None:
    """Adds the hosts that have nodes to `hosts`; each is reached from the session's next tick on.

    Args:
      begin: returns the fields of the first message to a host's daemon.
      logs: the folder of logs.
    """
    launcher_identity = identity()
    for host in placement.used:
        remote_host = RemoteHost(
            host,
            connect(host),
            placement.on(host.name),
            session,
            begin(host),
            functools.partial(seal, credentials),
            launcher_identity,
            functools.partial(_wire_hosts, hosts),
            logs / f"host-{host.name}.log",
        )
        hosts.append(remote_host)
        session.ticks.append(remote_host.tick)


def _first_reason(lost: Sequence[Callable[[], str | None]]) -> str | None:
    """Returns the first reason for which no host can be reached any more; None: there is none."""
    return next((reason for each in lost if (reason := each()) is not None), None)


def _fail_if_lost(session: Session, lost: Callable[[], str | None]) -> None:
    """Ends the program where no host can be reached any more."""
    reason = lost()
    if reason is not None:
        session.supervisor.fail(reason)


def _keep(hosts: Sequence[RemoteHost], keep_daemons: bool, result: Result) -> None:
    """Makes the hosts' daemons wait for the next launcher, if they are kept and one may come."""
    for host in hosts:
        host.kept = keep_daemons and result.exit_code not in FINAL


def _payload(
    program: AnyProgram,
    experiment: Experiment,
    placement: Placement,
    host: Host,
    run_dir: Path,
) -> str:
    """Returns what a host's daemon builds its part of the program from, as text."""
    has_gpus = host is placement.hosts[0]  # only the learner's host needs them
    topology = "light_env" if "inferencer" in program.groups else "heavy_env"
    payload = dumps((program, experiment, topology, has_gpus, str(run_dir)))
    return base64.b64encode(payload).decode()


def _make_nodes(
    session: Session,
    hosts: Sequence[RemoteHost],
    placement: Placement,
    options: LaunchOptions,
) -> dict[str, SupervisedRemoteNode]:
    """Returns the supervisor's view of each node, by name."""
    heartbeats = HeartbeatTable([node.name for node in session.nodes])

    def tell_all(name: str) -> None:
        for host in hosts:
            host.send_status([name])

    by_name = {host.host.name: host for host in hosts}
    nodes = {}
    for program_node in session.nodes:
        host = by_name[placement.nodes[program_node.name]]
        node = SupervisedRemoteNode(
            program_node.name,
            program_node.label,
            session.logs[program_node.name],
            RemoteHeartbeat(heartbeats, program_node.name, tell_all),
            options.restart_policy(program_node.label),
            host.host.name,
            host.send,
        )
        # The learner's host also has the monitor; a replay's shard exists once.
        node.essential = host.host is placement.hosts[0] or group_of(program_node.label).keeps_data
        host.nodes[program_node.name] = node
        nodes[program_node.name] = node
    for host in hosts:
        host.heartbeats = {name: node.heartbeat for name, node in nodes.items()}
        host.essential = {name for name, node in nodes.items() if node.essential}
    return nodes


def _wire_hosts(hosts: Sequence[RemoteHost]) -> None:
    """Sends addresses to the hosts once those of all are known, and again when some are new."""
    if not all(each.ports for each in hosts):
        return
    for ready in [each for each in hosts if each.state in (HostState.READY, HostState.UP)]:
        remote_addresses = {
            name: [(other.address, other.tunnel_port, port) for port in ports]
            for other in hosts
            if other is not ready
            for name, ports in other.ports.items()
        }
        ready.wire(remote_addresses)


def _wait_for_hosts(
    session: Session,
    hosts: Sequence[RemoteHost],
    deadline: float,
    lost: Callable[[], str | None] = lambda: None,
) -> Result | None:
    """Waits until all hosts are up; returns a result if a signal arrives before that."""
    while not all(host.state is HostState.UP for host in hosts):
        session.tick()
        wait = functools.partial(run_once, session.supervisor.selector, 0.2)
        session.housekeeping.attempt("waiting for events", wait)
        for number in session.signals.pending():
            if number != signal.SIGCHLD:
                name = signal.Signals(number).name
                reason = f"{name} while waiting for the hosts"
                return Result("stopped", reason, 128 + number, {})
        check_refused(hosts)
        if (why_lost := lost()) is not None:
            raise ConfigError(why_lost)
        if time.monotonic() > deadline:
            late = [host for host in hosts if host.state is not HostState.UP]
            absent = any(host.state is HostState.AWAY or host.unreachable for host in late)
            if late and (absent or time.monotonic() > deadline + BUILD_S):
                reasons = "; ".join(f"{host.host.name}: {host.why_late()}" for host in late)
                raise ConfigError(
                    f"not all hosts joined in time: {reasons}; --join_wait gives them longer"
                )
        session.journal.flush()
    return None
