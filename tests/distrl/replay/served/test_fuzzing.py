"""Each call of a served table, and each answer, as bytes that are changed on the way."""

import contextlib
import os
import random
import socket
import struct
import threading
import time
import tracemalloc

import numpy as np
import pytest

from distrl.errors import Blocked, DeadlineExceeded, PeerError, Stopped
from distrl.frame_sockets import frames, greetings
from distrl.replay.buffer import ReplayConfig
from distrl.replay.served import calls
from distrl.replay.served.client import ServedReplayBuffer
from distrl.runtime.messages import decode, encode
from tests.support.replay import KEY
from tests.support.waiting import in_thread

pytestmark = [
    pytest.mark.full,
    pytest.mark.parametrize("make_replay", ["served"], indirect=True),
    pytest.mark.parametrize("kind", ["queue", "prioritized"]),
]
T, BATCH = 4, 4
SIZES = struct.Struct("<IQ?")
CHUNK_BYTES = 1 << 20
PEAK = 8 << 20  # what a few frames of at most this size, and their messages, may need
CLEAR = (PeerError, DeadlineExceeded, Stopped, Blocked, ValueError)


def received(sock, count):
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError
        data += part
    return bytes(data)


def frame(sock):
    sizes = received(sock, SIZES.size)
    return sizes + received(sock, sum(SIZES.unpack(sizes)[:2]))


def changed(rng, data, spared=0):
    """Returns another frame. Args: spared: bytes at its end in which no bit is flipped."""
    head = SIZES.unpack(data[: SIZES.size])[0]
    match rng.choice(("random", "message", "truncated", "sizes", "flipped", "flipped", "flipped")):
        case "random":
            return rng.randbytes(rng.randrange(200))
        case "message":
            return data[: SIZES.size] + rng.randbytes(head) + data[SIZES.size + head :]
        case "truncated":
            return data[: rng.randrange(len(data))]
        case "sizes":
            large = rng.choice((rng.randrange(2**32), 2**32 - 1, 0)), rng.randrange(2**63)
            return SIZES.pack(*large, rng.random() < 0.5) + data[SIZES.size :]
    flipped = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        flipped[rng.randrange(len(data) - spared)] ^= 1 << rng.randrange(8)
    return bytes(flipped)


ODD = (
    None, True, 0, -1, 3, 2**63, -(2**80), 1e308, float("nan"), "x", b"y", (), [1, [2]], {},
    {"max_size": 1}, {"priority_exponent": "x"}, {"table": None}, {1: 2}, np.arange(3.0),
    np.full((2, 2), np.nan), np.zeros(4, np.complex64), np.arange(4, dtype=np.uint64),
)  # fmt: skip


def odd_call(rng, name):
    """Returns the frame of a call with arguments of any kind."""
    args = tuple(rng.choice(ODD) for _ in range(rng.randrange(5)))
    head, data = encode((0, name, args)), rng.randbytes(rng.choice((0, 3, 1000)))
    return SIZES.pack(len(head), len(data), False) + head + data


