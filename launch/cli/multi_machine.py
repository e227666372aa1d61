"""`distrl train --topology=multi_machine`: its flags, and who starts the agents of its hosts."""

import os
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from distrl.checkpointing.checkpointer import ResumePoint
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.hosts import kubernetes, manual, slurm
from distrl.launch.run_dir.run_dir import new_name
from distrl.programs.placement import Host, Placement, parse_hosts, place

LAUNCHERS = {
    "ssh": "this command, by SSH",
    "slurm": "this command, as steps of the job that it runs in; outside of one it submits one",
    "join": "others: they dial this command",
    "commands": "you: it prints the command lines, and ends",
    "kubernetes": "Kubernetes: it writes a file for kubectl, and ends",
}

flags.DEFINE_string(
    "hosts",
    None,
    "multi_machine: the machines, the learner's first: h1,h2:cores=8,h3:address=10.0.0.3 or @FILE "
    "with one a line; gpus=1 says how many one has, replay=1 that a shard of the replay is on it.",
)
flags.DEFINE_bool(
    "light",
    False,
    "multi_machine: actors ask inferencers on the learner's host, as in light_env; else they infer "
    "for themselves, as in heavy_env.",
)
flags.DEFINE_enum(
    "launcher",
    "ssh",
    list(LAUNCHERS),
    "multi_machine: who starts the hosts' agents. "
    + "; ".join(f"{name}: {what}" for name, what in LAUNCHERS.items()),
)
flags.DEFINE_string("ssh", "", "--launcher=ssh: options of ssh, as in --ssh='-F my_config'.")
flags.DEFINE_string(
    "slurm",
    "",
    "--launcher=slurm outside of a job: options of sbatch: --slurm='--nodes=3', or with a GPU for "
    "the learner --slurm='--nodes=1 --gpus=1 : --nodes=4'.",
)
flags.DEFINE_string("remote_python", None, "ssh, slurm: Python there; the same as here.")
flags.DEFINE_string("remote_folder", None, "ssh, slurm: the project's folder there; as here.")
flags.DEFINE_integer(
    "tunnel_port", 0, "multi_machine: the one port of each host; any that is free unless given."
)
flags.DEFINE_integer(
    "join_port", kubernetes.JOIN_PORT, "--launcher=join: where the hosts' agents dial this command."
)
flags.DEFINE_string("credentials", None, "--launcher=join: PEM file that the agents have too.")
flags.DEFINE_string(
    "join_address", None, "commands: by what the hosts reach the launcher; its host name."
)
flags.DEFINE_string("image", None, "kubernetes: the image that the project's Dockerfile makes.")
flags.DEFINE_string("name", None, "kubernetes: of the run, unique in its namespace.")
flags.DEFINE_string(
    "storage",
    None,
    "kubernetes: of run folders: claim:NAME, a PersistentVolumeClaim, or path:/FOLDER.",
)

_OTHERS_RUN = ("commands", "kubernetes")
_OWN = ("--run_dir", "--slurm", "--launcher", "--image", "--name", "--storage", "--join_", "--cred")


def prepare(
    experiment: Experiment,
    arguments: Sequence[str],
    values: Any,
    say: Callable[[str], None],
) -> tuple[Experiment, Placement] | None:
    """Checks what several machines need.

    Args:
      experiment: of the user.
      arguments: of the command.
      values: of the flags.
      say: takes lines for the user.

    Returns:
      The experiment over the network, and where its nodes run; None where others will run it, who
      have been told.

    Raises:
      ConfigError: what cannot work.
    """
    if values.debug is not None or values.lp_launch_type != "local_mp":
        raise ConfigError(
            "multi_machine: its nodes are processes on other hosts; debug on one machine, with "
            "--topology=heavy_env or light_env"
        )
    from distrl.programs.multi_machine import over_network

    experiment = over_network(experiment)
    if values.experiment is not None:  # a file of the user's, which the hosts need not have
        import cloudpickle

        cloudpickle.register_pickle_by_value(
            sys.modules[Path(values.experiment.partition(":")[0]).stem]
        )
    if values.launcher == "slurm" and values.hosts is None:
        if not slurm.in_job():
            _submit(experiment, arguments, values, say)
            return None
        hosts = slurm.hosts()
    elif values.hosts is None:
        raise ConfigError("multi_machine: name the machines, the learner's first: --hosts=h1,h2,h3")
    else:
        hosts = parse_hosts(values.hosts)
    placement = place(experiment, hosts, values.light)
    gpus = {"learner": experiment.learner.num_gpus, "inferencer": experiment.inference.num_gpus}
    say(placement.table(gpus))
    if values.launcher in _OTHERS_RUN:
        {"commands": _commands, "kubernetes": _kubernetes}[values.launcher](
            experiment, placement, [a for a in arguments[1:] if not a.startswith(_OWN)], values, say
        )
        return None
    return experiment, placement


