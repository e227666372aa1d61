"""How the bytes of a frame are sent."""

import socket

import numpy as np
import pytest

from distrl.frame_sockets import compression, frames


class CountedSocket(socket.socket):
    """Counts its sends."""

    sends = 0

    def sendmsg(self, *args):
        self.sends += 1
        return super().sendmsg(*args)


@pytest.mark.parametrize("early, sends", [(True, 2), (False, 1)])
def test_the_first_chunk_is_sent_ahead_only_where_it_shall_be_there_soon(early, sends):
    near, far = socket.socketpair()
    sock = CountedSocket(fileno=near.detach())
    sender, receiver = frames.FrameSocket(sock), frames.FrameSocket(far)
    pieces = [np.full(compression.FIRST_BYTES, value, np.uint8) for value in (1, 2, 3)]
    try:
        sender.send(("call", 7), pieces, early=early)
        message, data = receiver.receive(1 << 20)
    finally:
        sender.close()
        receiver.close()
    assert sock.sends == sends
    assert message == ("call", 7)
    np.testing.assert_array_equal(data, np.concatenate(pieces))
