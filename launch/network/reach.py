"""Whether the other hosts can be reached, as the connections of a tunnel show."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable

_UNKNOWN_NAME = "unknown name"


class Reach:
    """Reports when a host's port is reached for the first time, no longer, or again.

    Args:
      report: called with the host, its port, and why it cannot be reached; "": it is reached.
    """

    def __init__(self, report: Callable[[str, int, str], None]) -> None:
        self._report = report
        self._reported: dict[tuple[str, int], bool] = {}  # whether it is reached
        self._silent: set[tuple[str, int]] = set()  # the last attempt was not answered in time

    def note(self, host: str, port: int, error: Exception | None) -> None:
        """Takes the end of an attempt to connect, None: it has succeeded.

        One attempt without an answer means nothing: the other host may be busy, or just starting.
        """
        at, reached = (host, port), error is None
        if not isinstance(error, asyncio.TimeoutError):
            self._silent.discard(at)
        elif at not in self._silent:
            self._silent.add(at)
            return
        if self._reported.get(at) is not reached:
            self._reported[at] = reached
            self._report(host, port, "" if error is None else in_words(error))


def in_words(error: Exception) -> str:
    """Returns why a connection failed, as one line."""
    if isinstance(error, asyncio.TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return f"{_UNKNOWN_NAME}: {error.strerror}"
    words = None
    if isinstance(error, OSError):
        words = error.strerror
        if error.errno and error.errno in errno.errorcode and not isinstance(error, ssl.SSLError):
            words = os.strerror(error.errno)  # without asyncio's own
    return words or str(error) or type(error).__name__


def advice(reason: str) -> str:
    """Returns what to do about a port that was never reached; `reason` is from `in_words`."""
    if reason.startswith(_UNKNOWN_NAME):
        return "give an address that resolves there, --hosts=NAME:address=..."
    return "open that port between the hosts, or choose one with --tunnel_port"
