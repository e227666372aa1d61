"""Connects a daemon to its launcher, where something else starts the daemon (see `command_lines`).

The launcher listens on a Unix socket, in a folder that only its user can enter. A tunnel on the
join port admits daemons that show the program's credentials. A daemon also sends a token that can
only be computed from the credentials.
"""

import contextlib
import hashlib
import hmac
import pathlib
import socket
import time

from distrl.errors import ConfigError
from distrl.launch.network.credentials import Credentials
from distrl.launch.network.tunnel_process import end_tunnel, has_ended, start_tunnel_of_file
from distrl.runtime.sockets import parse_address

HELLO_S = 20.0  # for a daemon that has connected to introduce itself
_RETRY_S = 0.5


JOIN = 1  # the number of the launcher's socket in the tunnel, where servers have their port


def join_token(credentials: Credentials) -> str:
    """Returns the token by which a daemon proves that it has the credentials."""
    return hmac.new(credentials.key, b"distrl join", hashlib.sha256).hexdigest()


def dial(
    address: str, credentials_file: str, folder: pathlib.Path, timeout: float
) -> tuple[int, int, str]:
    """Connects a daemon to its launcher, which may be started later.

    Args:
      address: HOST:PORT of the launcher's join port.
      credentials_file: path of the program's credentials, which only the tunnel reads.
      folder: a private folder for sockets.
      timeout: seconds to wait for the launcher.

    Returns:
      The connection's descriptor, the pid of its tunnel, and the token.

    Raises:
      ConfigError: a malformed address, a file that cannot be used, or no launcher in time.
    """
    host, port = parse_address(address, "--join")
    path = str(folder / "join")
    unused = socket.create_server(("127.0.0.1", 0))
    forwards = {path: (host, port, JOIN)}
    with unused:
        tunnel, token = start_tunnel_of_file(unused, credentials_file, forwards, join_token)
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            connection.connect(path)
            connection.settimeout(HELLO_S)
            if connection.recv(1, socket.MSG_PEEK):  # the launcher sends first
                return connection.detach(), tunnel, token
        connection.close()
        if has_ended(tunnel):
            raise ConfigError(f"--join={address}: its tunnel has ended, as its own lines say")
        if time.monotonic() > deadline:
            end_tunnel(tunnel)
            raise ConfigError(f"--join={address}: no launcher answered within {timeout:g} s")
        time.sleep(_RETRY_S)
