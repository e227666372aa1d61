"""`distrl host-daemon --join=HOST:PORT`: this host's daemon, which connects to its launcher."""

import os
import shutil
import socket
import sys

from absl import flags

from distrl.errors import ConfigError
from distrl.launch.hosts.daemon import HostDaemon
from distrl.launch.hosts.join_client import dial
from distrl.launch.network.private_folder import new_folder
from distrl.launch.paths import python_command
from distrl.runtime.durations import check_duration

_WAIT_S = 600.0
# Set by programs that start one process per host: Open MPI, MPICH, Slurm, a Kubernetes indexed Job.
# In an allocation mpirun starts its own daemons by srun, so their processes have Slurm's number of
# such a daemon too; where srun itself sets PMI_RANK, it is SLURM_PROCID.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")


def host_daemon(arguments: list[str]) -> int:
    """Runs this host's nodes for a launcher; when the launcher is lost, waits for it again.

    Args:
      arguments: the command and its flags.

    Returns:
      The exit status. Once a launcher has answered, this function does not return: the process
      exits with status 0 when the program has ended.

    Raises:
      ConfigError, flags.Error: bad input, or no launcher in time.
    """
    values = _parse(arguments)
    rank = next((int(os.environ[n]) for n in _RANKS if os.environ.get(n, "").isdecimal()), None)
    folder = new_folder()
    try:
        connection, tunnel, token = dial(values.join, values.credentials, folder, values.wait)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    print(f"distrl host-daemon: connected to {values.join}", file=sys.stderr, flush=True)
    hello = {
        "name": values.name or (None if rank is not None else socket.gethostname()),
        "rank": rank,
        "token": token,
    }
    reconnect_command = [*python_command("distrl"), "host-daemon", *arguments[1:]]
    HostDaemon(
        connection,
        os.dup(connection),
        folder,
        tunnel,
        hello,
        reconnect_command,
        values.tunnel_port,
    ).run()


def _parse(arguments: list[str]) -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_string("join", None, "HOST:PORT of the launcher.", flag_values=values)
    flags.DEFINE_string(
        "credentials", None, "PEM file with the program's credentials.", flag_values=values
    )
    flags.DEFINE_string(
        "name",
        None,
        "Name of this host in --hosts; its host name unless given.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "wait", _WAIT_S, "Seconds to wait for the launcher.", flag_values=values, lower_bound=0.0
    )
    flags.DEFINE_integer(
        "tunnel_port",
        0,
        "Port for connections from other hosts; chosen by the launcher unless given.",
        flag_values=values,
    )
    rest = values(arguments)[1:]
    if rest:
        raise ConfigError(f"unexpected argument {rest[0]!r}; flags are written --name=value")
    if values.join is None or values.credentials is None:
        raise ConfigError("host-daemon: give --join=HOST:PORT and --credentials=FILE")
    check_duration("--wait", values.wait, zero=True)
    return values
