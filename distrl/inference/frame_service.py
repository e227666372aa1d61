"""An inference server at a socket, for actors on other machines, and its client."""

import threading
from typing import Any

import numpy as np

from distrl.errors import DeadlineExceeded, SpecError
from distrl.frame_sockets.calls import Answer, FrameCallClient, FrameCallServer
from distrl.frame_sockets.frames import Bytes
from distrl.inference.messages import HEADER, InferenceMessages
from distrl.inference.server import InferenceServer

_WHAT = "the inferencer"


class FrameInferenceServer(FrameCallServer):
    """Serves an `InferenceServer` until it is closed; each client has a thread."""

    def __init__(
        self,
        server: InferenceServer,
        messages: InferenceMessages,
        rows: int,
        address: str,
        key: str,
    ) -> None:
        """Args:
        server: answers the requests.
        messages: the layout of requests and answers.
        rows: most rows of a request.
        address: "unix:/path" or "host:port", of this machine.
        key: the program's key, which a client must have.

        Raises:
          OSError: the address is taken.
        """
        self._server = server
        limit = HEADER.size + rows * messages.request.row_bytes
        expected = DeadlineExceeded, SpecError
        super().__init__(self._infer, limit, address, key, _WHAT, expected)

    def _infer(self, message: Any, data: Bytes) -> Answer | None:
        match message:
            case ("inference",):
                return ("ok",), [np.frombuffer(self._server.inference(data.data), np.uint8)]
            case ("request_version", int(version)):
                self._server.request_version(version)
                return ("ok",), ()
        return None


class FrameInferenceClient:
    """A client of a `FrameInferenceServer`, with the methods of its `InferenceServer`.

    They raise what `FrameCallClient.call` does.
    """

    def __init__(
        self,
        messages: InferenceMessages,
        rows: int,
        address: str,
        key: str,
        timeout: float,
        stop: threading.Event,
    ) -> None:
        """Args:
        messages: the layout of requests and answers.
        rows: most rows of a request.
        address, key, timeout, stop: as for `FrameCallClient`.
        """
        limit = HEADER.size + rows * (messages.answer.row_bytes + messages.state.row_bytes)
        self._calls = FrameCallClient(_WHAT, limit, address, key, timeout, stop)

    def inference(self, data: bytes) -> bytes:
        """See `InferenceServer.inference`."""
        _, answer = self._calls.call(("inference",), [np.frombuffer(data, np.uint8)])
        return answer.tobytes()

    def request_version(self, version: int) -> None:
        """See `Inferencer.request_version`."""
        self._calls.call(("request_version", version))

    def close(self) -> None:
        """Ends the connection, when the call in progress has ended."""
        self._calls.close()
