"""The C library, and Linux process calls that Python's standard library lacks."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
NAME_LIMIT = 15  # characters of a process's name that the kernel keeps

LIBC = ctypes.CDLL(None, use_errno=True)  # releases the GIL during a call


def end_with_parent(parent: int, name: str = "", number: int = signal.SIGKILL) -> None:
    """Makes the kernel signal this process when its parent ends, and may name the process.

    Args:
      parent: the parent's pid, taken before the fork.
      name: the name that `ps` and `top` show, cut to `NAME_LIMIT` characters; "": the parent's.
      number: the signal; SIGKILL unless given.
    """
    LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the call above
    if name:
        LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def allow_any_tracer() -> None:
    """Lets any process of the same user trace this one, where Yama allows only its ancestors."""
    LIBC.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
