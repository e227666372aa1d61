"""Another user of this machine, for tests that run as root."""

import os
from collections.abc import Callable

NOBODY = 65534


def as_another_user(function: Callable[[], object]) -> str:
    """Calls a function in a forked process of the user nobody.

    Returns:
      What it returned, as a string, or the name of the exception that it raised.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = str(function())
        except BaseException as error:
            said = type(error).__name__
        os.write(writer, said.encode()[:4096])
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said
