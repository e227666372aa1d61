"""The command lines of a program over several machines, for engines that have no launcher here.

Each runs anywhere that its host's shell does: by hand, in a tmux, from Nomad, under mpirun. No line
has a secret: the credentials are a file that every host must have.
"""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrl.programs.placement import Host, Placement

AGENT = ("distrl", "agent")
# One agent a host. Left alone, mpirun would bind it, and all nodes that it starts, to one core, and
# end all hosts when one fails.
_MPIRUN = (
    "mpirun", "--map-by", "ppr:1:node", "--bind-to", "none",
    "--mca", "orte_abort_on_non_zero_status", "0", "-x", "PATH",
)  # fmt: skip


def command_lines(
    placement: "Placement",
    command: Sequence[str],
    join_address: str,
    credentials_file: str,
    agent: Sequence[str] = AGENT,
) -> list[str]:
    """What to run: the launcher's line, then one for each host, in any order.

    Args:
      placement: its hosts.
      command: of the launcher, words as for a process.
      join_address: HOST:PORT of the launcher, as the hosts reach it.
      credentials_file: path of the run's credentials, on every host.
      agent: what runs an agent on a host.

    Returns:
      Lines for a POSIX shell.
    """
    joins = [
        [*_agent(agent, join_address, credentials_file), f"--name={host.name}"]
        for host in placement.hosts
    ]
    return [shlex.join(words) for words in [list(command), *joins]]


def mpirun_line(
    placement: "Placement",
    join_address: str,
    credentials_file: str,
    agent: Sequence[str] = AGENT,
) -> str:
    """The line that has mpirun (Open MPI 4 or newer) start the agents of all hosts, in their order.

    Args: see `command_lines`. An agent knows its host by its rank.
    """
    hosts = ",".join(host.name for host in placement.hosts)
    return shlex.join([*_MPIRUN, "--host", hosts, *_agent(agent, join_address, credentials_file)])


def sheet(
    placement: "Placement",
    command: Sequence[str],
    join_address: str,
    credentials_file: str,
    agent: Sequence[str] = AGENT,
) -> str:
    """All of it for the user, as a shell script of which each line is run where its comment says.

    Args: see `command_lines`.
    """
    launcher, *agents = command_lines(placement, command, join_address, credentials_file, agent)
    lines = [
        f"# Every host needs {credentials_file}, for nobody else to read, and the same distrl.",
        "",
        f"# The launcher, at {join_address}:",
        launcher,
    ]
    for host, line in zip(placement.hosts, agents, strict=True):
        lines += ["", f"# On {host.name}{_nodes(placement, host)}:", line]
    mpirun = mpirun_line(placement, join_address, credentials_file, agent)
    lines += ["", "# Or, instead of one on each host, by MPI:", f"# {mpirun}"]
    return "\n".join(lines) + "\n"


def _agent(agent: Sequence[str], join_address: str, credentials_file: str) -> list[str]:
    return [*agent, f"--join={join_address}", f"--credentials={credentials_file}"]


def _nodes(placement: "Placement", host: "Host") -> str:
    """What runs there."""
    nodes = [node for node, its in placement.nodes.items() if its == host.name]
    return f" ({', '.join(nodes)})" if nodes else ""
