"""The process that runs a host's tunnel; see `distrl.launch.network.tunnel`."""

import contextlib
import os
import signal
import socket
import traceback
from collections.abc import Mapping

from distrl.launch import posix
from distrl.launch.network.credentials import Credentials
from distrl.launch.network.tunnel import run


def start_tunnel(
    listener: socket.socket,
    credentials: Credentials,
    open_ports: Mapping[int, str],
    forwards: Mapping[str, tuple[str, int, int]],
) -> int:
    """Starts a process that runs the tunnel, and ends when this process ends.

    Args:
      listener, credentials, open_ports, forwards: see `tunnel.run`.

    Returns:
      The pid.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        posix.end_with_parent(parent, "distrl:tunnel")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setsid()
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd != listener.fileno():
                with contextlib.suppress(OSError):  # the one that lists the folder
                    os.close(fd)
        run(listener, credentials, open_ports, forwards)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def end_tunnel(pid: int) -> None:
    """Ends a tunnel's process."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
