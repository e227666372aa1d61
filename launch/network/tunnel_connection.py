"""One carried connection: its plain end on this host, its TLS end to another, bytes in between.

On the TLS end bytes come in frames: a length, and as many bytes. A frame of length 0 ends its
direction, so that a connection that broke is told from one that ended; TLS in asyncio cannot end
one direction by itself.
"""

import asyncio
import socket
import struct
from typing import Any

BUFFER = 1 << 20  # bytes that wait to be written before the other end is not read any more
DEAD_MS = 8000  # without a sign of the other host, which was asked for one

_FRAME = struct.Struct("!I")
_TCP_INFO = struct.Struct("=8B13I")  # how Linux's `struct tcp_info` begins
_PROBES, _UNACKED, _LAST_ACK_MS = 3, 12, 20
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


def tune(sock: Any) -> None:
    """Has a TCP connection without traffic break 9 s after the other host is cut off."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


class Secure(asyncio.Protocol):
    """The end to another host.

    Args:
      header_size: bytes that come before the frames.
    """

    transport: asyncio.Transport

    def __init__(self, header_size: int = 0) -> None:
        self.header: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.plain: Plain | None = None
        self.ended = False  # the other host's end came
        self.lost = False
        self._header_size = header_size
        self._early = bytearray()  # what came before there was a plain end
        self._rest = b""  # of a frame's length
        self._left = 0  # bytes of the frame that are still to come
        self._probed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER)
        self._sock = transport.get_extra_info("socket")  # which the transport forgets
        tune(self._sock)

    def send(self, data: bytes) -> None:
        """Sends one frame; without bytes, the end of this direction."""
        self.transport.write(_FRAME.pack(len(data)) + data)

    def join(self, plain: "Plain") -> None:
        """Takes the end that what comes is for."""
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
        view = memoryview(self._rest + data if self._rest else data)
        self._rest = b""
        while view:
            if self._left:
                part = view[: self._left]
                self.plain.transport.write(part)
                self._left -= len(part)
                view = view[len(part) :]
            elif len(view) < _FRAME.size:
                self._rest = bytes(view)
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
            self.header.exception()  # known; nobody may be waiting for it
        if self.plain is not None and not (self.ended and self.plain.ended):
            self.plain.abort()

    @property
    def closed(self) -> bool:
        """Also when `connection_lost` is only about to say so: asyncio may call others before."""
        return self._sock.fileno() < 0

    def is_dead(self) -> bool:
        """Whether the other host has not answered for too long. To be asked every second.

        The kernel's own limit (TCP_USER_TIMEOUT) would also break connections to a host that does
        answer, and only has no room for more, for as long.
        """
        if self.closed:
            return False
        got = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        info = _TCP_INFO.unpack(got)
        # A question for room is mostly just under way when it is seen, hence the second look.
        probed, self._probed = self._probed, info[_PROBES] > 0
        asked = info[_UNACKED] > 0 or (probed and self._probed)
        return asked and info[_LAST_ACK_MS] > DEAD_MS


class Plain(asyncio.Protocol):
    """The end on this host, to a server or a client.

    Args:
      secure: the other end.
    """

    transport: asyncio.Transport

    def __init__(self, secure: Secure) -> None:
        self.secure = secure
        self.ended = False  # this host's end was passed on
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
        if not self.ended:  # reading that was paused, and goes on, finds it once more
            self.ended = True
            self.secure.send(b"")
            self._close_if_done()
        return True  # the other direction goes on

    def end(self) -> None:
        """No more comes from the other host."""
        try:
            self.transport.write_eof()
        except OSError:  # it is gone already, as `connection_lost` will say
            self.secure.transport.abort()
            return
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.ended and self.secure.ended:  # each is closed when all is written
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
        """Breaks the connection; what waits to be written is lost."""
        if self.lost:
            return
        sock = self.transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:  # for which there are no resets
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
