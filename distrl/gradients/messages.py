"""Messages between a learner and its gradient workers: one line of JSON, then arrays."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

_EMPTY = np.empty(0, np.uint8)


def pack(header: dict[str, Any], block: npt.NDArray[Any] = _EMPTY) -> bytes:
    """Returns a message with a block of bytes, which may be empty."""
    return json.dumps(header).encode() + b"\n" + block.tobytes()


def unpack(message: bytes) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """Returns a message's header and block."""
    end = message.index(b"\n")
    block = np.frombuffer(message, np.uint8, offset=end + 1)
    return json.loads(message[:end]), block
