"""Frames on a connection: a message, and an array of bytes that follows it.

The bytes are sent as they are or, if there are many, in chunks, each of which may be compressed. A
frame's sizes are checked before anything is allocated for it.
"""

import contextlib
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.frame_sockets import compression
from distrl.runtime.messages import MessageError, decode, encode
from distrl.runtime.sockets import keep_alive, parse_address

HEAD_BYTES = 1 << 20  # largest size of a frame's message
SILENCE = 30.0  # seconds; a frame that has begun fails after so long without a byte
_SIZES = struct.Struct("<IQ?")  # bytes of the message, bytes after it, whether these are in chunks
_BUFFER_BYTES = 1 << 20
_AHEAD_BYTES = 1 << 14  # read together with a frame's sizes, if they have arrived
_IN_CHUNKS = 1 << 14  # bytes after a message; from this size on they go in chunks
_SLICE = struct.pack("@ll", 0, 100_000)  # timeval: 0.1 s between two calls of `poll`
_MOST_PIECES = 1024  # pieces that one call sends: the kernel's IOV_MAX

Bytes = npt.NDArray[np.uint8]
_UNIX = "unix:"


def _no() -> None:
    """The default of `poll`, which never ends a wait."""


def socket_address(address: str) -> tuple[socket.AddressFamily, Any]:
    """Returns the family and the socket's address of "unix:/path" or "host:port"."""
    if address.startswith(_UNIX):
        return socket.AF_UNIX, address.removeprefix(_UNIX)
    return socket.AF_INET, parse_address(address, "a node's address")


def listen(address: str) -> socket.socket:
    """Returns a listening socket. Replaces a Unix socket that a server has left behind.

    Raises:
      OSError: the address is taken, or another machine's.
    """
    family, where = socket_address(address)
    if family == socket.AF_UNIX:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(where)
    listener = socket.socket(family)
    if family == socket.AF_INET:  # a restarted server gets its port at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(where)
    listener.listen(128)
    return listener


def connect(address: str, greeting: bytes, timeout: float) -> "FrameSocket":
    """Returns a new connection to a server.

    Args:
      address: the server's address, "unix:/path" or "host:port".
      greeting: the first bytes to send; see `greetings`.
      timeout: seconds to connect.

    Raises:
      OSError: there is no server.
    """
    family, where = socket_address(address)
    sock = socket.socket(family)
    try:
        sock.settimeout(timeout)
        sock.connect(where)
        sock.sendall(greeting)
    except BaseException:
        sock.close()
        raise
    return FrameSocket(sock)


