"""Files in memory, which have a descriptor but no name."""

import ctypes
import os
import platform

_SYS_MEMFD_CREATE = 279 if platform.machine() in ("aarch64", "riscv64") else 319
_MFD_CLOEXEC = 1


def memory_file(name: str) -> int:
    """Returns the descriptor of a new, empty file; the file is gone with the last descriptor.

    Pythons that are to run with a glibc before 2.27, such as many of uv's and conda-forge's, lack
    `os.memfd_create`: here they ask the kernel.

    Args:
      name: name that `/proc/PID/fd` shows; several files may have the same.

    Raises:
      OSError: no further file can be made.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    # Not the shared LIBC, whose `syscall` has the arguments of futexes.
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(
        ctypes.c_long(_SYS_MEMFD_CREATE), os.fsencode(name), ctypes.c_uint(_MFD_CLOEXEC)
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(descriptor)
