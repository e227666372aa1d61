"""The command that connects the launcher to a host's daemon on a Ray cluster.

It hands its stdin, stdout and stderr to the launcher's bridge (see `ray_bridge`), which passes on
what they carry, and ends when the bridge is done with them. Run by its path, without this package.
"""

import signal
import socket
import sys


def main(path: str, name: str) -> int:
    """Lends this process's streams to the bridge.

    Args:
      path: the bridge's socket.
      name: the host's name.

    Returns:
      The exit status: 0 once the daemon has ended, 1 if it could not be reached or was lost.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends this, after its nodes
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            socket.send_fds(connection, [name.encode()], [0, 1, 2])
            return 0 if connection.recv(1) else 1
    except OSError as error:
        print(f"the bridge to the Ray cluster: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