class Room:
    """Memory reused for the bytes of one frame after another: new memory has to be cleared."""

    def __init__(self) -> None:
        self._bytes = self._taken = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Returns uint8 `[nbytes]` in the memory of the one before; of its size, the same array."""
        if nbytes != self._taken.nbytes:
            if nbytes > self._bytes.nbytes:
                self._bytes = np.empty(nbytes, np.uint8)
            self._taken = self._bytes[:nbytes]
        return self._taken


class FrameSocket:
    """One end of a connection, which sends and receives frames. A small one takes one read.

    The kernel ends each wait after a slice, so a deadline needs no further system call.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Args: sock: a connected socket; `close` closes it."""
        self.sock = sock
        self._room = memoryview(bytearray(_AHEAD_BYTES))
        self._ahead = self._room[:0]  # received but not yet read
        self._compressor = compression.Compressor()
        self._chunk = Room()  # for a received chunk that is compressed
        sock.settimeout(None)
        for timeout in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, timeout, _SLICE)
        if sock.family == socket.AF_UNIX:
            # As far as the system grants it: the sender of a large frame then sleeps less often.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        if sock.family == socket.AF_INET:  # sends at once, and notices a host that is gone
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock, idle=10, interval=5)

    def send(
        self,
        message: Any,
        data: Sequence[Bytes] = (),
        poll: Callable[[], None] = _no,
        early: bool = True,
    ) -> None:
        """Sends a frame.

        Args:
          message: the message.
          data: the bytes that follow it, in pieces.
          poll: as in `receive`.
          early: send the first chunk by a call of its own, so that the other end begins while the
            next is compressed: the frame arrives sooner, at a higher cost.

        Raises:
          OSError: the other end is gone, or accepts nothing.
          MessageError: the message is too large.
        """
        head = encode(message)
        if len(head) > HEAD_BYTES:
            raise MessageError(f"a frame's message of {len(head)} bytes; at most {HEAD_BYTES}")
        nbytes = sum(piece.nbytes for piece in data)
        in_chunks = nbytes >= _IN_CHUNKS
        parts = [memoryview(_SIZES.pack(len(head), nbytes, in_chunks) + head)]
        if not in_chunks:
            self._send(parts + [piece.data for piece in data], poll)
            return
        # The bytes of the chunks in `parts`.
        waiting = compression.AT_ONCE_BYTES - compression.FIRST_BYTES if early else 0
        for chunk in compression.chunks(data):
            if waiting + chunk.nbytes > compression.AT_ONCE_BYTES:
                self._send(parts, poll)
                self._compressor.clear()
                parts, waiting = [], 0
            waiting += chunk.nbytes
            shorter = self._compressor.compressed(chunk)
            sent = chunk if shorter is None else shorter
            parts += [memoryview(compression.HEAD.pack(chunk.nbytes, sent.nbytes)), sent.data]
        self._send(parts, poll)
        self._compressor.clear()

    def _send(self, parts: list[memoryview], poll: Callable[[], None]) -> None:
        """Sends bytes; empties the list."""
        heard = time.monotonic()
        while parts:
            try:
                sent = self.sock.sendmsg(parts[:_MOST_PIECES])
            except BlockingIOError:
                poll()
                if time.monotonic() - heard > SILENCE:
                    raise ConnectionError(
                        f"the other end took nothing for {SILENCE:.0f} s"
                    ) from None
                continue
            heard = time.monotonic()
            whole = 0
            while whole < len(parts) and sent >= len(parts[whole]):
                sent -= len(parts[whole])
                whole += 1
            del parts[:whole]
            if sent:
                parts[0] = parts[0][sent:]

    def receive(
        self, limit: int, poll: Callable[[], None] = _no, room: Room | None = None
    ) -> tuple[Any, Bytes]:
        """Returns the next frame; waits until it begins, unless `poll` raises.

        Args:
          limit: most bytes that may follow the message.
          poll: called about every 0.1 s of waiting.
          room: memory for the bytes after the message; None: new memory.

        Raises:
          OSError: the other end is gone, or has stopped within a frame.
          MessageError: the frame is too large, or does not contain a message.
        """
        sizes = self._received(_SIZES.size, None, poll)
        head_bytes, data_bytes, in_chunks = _SIZES.unpack(sizes)
        if not 0 < head_bytes <= HEAD_BYTES or data_bytes > limit:
            raise MessageError(f"a frame of {head_bytes} and {data_bytes} bytes")
        message = decode(self._received(head_bytes, SILENCE, poll))
        data = np.empty(data_bytes, np.uint8) if room is None else room.take(data_bytes)
        if in_chunks:
            self._receive_chunks(data, poll)
        else:
            self.receive_into(data.data, SILENCE, poll)
        return message, data

    def _receive_chunks(self, data: Bytes, poll: Callable[[], None]) -> None:
        """Fills `data`, uint8 `[n]`, with chunks; raises as `receive` does."""
        while data.nbytes:
            head = self._received(compression.HEAD.size, SILENCE, poll)
            nbytes, size = compression.HEAD.unpack(head)
            if not 0 < size <= nbytes <= min(data.nbytes, compression.CHUNK_BYTES):
                raise MessageError(f"a chunk of {size} bytes for {nbytes} of {data.nbytes}")
            chunk, data = data[:nbytes], data[nbytes:]
            if size == nbytes:
                self.receive_into(chunk.data, SILENCE, poll)
            else:
                if size <= len(self._ahead):
                    compressed = self._taken(size)
                else:
                    compressed = self._chunk.take(size).data
                    self.receive_into(compressed, SILENCE, poll)
                compression.decompress(compressed, chunk)

    def _received(self, count: int, silence: float | None, poll: Callable[[], None]) -> bytes:
        """Returns the next `count` bytes; the arguments are those of `receive_into`."""
        if not self._ahead:
            self._ahead = self._room[: self._some(self._room, 0, silence, poll)]
        if count <= len(self._ahead):
            return bytes(self._taken(count))
        data = bytearray(count)
        self.receive_into(memoryview(data), SILENCE, poll)
        return bytes(data)

    def _taken(self, count: int) -> memoryview:
        """Returns at most `count` of the bytes that were read ahead."""
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def _some(
        self,
        view: memoryview,
        flags: int,
        silence: float | None,
        poll: Callable[[], None],
        until: float = math.inf,
    ) -> int:
        """Receives the bytes that are there, at least one; arguments as in `receive_into`."""
        began = time.monotonic()
        while True:
            try:
                count = self.sock.recv_into(view, 0, flags)
                if count == 0:
                    raise ConnectionError("the other end closed the connection")
            except BlockingIOError:  # nothing has arrived for a slice
                count = 0
                if silence is not None and time.monotonic() - began > silence:
                    raise ConnectionError(
                        f"the other end was silent for {silence:.0f} s within a frame"
                    ) from None
            if time.monotonic() > until:
                raise ConnectionError("not all came in time")
            poll()
            if count:
                return count

    def receive_into(
        self,
        view: memoryview,
        silence: float | None,
        poll: Callable[[], None] = _no,
        total: float = math.inf,
    ) -> None:
        """Fills `view`.

        Args:
          view: the memory to fill, bytes.
          silence: seconds without a byte after which it fails; None: no limit until the first.
          poll: as in `receive`.
          total: seconds to fill all of it.

        Raises:
          OSError: the other end is gone or silent.
        """
        until = time.monotonic() + total
        while len(view):
            if self._ahead:
                taken = self._taken(len(view))
                view[: len(taken)] = taken
                view = view[len(taken) :]
                silence = SILENCE if silence is None else silence
            elif len(view) < _AHEAD_BYTES:
                count = self._some(self._room, 0, silence, poll, until)
                self._ahead = self._room[:count]
            else:
                view = view[self._some(view, socket.MSG_WAITALL, silence, poll, until) :]

    def close(self) -> None:
        """Closes the connection."""
        self.sock.close()
