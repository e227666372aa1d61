"""Runs a Launchpad program on several machines: an agent on each, one supervisor here."""

import base64
import dataclasses
import functools
import os
import pathlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import cloudpickle
import launchpad as lp

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.hosts.code_identity import identity
from distrl.launch.hosts.join_server import JoinServer
from distrl.launch.hosts.remote_host import (
    RemoteHeartbeat,
    RemoteHost,
    State,
    SupervisedRemoteNode,
    check_refused,
)
from distrl.launch.network.tunnel import Credentials, make_credentials
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.session import Session, check_groups
from distrl.launch.supervision.signals import run_once
from distrl.programs.placement import Host, Placement
from distrl.runtime.heartbeat import Heartbeat, HeartbeatTable

COME_S = 120.0  # for all hosts to come


def launch_on_machines(
    program: lp.Program,
    experiment: Experiment,
    placement: Placement,
    connect: Callable[[Host], Sequence[str]],
    *,
    run_dir: str | os.PathLike[str],
    terminal: str = "current_terminal",
    stop_grace: Mapping[str, float] | None = None,
    restart_policies: Mapping[str, RestartPolicy] | None = None,
    limits: HangLimits | None = None,
    active: Mapping[str, int] | None = None,
    tunnel_port: int = 0,
    join_port: int = 0,
    credentials: Credentials | None = None,
    come_within: float = COME_S,
) -> Result:
    """Runs the program until it ends, and leaves nothing of it behind on any host.

    As `distrl.launch.local.launch.launch`; what differs: a host that is lost takes its nodes with
    it. Those of groups with a restart policy are done without until it is back; a lost host of the
    learner ends the program.

    Args:
      program: that `distrl.programs.multi_machine` made; not launched before.
      experiment: of it, for what each group gets of a host.
      placement: of its nodes.
      connect: from a host to the command that connects to its agent, see `distrl.launch.hosts.ssh`;
        none: the agents come by themselves, to `join_port`.
      run_dir: here for logs, `status.json` and `result.json`, and on the learner's host for what
        the nodes write.
      tunnel_port: on which each host listens for the others; 0: any that is free there.
      join_port: on which the launcher listens for agents; 0: it does not.
      credentials: that agents which come by themselves have; None: new ones.
      come_within: seconds for all hosts to come, in any order.

    Raises:
      ConfigError: an argument that cannot work; a host that does not come, or runs other code.
    """
    check_groups(program, "restart_policies", restart_policies or {})
    run_dir = pathlib.Path(run_dir).absolute()
    logs = [f"host-{host.name}" for host in placement.hosts]
    with Session(program, run_dir, terminal, limits, stop_grace) as session:
        session.journal.note(f"launches {program.name!r} on {', '.join(logs)}")
        heartbeats = HeartbeatTable([node.name for node in session.nodes])
        credentials = credentials or make_credentials()
        machines: list[RemoteHost] = []
        if join_port:
            joining = JoinServer(session, machines, credentials, join_port)
            session.callback(joining.close)
            session.ticks.append(joining.tick)
            session.journal.say(f"waits for the hosts' agents on port {join_port}")
        policies = dict(restart_policies or {})
        ours = identity()
        first = placement.hosts[0]
        for host in placement.hosts:
            own = placement.on(host.name)
            if not own:
                continue
            payload: tuple[object, ...] = (
                program,
                experiment if host is first else _without_gpus(experiment),
                "light_env" if "inferencer" in program.groups else "heavy_env",
                str(run_dir),
                (credentials.certificate, credentials.key),
            )
            begin = {
                "payload": base64.b64encode(cloudpickle.dumps(payload)).decode(),
                "tunnel_port": tunnel_port,
            }
            machine = RemoteHost(
                host,
                connect(host),
                own,
                session,
                begin,
                ours,
                functools.partial(_on_ready, machines),
                run_dir / "logs" / f"host-{host.name}.log",
            )
            machines.append(machine)
            session.callback(machine.close)
            session.ticks.append(machine.tick)

        def changed(name: str, heartbeat: Heartbeat) -> None:
            for machine in machines:
                machine.send("seats", heartbeats={name: [heartbeat.status, heartbeat.life]})

        by_name = {machine.host.name: machine for machine in machines}
        workers = {}
        for node in session.nodes:
            its = by_name[placement.nodes[node.name]]
            worker = SupervisedRemoteNode(
                node.name,
                node.label,
                session.logs[node.name],
                RemoteHeartbeat(heartbeats, node.name, changed),
                policies.get(node.label, RestartPolicy()),
                its,
            )
            # It has learner and monitor, or a part of the replay.
            worker.essential = its.host is first or node.label == "replay"
            workers[node.name] = worker
        ended = _gather(session, machines, time.monotonic() + come_within)
        if ended is not None:
            session.journal.say(f"{ended.status}: {ended.reason} (exit status {ended.exit_code})")
            ended.write(run_dir)
            return ended
        return session.run(workers, active)


def _without_gpus(experiment: Experiment) -> Experiment:
    learner = dataclasses.replace(experiment.learner, num_gpus=0)
    inference = dataclasses.replace(experiment.inference, num_gpus=0)
    return dataclasses.replace(experiment, learner=learner, inference=inference)


def _on_ready(machines: Sequence[RemoteHost], machine: RemoteHost) -> None:
    """Wires a host as soon as the addresses of all others are known."""
    if not all(each.ports for each in machines):
        return
    waiting = [each for each in machines if each.state is State.READY]
    for each in waiting:
        others = {
            name: [(other.host.reached_at, other.tunnel, port) for port in ports]
            for other in machines
            if other is not each
            for name, ports in other.ports.items()
        }
        each.wire(others)


def _gather(session: Session, machines: Sequence[RemoteHost], deadline: float) -> Result | None:
    """Waits until all hosts are up; a result, where a signal came first."""
    while not all(machine.state is State.UP for machine in machines):
        for tick in session.ticks:
            tick()
        run_once(session.supervisor.selector, 0.2)
        for number in session.signals.pending():
            if number != signal.SIGCHLD:
                name = signal.Signals(number).name
                reason = f"{name} while waiting for the hosts"
                return Result("stopped", reason, 128 + number, {})
        check_refused(machines)
        if time.monotonic() > deadline:
            late = [machine for machine in machines if machine.state is not State.UP]
            why = "; ".join(f"{m.host.name}: {m.why}{m.fails_with()}" for m in late)
            raise ConfigError(f"not all hosts came in time: {why}")
        session.journal.flush()
    return None