class Proxy:
    """Between clients and a server: records requests, and changes answers."""

    def __init__(self, server, path):
        self.address, self._server = f"unix:{path}", server
        self.requests = []
        self.change = lambda answer: answer
        self._listener = frames.listen(self.address)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(sock,), daemon=True).start()

    def _pass_on(self, client):
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            server.connect(frames.socket_address(self._server)[1])
            server.sendall(received(client, greetings.GREETING_BYTES))
            while True:
                self.requests.append(frame(client))
                server.sendall(self.requests[-1])
                answer = frame(server)
                sent = self.change(answer)
                client.sendall(sent)
                if len(sent) < len(answer):
                    return

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def replay(make_replay, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a changed call may save to any path
    monkeypatch.setattr(calls, "CHUNK_BYTES", CHUNK_BYTES)
    return make_replay(ReplayConfig(kind, T, max_size=400), BATCH)


@pytest.fixture
def proxy(replay, tmp_path):
    proxy = Proxy(replay.address, tmp_path / "proxy")
    yield proxy
    proxy.close()


def operations(client, streams, tmp_path):
    """Returns every call, as its client makes it."""
    table, everyone = client.table, np.arange(100, 100 + BATCH, dtype=np.int32)
    block = None
    while block is None:
        block = client.cut(everyone, *streams.step(everyone))
    keys, ones = np.arange(BATCH, dtype=np.uint64), np.ones(BATCH)
    config = ReplayConfig("queue", T)
    return {
        "insert": lambda: table.insert(block, None, 0.3),
        "prefill": lambda: table.prefill(block),
        "sample": lambda: table.sample(None, 0.3),
        "update_priorities": lambda: table.update_priorities(keys, ones, 1.0),
        "discard": lambda: table.discard(keys[:1], -1),
        "info": table.info,
        "can_sample": table.can_sample,
        "is_prioritized": lambda: table.is_prioritized,
        "reconfigure": lambda: table.reconfigure(priority_exponent=0.5),
        "read": lambda: table.read(slice(0, 3)),
        "save": lambda: table.save(config, tmp_path / os.urandom(4).hex(), 0.3),
        "layout": lambda: table.layout(0.3),
    }


def error_of(call):
    """Returns the message of the clear error in which a call ends; None: in none."""
    try:
        call()
    except CLEAR as error:
        return str(error)


def client_of(address, replay, streams):
    return ServedReplayBuffer(
        address, KEY, streams.struct, replay._config, BATCH, insert_timeout=0.3,
        reconnect_timeout=0.1,
    )  # fmt: skip


def test_changed_answers_end_in_a_clear_error(replay, proxy, make_streams, tmp_path):
    full, everyone = replay.client(), np.arange(BATCH, dtype=np.int32)
    make_streams().add_to(full, everyone, 20 * T + 1)
    names = list(operations(full, make_streams(), tmp_path))
    assert set(names) == calls.NAMES
    rng, failed = random.Random(0), 0
    tracemalloc.start()
    try:
        for name in names * 12:
            client = client_of(proxy.address, replay, make_streams())
            call = operations(client, make_streams(), tmp_path)[name]
            proxy.change = lambda answer: changed(rng, answer)
            tracemalloc.reset_peak()
            before, began = tracemalloc.get_traced_memory()[0], time.monotonic()
            said = error_of(call)
            failed += said is not None
            assert said is None or (said and "\n" not in said)
            assert time.monotonic() - began < 10.0
            assert tracemalloc.get_traced_memory()[1] - before < PEAK
            client.close()
    finally:
        tracemalloc.stop()
    assert failed > 60


def test_changed_calls_have_no_effect(replay, proxy, make_streams, tmp_path):
    """Those that are not made; meanwhile another client is served, and the server lives on."""
    good, done, seen, rounds = replay.client(), threading.Event(), [], []

    def use():
        streams = make_streams()
        while not done.is_set():
            streams.add_to(good, np.arange(BATCH, dtype=np.int32), T)
            rounds.append(BATCH)  # unrolls, but for the first time: they overlap by a step
            if good.can_sample():
                seen.extend(streams.check(good.sample(10.0).trajectory))

    client = client_of(proxy.address, replay, make_streams())
    made = []
    for name, call in operations(client, make_streams(), tmp_path).items():
        with contextlib.suppress(*CLEAR):  # a queue cannot be reconfigured, for one
            call()
        made.append((name, proxy.requests[-1]))
    client.close()
    make_streams().add_to(good, np.arange(200, 260, dtype=np.int32), 3 * T + 1)
    before = good.info()
    user, raised = in_thread(use)
    rng, answered, inserted = random.Random(0), 0, 0
    tracemalloc.start()
    try:
        for name, request in made * 20:
            spared = SIZES.unpack(request[: SIZES.size])[1]  # an insert's unrolls
            sent = rng.choice((changed(rng, request, spared), odd_call(rng, name)))
            tracemalloc.reset_peak()
            start = tracemalloc.get_traced_memory()[0]
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(10.0)
                sock.connect(frames.socket_address(replay.address)[1])
                sock.sendall(greetings.greeting(KEY, os.urandom(16), name))
                try:
                    sock.sendall(sent)
                    sock.shutdown(socket.SHUT_WR)
                    answer = frame(sock)
                except OSError:
                    continue  # cut off
            head = SIZES.unpack(answer[: SIZES.size])[0]
            state, *rest = decode(answer[SIZES.size :][:head])
            answered += state == "error"
            if name in ("insert", "prefill") and state != "error":
                inserted += BATCH if state == "ok" else rest[0]
            assert tracemalloc.get_traced_memory()[1] - start < PEAK
    finally:
        tracemalloc.stop()
        done.set()
    user.join(20.0)
    assert not user.is_alive() and not raised
    assert answered > 20 and len(seen) > 20
    assert good.info().inserts == before.inserts + inserted + sum(rounds[1:])
