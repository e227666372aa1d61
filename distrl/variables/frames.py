"""A server of parameters at a socket, for the relays of other machines, and its client."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from distrl.frame_sockets.calls import Answer, FrameCallClient, FrameCallServer
from distrl.frame_sockets.frames import Bytes
from distrl.variables.packed import Packed

MAX_BYTES = 1 << 34  # largest size of packed parameters
_WHAT = "the parameters"

GetVariables = Callable[[int, str], tuple[int, Packed] | None]


class FrameVariableServer(FrameCallServer):
    """Serves the parameters of tasks until it is closed; each client has a thread."""

    def __init__(self, get_variables: GetVariables, address: str, key: str) -> None:
        """Args:
        get_variables: returns what `VariableService.get_variables` returns to readers on another
          machine; its arguments are the reader's version and the name of the task.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's key, which a client must have.

        Raises:
          OSError: the address is taken.
        """
        self._get_variables = get_variables
        super().__init__(self._get, 0, address, key, _WHAT)

    def _get(self, message: Any, data: Bytes) -> Answer | None:
        del data
        match message:
            case ("get", int(newer_than), str(task)):
                variables = self._get_variables(newer_than, task)
                if variables is None:
                    return ("none",), ()
                version, packed = variables
                if isinstance(packed, str):
                    raise TypeError("readers of another machine get bytes")
                return ("version", version), [np.frombuffer(packed, np.uint8)]
        return None


class FrameVariableClient:
    """A client of a `FrameVariableServer`."""

    def __init__(self, address: str, key: str, timeout: float, stop: threading.Event) -> None:
        """Args: address, key, timeout, stop: as for `FrameCallClient`."""
        self._calls = FrameCallClient(_WHAT, MAX_BYTES, address, key, timeout, stop)

    def get_variables(
        self, newer_than: int, task: str, reader_domain: str = ""
    ) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables`; raises what `FrameCallClient.call` does.

        Args:
          newer_than: the version that the reader has.
          task: name of the task.
          reader_domain: unused: the reader is on another machine.
        """
        del reader_domain
        match self._calls.call(("get", newer_than, task)):
            case ("none",), _:
                return None
            case ("version", int(version)), data:
                return version, data.tobytes()
        raise self._calls.no_answer()

    def close(self) -> None:
        """Ends the connection, when the call in progress has ended."""
        self._calls.close()
