"""How a launcher starts the agent of a host: a command whose pipes are the connection."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from distrl.launch.paths import ROOT
from distrl.programs.placement import Host

HERE = ("localhost", "127.0.0.1")
SSH = (
    "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=2",
    "-o", "ServerAliveCountMax=4",
)  # fmt: skip


def agent_command(python: str = sys.executable, folder: Path = ROOT) -> list[str]:
    """What runs on the host: the agent, from the project's folder there."""
    return ["env", f"PYTHONPATH={folder}", python, "-m", "distrl.launch.hosts.daemon"]


def ssh(host: Host, options: Sequence[str], agent: Sequence[str]) -> list[str]:
    """By SSH with the user's own keys; without it where the host is this one.

    Args:
      host: where to.
      options: of ssh, as `-F FILE`.
      agent: the agent's command.
    """
    if host.name in HERE or host.address in HERE:
        return list(agent)
    return [*SSH, *options, host.name, shlex.join(agent)]


def start(command: Sequence[str], errors: IO[bytes] | int) -> "subprocess.Popen[bytes]":
    """The connection. It ends with its stdin, and has signals of its own (Ctrl-C is not for it).

    Args:
      command: of `ssh`, or of `distrl.launch.hosts.slurm.step`.
      errors: where its stderr goes, and the agent's.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
