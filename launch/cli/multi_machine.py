"""`distrl train --topology=multi_machine`: how the hosts' daemons are started."""

import contextlib
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from distrl.checkpointing.resume_point import ResumePoint
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.cli.load_experiment import experiment_modules
from distrl.launch.cli.manifests import write_manifests
from distrl.launch.cli.train_flags import without_flags
from distrl.launch.hosts import command_lines, ray_cluster, ray_resources, slurm
from distrl.launch.launch_types import LOCAL_MP
from distrl.launch.run_dir.folder import folder_of_flag
from distrl.launch.run_dir.run_dir import new_path
from distrl.programs.groups import num_gpus_by_node
from distrl.programs.placement import Host, Placement, check_addresses, parse_hosts, place
from distrl.runtime.durations import check_duration
from distrl.runtime.working_folder import absolute

# Flags of `distrl train` that do not go into the command lines of the hosts' launcher. Those of a
# file are in the command's words already, and it may have some of these.
_LOCAL_FLAGS = (
    "run_dir", "slurm", "launcher", "image", "name", "storage", "join_port", "join_address",
    "credentials", "config_file",
)  # fmt: skip


def prepare(
    experiment: Experiment,
    substrate: str,
    arguments: Sequence[str],
    values: Any,
    say: Callable[[str], None],
    loaded: bool,
) -> tuple[Experiment, Placement] | None:
    """Prepares a program on several machines.

    Args:
      experiment: the user's experiment.
      substrate: what the program's nodes are made of.
      arguments: the command and its flags.
      values: the flags' values.
      say: called with lines for the user.
      loaded: whether the experiment was made in Python, and no flag names it.

    Returns:
      The experiment with a replay that other machines reach, and the placement of its nodes. None
      where this command starts nothing: it has submitted a job, or written what the user runs.

    Raises:
      ConfigError: flags that cannot work.
    """
    if values.debug is not None or values.lp_launch_type != LOCAL_MP:
        raise ConfigError(
            "multi_machine: nodes are processes on other hosts; debug on one machine, with "
            "--topology=heavy_env or light_env"
        )
    if loaded and _starts_elsewhere(values.launcher):
        raise ConfigError(
            f"--launcher={values.launcher}: the program is started by a command line, which cannot "
            "name an Experiment or callbacks of a Python program: put them in a file, and run "
            "`distrl train --experiment=FILE.py`"
        )
    check_duration("--join_wait", values.join_wait, zero=True, none="or None")
    check_duration("--ray_wait", values.ray_wait, zero=True)
    if values.launcher == "join":
        _check_credentials(values.credentials)
    from distrl.programs.multi_machine import over_network

    experiment = over_network(experiment, substrate)
    for module in experiment_modules():  # the hosts may lack the user's files
        cloudpickle.register_pickle_by_value(module)
    cluster = None
    if values.launcher == "ray":
        cluster = ray_cluster.cluster_address(values.ray)
    if values.launcher == "slurm" and not slurm.in_job():
        if values.hosts is not None:
            placed = place(experiment, parse_hosts(values.hosts), values.light)
            check_addresses(placed)  # refused here, not there
        _submit(experiment, arguments, values, say)
        return None
    if values.hosts is not None:
        hosts = parse_hosts(values.hosts)
    elif values.launcher == "slurm":
        hosts = slurm.hosts()
    elif cluster is not None:
        hosts = ray_resources.hosts_of(ray_cluster.cluster_nodes(cluster))
    else:
        raise ConfigError("multi_machine: name the machines, the learner's first: --hosts=h1,h2,h3")
    placement = place(experiment, hosts, values.light)
    if values.launcher not in ("ray", "kubernetes"):  # they give each host its address
        check_addresses(placement)
    say(placement.table(num_gpus_by_node(experiment, values.light)))
    write = _WRITERS.get(values.launcher)
    if write is None:
        return experiment, placement
    plain = without_flags(arguments[1:], _LOCAL_FLAGS, values)
    write(experiment, placement, plain, values, say)
    return None


