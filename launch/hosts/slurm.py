"""Slurm: the hosts of this process's job, steps on them, and submitting a job."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.paths import python_command, python_path
from distrl.launch.run_dir.run_dir import SUBMITTED
from distrl.launch.supervision.result import EXIT_HOST_LOST
from distrl.programs.placement import Host
from distrl.runtime.files import make_private_folder
from distrl.runtime.working_folder import absolute

SBATCH = (
    "sbatch", "--parsable", "--requeue", "--open-mode=append", "--export=ALL",
    "--signal=B:USR1@120",
)  # fmt: skip
RESTARTS = 10  # restarts of a job, for whatever reason, after which a lost host ends it
# What srun would add for a step where the job asked for it by task, or for GPUs by node: fewer
# cores and GPUs than the host has, or a named type of GPU, which then refuses the step. Slurm 23.02
# and later have SLURM_TRES_PER_TASK.
_PER_TASK = ("SLURM_GPUS_PER_", "SLURM_TRES_", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK")
_COMMAND_S = 60.0
_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_ALLOCATED = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)")
_GPUS = re.compile(r"\bgpu:(?:[^:,(]+:)?(\d+)")


def in_job(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process runs in a Slurm job."""
    return "SLURM_JOB_NODELIST" in environ


def hosts(environ: Mapping[str, str] = os.environ) -> tuple[Host, ...]:
    """Returns the nodes of this process's job in Slurm's order, by het group.

    Raises:
      ConfigError: Slurm does not answer.
    """
    job_hosts: list[Host] = []
    for suffix in _groups(environ):
        cpus = _per_node(environ.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", ""))
        gpus = _gpus(environ[f"SLURM_JOB_ID{suffix}"])
        for index, name in enumerate(_names(environ[f"SLURM_JOB_NODELIST{suffix}"])):
            cores = cpus[index] if index < len(cpus) else 0
            job_hosts.append(Host(name, cores=cores, gpus=gpus.get(name, 0)))
    return tuple(job_hosts)


def step(host: Host, options: Sequence[str], daemon: Sequence[str]) -> list[str]:
    """Returns the command that runs a host's daemon as a step of this job.

    The step has the host's GPUs, and all cores that the job has there.

    Args:
      host: a host of the job.
      options: additional options of srun.
      daemon: the command that runs the daemon.
    """
    suffix = next(
        (
            suffix
            for suffix in _groups(os.environ)
            if suffix and host.name in _names(os.environ[f"SLURM_JOB_NODELIST{suffix}"])
        ),
        "",
    )
    group = [f"--het-group={suffix.rpartition('_')[2]}"] if suffix else []
    # By default, a step asks for the GPUs of the whole job, of one task, or none. Where the job
    # has a number for all nodes, and only there, Slurm refuses a step with a number per node.
    if not host.gpus:
        gpus = "--gres=none"
    elif f"SLURM_GPUS{suffix}" in os.environ:
        gpus = f"--gpus={host.gpus}"
    else:
        gpus = f"--gres=gpu:{host.gpus}"
    asked = [f"--unset={name}" for name in os.environ if name.startswith(_PER_TASK)]
    # A session of srun would pass on its own binding, and some clusters bind a task to one core.
    return [
        "env", *asked, "srun", *group, "--nodes=1", "--ntasks=1", f"--nodelist={host.name}",
        gpus, "--cpu-bind=none", "--overlap", "--quiet", "--unbuffered", *options, *daemon,
    ]  # fmt: skip


def script(command: Sequence[str], folder: Path) -> str:
    """Returns a batch script that runs a command, and requeues the job when its time is over.

    It also requeues the job when the command has lost a host, as when a step fails on a node that
    does not; but only `RESTARTS` times, as that may happen each time.

    Args:
      command: the command. On SIGTERM it must end with status 143, if it has lost a host with 75,
        and when it is run again it must resume.
      folder: the folder to run it in.
    """
    return f"""#!/bin/bash
trap 'over=yes; kill -TERM $launcher' USR1  # two minutes are left: the launcher saves and stops
again= over= unasked=yes
trap 'unasked=' TERM                        # the launcher gets it too: wait for it
cd {shlex.quote(str(folder))}
{shlex.join(command)} &
launcher=$!
while kill -0 $launcher 2> /dev/null; do wait $launcher; done  # a signal ends a wait
wait $launcher
code=$?
[ $code = 143 ] && again=$over
[ $code = {EXIT_HOST_LOST} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS} ] && again=$unasked
[ "$again" ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
"""


def submit(arguments: Sequence[str], run_dir: Path, options: Sequence[str]) -> str:
    """Submits a job that runs `distrl train`.

    Slurm requeues the job, which then resumes, when its time is over, when it loses a node, and
    when it is preempted.

    Args:
      arguments: arguments of `distrl train`, with the run folder.
      run_dir: the run folder, where the job's output goes too.
      options: options of sbatch, such as `--nodes=3 --exclusive`, or
        `--nodes=1 --gpus=1 --cpus-per-task=8 : --nodes=4 --cpus-per-task=32`.

    Returns:
      The job's id.

    Raises:
      ConfigError: Slurm refuses the job, or it is an array.
    """
    if any(re.match(r"-a|--ar", option) for option in options):
        raise ConfigError(
            "--slurm: the jobs of an --array would share one run folder; submit each by itself, "
            "with its own --run_dir"
        )
    make_private_folder(run_dir)
    path, log = (run_dir / name for name in SUBMITTED)
    command = ["env", python_path(), *python_command("distrl"), "train", *arguments]
    path.write_text(script(command, absolute(".")))
    output = str(log).replace("%", "%%")  # Slurm would put the job's id for %j
    return _run([*SBATCH, f"--output={output}", *options, str(path)]).strip().partition(";")[0]


def _groups(environ: Mapping[str, str]) -> list[str]:
    """Returns the suffixes of the job's variables: one for each het group, or "" alone."""
    suffixes = [
        name.removeprefix("SLURM_JOB_NODELIST")
        for name in environ
        if re.fullmatch(r"SLURM_JOB_NODELIST_HET_GROUP_\d+", name)
    ]
    if suffixes:
        return sorted(suffixes, key=lambda suffix: int(suffix.rpartition("_")[2]))
    return [""]


def _names(nodes: str) -> list[str]:
    return _run(["scontrol", "show", "hostnames", nodes]).split()


def _per_node(text: str) -> list[int]:
    """Returns [4, 4, 8] for "4(x2),8"."""
    return [int(n) for n, times in _CPUS.findall(text) for _ in range(int(times or 1))]


def _gpus(job: str) -> dict[str, int]:
    """Returns the GPUs of a job on each of its nodes.

    The job's environment has them for the first node only, or as they were asked for.
    """
    shown = _run(["scontrol", "--details", "--oneliner", "show", "job", job]).splitlines()
    return {
        name: sum(map(int, _GPUS.findall(resources)))
        for line in shown
        if line.startswith(f"JobId={job} ")  # and not another task of its array
        for nodes, resources in _ALLOCATED.findall(line)
        for name in _names(nodes)
    }


def _run(command: Sequence[str]) -> str:
    try:
        completed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(f"--launcher=slurm: {command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"Slurm: {command[0]} did not answer in {_COMMAND_S:g} s") from None
    if completed.returncode:
        raise ConfigError(f"Slurm: {command[0]}: {completed.stderr.strip()}")
    return completed.stdout
