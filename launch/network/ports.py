"""Ports on this machine for the servers of one program."""

import contextlib
import errno
import random
import socket

from distrl.errors import ConfigError

# Below the range that Linux uses for outgoing connections (from 32768): any client may take a port
# in that range between our check and the server's bind.
FIRST, LAST = 15000, 32000


class Ports:
    """Reserves free ports, so that other launchers do not take them until `close()`.

    Two Reverb servers can bind the same port (see `loopback`), and clients then reach either one.
    So a port is used only if nobody listens on it, and an abstract Unix socket with its number
    reserves it: the kernel releases this lock when the process ends, and it leaves no file behind.
    """

    def __init__(self) -> None:
        self._locks: list[socket.socket] = []
        self._random = random.SystemRandom()  # launches must not try the same sequence

    def take(self) -> int:
        """Reserves a free port and returns it."""
        for _ in range(1000):
            port = self._random.randrange(FIRST, LAST)
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                lock.bind(f"\0distrl-port-{port}")
            except OSError:
                lock.close()
                continue
            if _is_free(port):
                self._locks.append(lock)
                return port
            lock.close()
        raise ConfigError(f"no free port between {FIRST} and {LAST} on this machine")

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return [lock.fileno() for lock in self._locks]

    def close(self) -> None:
        """Releases all ports."""
        for lock in self._locks:
            with contextlib.suppress(OSError):  # Linux has released it all the same
                lock.close()
        self._locks.clear()


def _is_free(port: int) -> bool:
    """Returns whether nobody has bound the port, on any address."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # no IPv6 on this machine
            return False
    return True
