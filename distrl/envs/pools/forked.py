"""What forked processes do with inherited descriptors and signals, and how they exit."""

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
    """Returns the readable descriptors, after at most `timeout` seconds. Numbers may be large."""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0, math.ceil(timeout * 1000)))]


def release_descriptors(keep: set[int]) -> None:
    """Closes inherited sockets, pipes and devices, so that their other ends notice.

    Their numbers stay in use (for /dev/null): a copied object may close its descriptor later, and
    must not close another file that got the same number. Files stay open, for logs.

    Args:
      keep: descriptors to keep, besides 0, 1 and 2.
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
            continue  # the descriptor of the listing itself
    os.close(null)


def become(main: Callable[[], None]) -> NoReturn:
    """Runs `main` in this forked process, then ends it without its parent's exit handlers."""
    code = 1
    try:
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        exit_at_once(code)


def kill_group(pid: int) -> None:
    """Kills a worker's process group, or only the worker if it has no group yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)


def do_nothing(number: int, frame: object) -> None:
    """Ignores a signal, but not in programs that an environment starts, which SIG_IGN would."""


def ignore_signals() -> None:
    """Ignores Ctrl-C and the like: the program handles them, and closes the pool or ends."""
    for number in signal.valid_signals():
        ends_program = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(signal.getsignal(number)) or ends_program:
            signal.signal(number, do_nothing)
