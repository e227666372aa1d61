"""The Ray actor of a host: it starts the host's daemon, and passes on what goes in and out.

Ray sends the class's code to its workers, which may lack this package: the standard library alone
is imported.
"""

import contextlib
import os
import select
import subprocess

ADDRESS_VARIABLE = "DISTRL_HOST_ADDRESS"
"""Tells a daemon where other hosts reach its host, which Ray chooses."""

_CHUNK = 1 << 20  # bytes that one call returns at most of each stream
# The shell ends at once, so the daemon is no child of the worker: Ray kills a worker's children
# with it, and a daemon that is killed cannot remove what it has made. Its stdin ends instead.
_DETACHED = ("sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh")


class DaemonActor:
    """A host's daemon. Its methods are called from several threads, `write` from one at a time."""

    def node_address(self) -> str:
        """Returns the address of the cluster's node that this actor runs on."""
        import ray.util

        return str(ray.util.get_node_ip_address())

    def start(self, command: list[str]) -> None:
        """Starts the daemon in a new session.

        Args:
          command: its command; if it cannot be started, its stderr says why.
        """
        self._process = subprocess.Popen(
            [*_DETACHED, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._process.wait()
        assert self._process.stdout is not None and self._process.stderr is not None
        self._open = [self._process.stdout.fileno(), self._process.stderr.fileno()]

    def read(self, timeout: float) -> tuple[bytes, bytes, bool]:
        """Waits for output.

        Args:
          timeout: seconds to wait at most.

        Returns:
          New bytes of stdout, of stderr, and whether stdout has ended, with the daemon.
        """
        assert self._process.stdout is not None and self._process.stderr is not None
        stdout, stderr = self._process.stdout.fileno(), self._process.stderr.fileno()
        output = {stdout: b"", stderr: b""}
        for fd in select.select(self._open, [], [], timeout)[0]:
            output[fd] = os.read(fd, _CHUNK)
            if not output[fd]:
                self._open.remove(fd)
        return output[stdout], output[stderr], stdout not in self._open

    def write(self, data: bytes) -> None:
        """Passes bytes to the daemon's stdin; drops them if the daemon has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            view = memoryview(data)
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]

    def close_input(self) -> None:
        """Ends the daemon's stdin, at which it ends with all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
