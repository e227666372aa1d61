"""Frames on a connection to a served table: a message, and an array of bytes that follows it as is.

A frame's sizes are checked before anything is allocated for it.
"""

import contextlib
import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.replay.shared.clients import NAME_BYTES
from distrl.replay.shared.numbered import ID_BYTES
from distrl.runtime.messages import MessageError, decode, encode
from distrl.runtime.sockets import keep_alive, parse_address

HEAD_BYTES = 1 << 20  # of a frame's message
SILENCE = 30.0  # seconds that a frame which has begun may take without any byte
_SIZES = struct.Struct("<IQ")
_BUFFER_BYTES = 4 << 20
_SLICE = 0.1  # seconds between two calls of `poll`

Bytes = npt.NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)
_UNIX = "unix:"
_GREETING = struct.Struct(f"32s{ID_BYTES}s{NAME_BYTES}s")
GREETING_BYTES = _GREETING.size


def socket_address(address: str) -> tuple[socket.AddressFamily, Any]:
    """Returns the family and the socket's address of "unix:/path" or "host:port"."""
    if address.startswith(_UNIX):
        return socket.AF_UNIX, address.removeprefix(_UNIX)
    return socket.AF_INET, parse_address(address, "a table's address")


def listen(address: str) -> socket.socket:
    """Returns a listening socket; what a server that has ended left of a Unix socket is replaced.

    Raises:
      OSError: the address is taken, or of another machine.
    """
    family, where = socket_address(address)
    if family == socket.AF_UNIX:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(where)
    listener = socket.socket(family)
    if family == socket.AF_INET:  # a server that is started again has its port at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(where)
    listener.listen(128)
    return listener


def tune(sock: socket.socket) -> None:
    """Sends small frames at once, and notices a host that is gone, where it is a TCP socket.

    A Unix socket gets a large buffer, as far as the system grants it: a process that sends a large
    frame then sleeps less often.
    """
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock, idle=10, interval=5)


def proof(key: str) -> bytes:
    """Returns 32 bytes that show that the client has the key."""
    return hashlib.sha256(f"distrl served table {key}".encode()).digest()


def greeting(key: str, identity: bytes, name: str) -> bytes:
    """Returns what a connection begins with, `[GREETING_BYTES]`.

    Args:
      key: see `proof`.
      identity: of the client, `[ID_BYTES]`; the same on all its connections.
      name: the client's, for messages; cut to `NAME_BYTES`.
    """
    return _GREETING.pack(proof(key), identity, name.encode(errors="replace"))


def greeted(data: bytes) -> tuple[bytes, bytes, str]:
    """Returns the proof, identity and name of a greeting."""
    given, identity, name = _GREETING.unpack(data)
    return given, identity, name.rstrip(b"\0").decode(errors="replace")


def send(
    sock: socket.socket,
    message: Any,
    data: Bytes = NOTHING,
    poll: Callable[[], None] = lambda: None,
) -> None:
    """Sends a frame. Args: poll: as of `receive`.

    Raises:
      OSError: the other end is gone, or takes nothing.
      MessageError: the message is too large.
    """
    head = encode(message)
    if len(head) > HEAD_BYTES:
        raise MessageError(f"a frame's message of {len(head)} bytes; at most {HEAD_BYTES}")
    sock.settimeout(_SLICE)
    heard = time.monotonic()
    parts = [memoryview(_SIZES.pack(len(head), data.nbytes)), memoryview(head), data.data]
    while parts:
        try:
            sent = sock.sendmsg(parts)
        except TimeoutError:
            poll()
            if time.monotonic() - heard > SILENCE:
                raise ConnectionError(f"the other end took nothing for {SILENCE:.0f} s") from None
            continue
        heard = time.monotonic()
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][sent:]


class Room:
    """Memory for the bytes of one frame after the other: new memory has to be cleared first."""

    def __init__(self) -> None:
        self._bytes = NOTHING

    def take(self, nbytes: int) -> Bytes:
        """Returns uint8 `[nbytes]`, in the place of what it returned before."""
        if nbytes > self._bytes.nbytes:
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes[:nbytes]


def receive(
    sock: socket.socket,
    limit: int,
    poll: Callable[[], None] = lambda: None,
    room: Room | None = None,
) -> tuple[Any, Bytes]:
    """Returns the next frame, for whose beginning it waits as long as `poll` does not raise.

    Args:
      sock: the connection.
      limit: bytes that may follow the message.
      poll: called about every 0.1 s of waiting.
      room: for the bytes after the message; None: they are in new memory.

    Raises:
      OSError: the other end is gone, or has stopped within a frame.
      MessageError: the frame is too large, or no message.
    """
    sizes = bytearray(_SIZES.size)
    receive_into(sock, memoryview(sizes), None, poll)
    head_bytes, data_bytes = _SIZES.unpack(sizes)
    if head_bytes > HEAD_BYTES or data_bytes > limit:
        raise MessageError(f"a frame of {head_bytes} and {data_bytes} bytes is too large")
    head = bytearray(head_bytes)
    receive_into(sock, memoryview(head), SILENCE, poll)
    message = decode(bytes(head))
    data = np.empty(data_bytes, np.uint8) if room is None else room.take(data_bytes)
    receive_into(sock, data.data, SILENCE, poll)
    return message, data


def receive_into(
    sock: socket.socket,
    view: memoryview,
    silence: float | None,
    poll: Callable[[], None] = lambda: None,
    total: float | None = None,
) -> None:
    """Fills `view`.

    Args:
      sock: the connection.
      view: of bytes.
      silence: seconds without a byte after which it fails; None: only once the first has come.
      poll: as in `receive`.
      total: seconds for all of it; None: no limit.

    Raises:
      OSError: the other end is gone or silent.
    """
    began = heard = time.monotonic()
    sock.settimeout(_SLICE)
    while len(view):
        poll()
        now = time.monotonic()
        if total is not None and now - began > total:
            raise ConnectionError(f"not all came in {total:.0f} s")
        if silence is not None and now - heard > silence:
            raise ConnectionError(f"the other end was silent for {silence:.0f} s within a frame")
        try:
            count = sock.recv_into(view)
        except TimeoutError:
            continue
        if count == 0:
            raise ConnectionError("the other end closed the connection")
        view, heard = view[count:], time.monotonic()
        silence = SILENCE if silence is None else silence