def launch(
    experiment: Experiment,
    placement: Placement,
    run_dir: Path,
    start: ResumePoint,
    values: Any,
    say: Callable[[str], None],
) -> int:
    """Runs the program until it ends.

    Args:
      experiment, placement: of `prepare`.
      run_dir: of the run.
      start: from which checkpoint it goes on.
      values: of the flags.
      say: takes lines for the user.

    Returns:
      The exit status.
    """
    from distrl.launch.hosts import ssh
    from distrl.launch.hosts.join_server import read_credentials
    from distrl.launch.launcher import run_on_machines
    from distrl.programs.multi_machine import multi_machine

    agent = ssh.agent_command(
        values.remote_python or sys.executable, Path(values.remote_folder or ssh.ROOT)
    )
    joined = values.launcher == "join"
    if joined and values.credentials is None:
        raise ConfigError("--launcher=join: give --credentials=FILE, as --launcher=commands makes")

    def connect(host: Host) -> list[str]:
        if joined:
            return []
        if values.launcher == "slurm":
            return slurm.step(host, (), agent)
        return ssh.ssh(host, shlex.split(values.ssh), agent)

    run_dir = run_dir.absolute()
    program = multi_machine(experiment, str(run_dir), start, placement=placement)
    result = run_on_machines(
        program,
        experiment,
        placement,
        connect,
        run_dir,
        terminal=values.terminal,
        tunnel_port=values.tunnel_port,
        join_port=values.join_port if joined else 0,
        credentials=read_credentials(values.credentials) if joined else None,
    )
    return result.exit_code


def _submit(
    experiment: Experiment, arguments: Sequence[str], values: Any, say: Callable[[str], None]
) -> None:
    """Has Slurm run this command, in a folder that is known now, so that it can resume."""
    if not values.slurm:
        raise ConfigError(
            "--launcher=slurm: this process runs in no job; say what to submit: --slurm='--nodes=3'"
        )
    run_dir = _run_dir(experiment, values)
    plain = [a for a in arguments[1:] if not a.startswith(("--run_dir", "--slurm"))]
    job = slurm.submit([*plain, f"--run_dir={run_dir}"], run_dir, shlex.split(values.slurm))
    say(f"distrl: job {job}; everything is written to {run_dir}, its output to slurm.log there")


def _commands(
    experiment: Experiment,
    placement: Placement,
    arguments: list[str],
    values: Any,
    say: Callable[[str], None],
) -> None:
    """Prints what to run where, and writes the credentials."""
    from distrl.launch.hosts.join_server import write_credentials
    from distrl.launch.network.tunnel import make_credentials

    run_dir = _run_dir(experiment, values)
    path = Path(values.credentials or f"{run_dir}.pem").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_credentials(path, make_credentials())
    address = values.join_address or socket.gethostname()
    command = [
        "distrl", "train", *arguments, "--launcher=join", f"--join_port={values.join_port}",
        f"--credentials={path}", f"--run_dir={run_dir}",
    ]  # fmt: skip
    say(manual.sheet(placement, command, f"{address}:{values.join_port}", str(path)))


def _kubernetes(
    experiment: Experiment,
    placement: Placement,
    arguments: list[str],
    values: Any,
    say: Callable[[str], None],
) -> None:
    """Writes the file for kubectl."""
    from distrl.launch.network.tunnel import make_credentials

    for flag in ("image", "name", "storage"):
        if getattr(values, flag) is None:
            raise ConfigError(f"--launcher=kubernetes: give --{flag}; see docs/machines.md")
    tunnel_port = values.tunnel_port or kubernetes.TUNNEL_PORT
    hosts = ",".join(
        f"{host.name}:address={kubernetes.host_address(values.name, host.name)}:gpus={host.gpus}"
        f":cores={host.cores}:replay={host.replay}"
        for host in placement.hosts
    )
    plain = [a for a in arguments if not a.startswith(("--hosts", "--tunnel_port"))]
    command = [
        "distrl", "train", *plain,
        f"--hosts={hosts}", "--launcher=join", f"--join_port={values.join_port}",
        f"--tunnel_port={tunnel_port}", f"--credentials={kubernetes.CREDENTIALS}",
        f"--run_dir={kubernetes.RUNS}/{values.name}",
    ]  # fmt: skip
    credentials = make_credentials()
    documents = kubernetes.manifests(
        placement,
        command,
        values.image,
        values.name,
        (credentials.certificate, credentials.key),
        storage=values.storage,
        grace=experiment.checkpoint.grace + 30.0,
        tunnel_port=tunnel_port,
        join_port=values.join_port,
    )
    path = f"{values.name}.yaml"
    kubernetes.write(path, documents)
    say(f"distrl: wrote {path}: kubectl create -f {path}")


def _run_dir(experiment: Experiment, values: Any) -> Path:
    name = new_name(experiment, "multi_machine")
    return Path(os.path.abspath(values.run_dir or name))
