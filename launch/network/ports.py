"""Ports on this machine for the servers of one program."""

import contextlib
import errno
import random
import socket

from distrl.errors import ConfigError

# Below the range that Linux gives to outgoing connections (from 32768): a port of that range may
# be taken by any client between our look and the server's bind.
FIRST, LAST = 15000, 32000


class Ports:
    """Free ports, kept from other launchers until `close()`.

    Two Reverb servers on one port may both be accepted (see `loopback`), and clients land on
    either. So a port is used only if nobody listens on it, and it is held by an abstract Unix
    socket of its number: a lock that the kernel drops with the process, and that leaves no file.
    """

    def __init__(self) -> None:
        self._locks: list[socket.socket] = []
        self._random = random.SystemRandom()  # two launches must not try the same ports in turn

    def take(self) -> int:
        """Returns a port that nobody has."""
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
        """What a forked child has to close."""
        return [lock.fileno() for lock in self._locks]

    def close(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()


def _is_free(port: int) -> bool:
    """Whether nobody has the port, on loopback or any other address."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # this machine has no IPv6
            return False
    return True
