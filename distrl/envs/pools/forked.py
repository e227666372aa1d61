"""What a forked copy of a process needs: descriptors, signals, and an end of its own."""

import math
import os
import select
import signal
import stat
import traceback
from collections.abc import Callable
from typing import NoReturn

from distrl.runtime.process_exit import exit_at_once


def readable(timeout: float, *descriptors: int) -> list[int]:
    """Those that can be read, after `timeout` seconds at the latest; their numbers may be large."""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0, math.ceil(timeout * 1000)))]


def release_descriptors(keep: set[int]) -> None:
    """Lets go of inherited sockets, pipes and devices, so that their other ends see them close.

    Their numbers stay taken: an object that was copied with them may close its own one day, and
    must not close what another one got in its place. Files stay open, for logs go there.

    Args:
      keep: descriptors to leave as they are, beside 0, 1 and 2.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd <= 2 or fd == null or fd in keep:
            continue
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.dup2(null, fd, inheritable=False)
        except OSError:
            continue  # the listing's own
    os.close(null)


def become(main: Callable[[], None]) -> NoReturn:
    """Ends this copy of a process after `main`, without its parent's exit handlers."""
    code = 1
    try:
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        exit_at_once(code)


def kill_group(pid: int) -> None:
    """Kills a worker's process group, or the worker where it has not made one yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def do_nothing(number: int, frame: object) -> None:
    """A handler, and not SIG_IGN, which the programs that an environment starts would inherit."""


def ignore_signals() -> None:
    """Ctrl-C and its like are for the program, which then closes the pool, or ends."""
    for number in signal.valid_signals():
        ours = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(signal.getsignal(number)) or ours:
            signal.signal(number, do_nothing)
