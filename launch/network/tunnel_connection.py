"""One carried connection: a plain end on this host and a TLS end to another host.

On the TLS end, data comes in frames: a length, and as many bytes. A frame of length 0 ends its
direction: it distinguishes an ended connection from a broken one, and TLS in asyncio cannot close a
single direction.
"""

import asyncio
import socket
import struct

from distrl.runtime.sockets import keep_alive

BUFFER = 1 << 20  # unsent bytes at one end beyond which the other end is not read
DEAD_MS = 8000  # without a packet from the other host after it was probed

_FRAME = struct.Struct("!I")
_TCP_INFO = struct.Struct("=8B13I")  # how Linux's `struct tcp_info` begins
_PROBES, _UNACKED, _LAST_ACK_MS = 3, 12, 20
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class TlsEnd(asyncio.Protocol):
    """The TLS end, to another host.

    Args:
      header_size: number of bytes before the first frame.

    Attributes:
      header: the bytes before the first frame.
      plain: the other end, once it is connected.
      ended: whether the other host has ended its direction.
      lost: whether the connection is closed.
    """

    transport: asyncio.Transport

    def __init__(self, header_size: int = 0) -> None:
        self.header: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.plain: PlainEnd | None = None
        self.ended = False
        self.lost = False
        self._header_size = header_size
        self._early = bytearray()  # data received before there was a plain end
        self._partial_length = b""  # the first bytes of a frame's length
        self._left = 0  # bytes of the frame that are still to come
        self._probed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER)
        self._sock = transport.get_extra_info("socket")  # the transport drops it when it closes
        keep_alive(self._sock, idle=3, interval=2)

    def send(self, data: bytes) -> None:
        """Sends one frame; an empty one ends this direction."""
        self.transport.write(_FRAME.pack(len(data)) + data)

    def join(self, plain: "PlainEnd") -> None:
        """Connects the plain end, which gets the data received."""
        self.plain = plain
        self.transport.resume_reading()
        early, self._early = bytes(self._early), bytearray()
        self._pass_on(early)

    def data_received(self, data: bytes) -> None:
        if self.plain is not None:
            self._pass_on(data)
            return
        self._early += data
        if not self.header.done() and len(self._early) >= self._header_size:
            self.header.set_result(bytes(self._early[: self._header_size]))
            del self._early[: self._header_size]
        if len(self._early) > BUFFER:
            self.transport.pause_reading()

    def _pass_on(self, data: bytes) -> None:
        assert self.plain is not None
        view = memoryview(self._partial_length + data if self._partial_length else data)
        self._partial_length = b""
        while view:
            if self._left:
                part = view[: self._left]
                self.plain.transport.write(part)
                self._left -= len(part)
                view = view[len(part) :]
            elif len(view) < _FRAME.size:
                self._partial_length = bytes(view)
                return
            else:
                (self._left,) = _FRAME.unpack_from(view)
                view = view[_FRAME.size :]
                if not self._left:
                    self.ended = True
                    self.plain.end()
                    return

    def pause_writing(self) -> None:
        if self.plain is not None:
            self.plain.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.plain is not None:
            self.plain.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.header.done():
            self.header.set_exception(exc or ConnectionResetError("it was closed"))
            self.header.exception()  # marks it as retrieved: nobody may be waiting for it
        if self.plain is not None and not (self.ended and self.plain.ended):
            self.plain.abort()

    @property
    def closed(self) -> bool:
        """Whether the socket is closed, which may be some time before `connection_lost`."""
        return self._sock.fileno() < 0

    def is_dead(self) -> bool:
        """Returns whether the other host has not answered for too long; to be called every second.

        The kernel's own limit (TCP_USER_TIMEOUT) would also break connections to a host that does
        answer, but has had no room for more data for as long.
        """
        if self.closed:
            return False
        data = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        info = _TCP_INFO.unpack(data)
        # A probe that is seen once is usually just being answered; it counts if seen twice.
        probed_before, self._probed = self._probed, info[_PROBES] > 0
        waiting = info[_UNACKED] > 0 or (probed_before and self._probed)
        return waiting and info[_LAST_ACK_MS] > DEAD_MS


class PlainEnd(asyncio.Protocol):
    """The plain end on this host, to a server or a client.

    Args:
      secure: the other end.

    Attributes:
      ended: whether the end of this host's direction was passed on.
      lost: whether the connection is closed.
    """

    transport: asyncio.Transport

    def __init__(self, secure: TlsEnd) -> None:
        self.secure = secure
        self.ended = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER)
        if self.secure.closed or self.secure.transport.is_closing():
            self.abort()
        else:
            self.secure.join(self)

    def data_received(self, data: bytes) -> None:
        self.secure.send(data)

    def eof_received(self) -> bool:
        if not self.ended:  # resuming paused reading reports it again
            self.ended = True
            self.secure.send(b"")
            self._close_if_done()
        return True  # keeps the other direction open

    def end(self) -> None:
        """Ends the direction to this host: the other host sends no more data."""
        try:
            self.transport.write_eof()
        except OSError:  # already closed; `connection_lost` will be called
            self.secure.transport.abort()
            return
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.ended and self.secure.ended:  # closing writes what is left first
            self.transport.close()
            self.secure.transport.close()

    def pause_writing(self) -> None:
        if not self.secure.closed:
            self.secure.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.secure.closed:
            self.secure.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not (self.ended and self.secure.ended):
            self.secure.transport.abort()

    def abort(self) -> None:
        """Breaks the connection; unsent data is lost."""
        if self.lost:
            return
        sock = self.transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:  # Unix sockets have no resets
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