def run_on_hosts(
    experiment: Experiment,
    placement: Placement,
    substrate: str,
    run_dir: Path,
    start: ResumePoint,
    values: Any,
) -> int:
    """Runs the program until it ends.

    Args:
      experiment, placement: from `prepare`.
      substrate: what the program's nodes are made of.
      run_dir: the run folder, absolute.
      start: the checkpoint to resume from.
      values: the flags' values.

    Returns:
      The exit status.
    """
    from distrl.launch.hosts import ssh
    from distrl.launch.hosts.launch import launch_on_machines
    from distrl.launch.launcher import launch_options
    from distrl.launch.network.credentials import read_credentials
    from distrl.programs.multi_machine import multi_machine

    daemon = ssh.daemon_command(
        values.remote_python or sys.executable, Path(values.remote_folder or ssh.ROOT)
    )
    joined = values.launcher == "join"

    def connect(host: Host) -> list[str]:
        if joined:
            return []
        if values.launcher == "slurm":
            return slurm.step(host, (), daemon)
        return ssh.ssh(host, shlex.split(values.ssh), daemon)

    program = multi_machine(
        experiment, str(run_dir), start, placement=placement, substrate=substrate
    )
    options = launch_options(program, experiment, run_dir, values.terminal, saves=False)
    joining: dict[str, Any] = {"tunnel_port": values.tunnel_port}
    if values.join_wait is not None:
        joining["join_timeout"] = values.join_wait
    if joined:
        joining["join_port"] = values.join_port
        joining["keep_daemons"] = values.keep_daemons
        joining["credentials"] = read_credentials(values.credentials)
    with contextlib.ExitStack() as stack:
        if values.launcher == "ray":
            address = ray_cluster.cluster_address(values.ray)
            cluster = stack.enter_context(
                ray_cluster.hosts_on_cluster(address, placement.used, daemon, values.ray_wait)
            )
            connect, joining["lost"] = cluster.connect, cluster.lost
        result = launch_on_machines(program, experiment, placement, connect, options, **joining)
        return result.exit_code


def _starts_elsewhere(launcher: str) -> bool:
    """Returns whether another command than this one runs the program."""
    return launcher in _WRITERS or (launcher == "slurm" and not slurm.in_job())


def _check_credentials(path: str | None) -> None:
    """Raises ConfigError if the daemons could not be let in, before a run folder is made."""
    from distrl.launch.network.credentials import read_credentials

    if path is None:
        raise ConfigError("--launcher=join: give --credentials=FILE; --launcher=commands makes one")
    read_credentials(path)


def _submit(
    experiment: Experiment, arguments: Sequence[str], values: Any, say: Callable[[str], None]
) -> None:
    """Submits this command as a Slurm job; its run folder is chosen now, so that it can resume."""
    if not values.slurm:
        raise ConfigError(
            "--launcher=slurm: not in a Slurm job; submit one with --slurm='--nodes=3 --exclusive'"
        )
    run_dir = _run_dir(experiment, values)
    plain = without_flags(arguments[1:], ("run_dir", "slurm", "config_file"), values)
    job = slurm.submit([*plain, f"--run_dir={run_dir}"], run_dir, shlex.split(values.slurm))
    say(f"distrl: submitted job {job}; everything is written to {run_dir}, its output to slurm.log")


def _write_commands(
    experiment: Experiment,
    placement: Placement,
    arguments: list[str],
    values: Any,
    say: Callable[[str], None],
) -> None:
    """Prints the command line of each host, and writes the credentials."""
    from distrl.launch.network.credentials import make_credentials, write_credentials

    run_dir = _run_dir(experiment, values)
    path = absolute(values.credentials or f"{run_dir}.pem")
    write_credentials(path, make_credentials())
    address = values.join_address or socket.gethostname()
    command = [
        "distrl", "train", *arguments, "--launcher=join", f"--join_port={values.join_port}",
        f"--credentials={path}", f"--run_dir={run_dir}",
    ]  # fmt: skip
    say(command_lines.sheet(placement, command, f"{address}:{values.join_port}", str(path)))


def _run_dir(experiment: Experiment, values: Any) -> Path:
    if values.run_dir is not None:
        return folder_of_flag(values.run_dir)
    return new_path(experiment, "multi_machine")


_WRITERS = {"commands": _write_commands, "kubernetes": write_manifests}
"""What writes the command that the user runs, by launcher."""
