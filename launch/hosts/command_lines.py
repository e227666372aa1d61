"""Command lines of a program on several hosts, for users and schedulers that start them.

Each line runs in a shell of its host: by hand, in tmux, under Nomad or mpirun. No line contains a
secret: the credentials are in a file that every host must have.
"""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrl.programs.placement import Placement

DAEMON = ("distrl", "host-daemon")
# One daemon per host. By default, mpirun would bind it, with all nodes that it starts, to one core,
# and end all hosts when one fails.
_MPIRUN = (
    "mpirun", "--map-by", "ppr:1:node", "--bind-to", "none",
    "--mca", "orte_abort_on_non_zero_status", "0", "-x", "PATH",
)  # fmt: skip


def command_lines(
    placement: "Placement",
    command: Sequence[str],
    join_address: str,
    credentials_file: str,
    daemon: Sequence[str] = DAEMON,
) -> list[str]:
    """Returns the launcher's line, then one for each host that has nodes, in any order to start.

    Args:
      placement: the program's hosts.
      command: the launcher's command, as a list of words.
      join_address: HOST:PORT at which the hosts reach the launcher.
      credentials_file: path of the credentials, on every host.
      daemon: the command that runs a host's daemon.

    Returns:
      Lines for a POSIX shell.
    """
    joins = [
        [*_daemon(daemon, join_address, credentials_file), f"--name={host.name}"]
        for host in placement.used
    ]
    return [shlex.join(words) for words in [list(command), *joins]]


def mpirun_line(
    placement: "Placement",
    join_address: str,
    credentials_file: str,
    daemon: Sequence[str] = DAEMON,
) -> str:
    """Returns the line by which mpirun (Open MPI 4 or newer) starts the daemons of all hosts.

    A daemon finds out its host by its rank, so all hosts are there, those without nodes too.

    Args:
      placement, join_address, credentials_file, daemon: see `command_lines`.
    """
    hosts = ",".join(host.name for host in placement.hosts)
    return shlex.join([*_MPIRUN, "--host", hosts, *_daemon(daemon, join_address, credentials_file)])


def sheet(
    placement: "Placement",
    command: Sequence[str],
    join_address: str,
    credentials_file: str,
    daemon: Sequence[str] = DAEMON,
) -> str:
    """Returns all lines for the user, each with a comment that says where to run it.

    Args:
      placement, command, join_address, credentials_file, daemon: see `command_lines`.
    """
    launcher, *daemons = command_lines(placement, command, join_address, credentials_file, daemon)
    lines = [
        f"# Every host needs {credentials_file}, readable by you alone, and the same distrl.",
        "",
        f"# The launcher, at {join_address}:",
        launcher,
    ]
    for host, line in zip(placement.used, daemons, strict=True):
        lines += ["", f"# On {host.name} ({', '.join(placement.on(host.name))}):", line]
    mpirun = mpirun_line(placement, join_address, credentials_file, daemon)
    lines += ["", "# Or, instead of a line on each host, by MPI:", f"# {mpirun}"]
    return "\n".join(lines) + "\n"


def _daemon(daemon: Sequence[str], join_address: str, credentials_file: str) -> list[str]:
    return [*daemon, f"--join={join_address}", f"--credentials={credentials_file}"]
