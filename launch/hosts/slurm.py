"""Slurm: the hosts of the job that this process runs in, steps on them, and submitting a job."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from distrl.errors import ConfigError
from distrl.launch.paths import ROOT
from distrl.launch.run_dir.run_dir import SUBMITTED
from distrl.programs.placement import Host

SBATCH = (
    "sbatch", "--parsable", "--requeue", "--open-mode=append", "--export=ALL",
    "--signal=B:USR1@120",
)  # fmt: skip
_COMMAND_S = 60.0
_CPUS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def in_job(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a job."""
    return "SLURM_JOB_ID" in environ


def hosts(environ: Mapping[str, str] = os.environ) -> tuple[Host, ...]:
    """The job's nodes in their order, those of the first het group first, the learner's first.

    Raises:
      ConfigError: Slurm does not tell.
    """
    found: list[Host] = []
    for suffix in _groups(environ):
        cpus = _per_node(environ.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", ""))
        gpus = _gpus(environ, suffix)
        for index, name in enumerate(_names(environ[f"SLURM_JOB_NODELIST{suffix}"])):
            cores = cpus[index] if index < len(cpus) else 0
            found.append(Host(name, cores=cores, gpus=gpus))
    return tuple(found)


def step(host: Host, options: Sequence[str], agent: Sequence[str]) -> list[str]:
    """The command that runs an agent as a step of this job.

    Args:
      host: of the job.
      options: of srun.
      agent: the agent's command.
    """
    group = next(
        (
            [f"--het-group={suffix.rpartition('_')[2]}"]
            for suffix in _groups(os.environ)
            if suffix and host.name in _names(os.environ[f"SLURM_JOB_NODELIST{suffix}"])
        ),
        [],
    )
    return [
        "srun", *group, "--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap",
        "--quiet", "--unbuffered", *options, *agent,
    ]  # fmt: skip


def script(command: Sequence[str], folder: Path) -> str:
    """A batch script that runs a command, and has Slurm run it again when the job's time is over.

    Args:
      command: that ends with status 143 on SIGTERM, and goes on where it was when run again.
      folder: in which it runs.
    """
    return f"""#!/bin/bash
trap 'over=yes; kill -TERM $launcher' USR1  # two minutes are left: it stops in order, and saves
trap : TERM                                 # which the launcher gets, too: wait for it
cd {shlex.quote(str(folder))}
{shlex.join(command)} &
launcher=$!
while kill -0 $launcher 2> /dev/null; do wait $launcher; done  # a signal ends a wait
wait $launcher
code=$?
[ $code = 143 ] && [ "$over" ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
"""


def submit(arguments: Sequence[str], run_dir: Path, options: Sequence[str]) -> str:
    """Submits a job that runs this command.

    It runs again, and resumes, when its time was over, when a node was lost, and when Slurm took
    the nodes away.

    Args:
      arguments: of `distrl train`, with the run's folder.
      run_dir: of the run, where the job's own output goes.
      options: of sbatch: `--nodes=3 --gpus-per-node=1`, or `--nodes=1 --gpus=1 : --nodes=4`.

    Returns:
      The job's id.

    Raises:
      ConfigError: Slurm does not take it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path, log = (run_dir / name for name in SUBMITTED)
    python = ["env", f"PYTHONPATH={ROOT}", sys.executable]
    path.write_text(script([*python, "-m", "distrl", "train", *arguments], Path.cwd()))
    return _run([*SBATCH, f"--output={log}", *options, str(path)]).strip().partition(";")[0]


def _groups(environ: Mapping[str, str]) -> list[str]:
    """Suffixes of the job's variables: one for each het group, or "" alone."""
    found = [
        name.removeprefix("SLURM_JOB_NODELIST")
        for name in environ
        if re.fullmatch(r"SLURM_JOB_NODELIST_HET_GROUP_\d+", name)
    ]
    if found:
        return sorted(found, key=lambda suffix: int(suffix.rpartition("_")[2]))
    if "SLURM_JOB_NODELIST" not in environ:
        raise ConfigError(
            "--launcher=slurm: this process runs in no Slurm job; say what to submit, as in "
            "--slurm='--nodes=3', or name --hosts"
        )
    return [""]


def _names(nodes: str) -> list[str]:
    return _run(["scontrol", "show", "hostnames", nodes]).split()


def _per_node(text: str) -> list[int]:
    """ "4(x2),8" as [4, 4, 8]."""
    return [int(n) for n, times in _CPUS.findall(text) for _ in range(int(times or 1))]


def _gpus(environ: Mapping[str, str], suffix: str) -> int:
    """Of each node: the number of GPUs, which Slurm tells as one, or as their numbers."""
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if not suffix and count.isdecimal():
        return int(count)
    return len([gpu for gpu in environ.get(f"SLURM_JOB_GPUS{suffix}", "").split(",") if gpu])


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ConfigError(f"--launcher=slurm: there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"Slurm: {command[0]} did not answer in {_COMMAND_S:g} s") from None
    if done.returncode:
        raise ConfigError(f"Slurm: {command[0]}: {done.stderr.strip()}")
    return done.stdout
