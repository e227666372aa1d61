"""Starts a host's daemon by SSH: a command whose stdin and stdout are the connection to it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from distrl.launch.paths import ROOT, python_command, python_path
from distrl.programs.placement import Host

HERE = ("localhost", "127.0.0.1")
SSH = (
    "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=2",
    "-o", "ServerAliveCountMax=4",
)  # fmt: skip


def daemon_command(python: str = sys.executable, folder: Path = ROOT) -> list[str]:
    """Returns the command that runs a host daemon.

    Args:
      python: path of the Python interpreter on the host.
      folder: the project's folder on the host.
    """
    command = python_command("distrl.launch.hosts.daemon", python, folder)
    return ["env", python_path(folder), *command]


def ssh(host: Host, options: Sequence[str], daemon: Sequence[str]) -> list[str]:
    """Returns the command that runs a host's daemon by SSH, or directly where the host is this one.

    Args:
      host: the host to run it on.
      options: additional options of ssh, such as `-F FILE`.
      daemon: the command that runs the daemon.
    """
    if host.name in HERE or host.address in HERE:
        return list(daemon)
    program, *defaults = SSH  # if an option is given twice, ssh takes the first value
    return [program, *options, *defaults, host.name, shlex.join(daemon)]


def start(command: Sequence[str], errors: IO[bytes] | int) -> "subprocess.Popen[bytes]":
    """Starts a command whose pipes are the connection to a daemon.

    It ends when its stdin is closed. It has a session of its own, so that Ctrl-C does not reach it.

    Args:
      command: from `ssh`, or from `distrl.launch.hosts.slurm.step`.
      errors: file for its stderr, which is the daemon's too.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
