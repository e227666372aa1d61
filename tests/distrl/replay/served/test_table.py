"""The served table: lost connections, and bytes of strangers."""

import contextlib
import os
import socket
import struct
import threading
import time

import numpy as np
import pytest

from distrl.errors import Blocked, DeadlineExceeded, ServerSilent, SpecError, Stopped
from distrl.frame_sockets import frames, greetings
from distrl.replay.buffer import ReplayConfig
from distrl.runtime.messages import MessageError, encode
from tests.support.replay import KEY
from tests.support.selection import full
from tests.support.waiting import in_thread, until

T = 4
make_served = pytest.mark.parametrize("make_replay", ["served", full("served-tcp")], indirect=True)


def stranger(replay, data):
    """Sends bytes; returns the connection, from which a second may pass until the next byte."""
    family, address = frames.socket_address(replay.address)
    sock = socket.socket(family)
    sock.settimeout(10.0)
    sock.connect(address)
    sock.sendall(data)
    return sock


def sizes(head, data):
    return struct.pack("<IQ?", head, data, False)


def greeting(name=""):
    return greetings.greeting(KEY, os.urandom(16), name)


def is_cut(sock):
    """Returns whether the other end closes the connection without a word."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_frames_arrive_as_they_were_sent():
    """Small ones together, large ones in pieces, more than a call can send."""
    rng = np.random.default_rng(0)
    large = rng.integers(256, size=3_000_000).astype(np.uint8)
    sent = [
        ((1, "small"), [large[:5]]), ((2, "none"), ()), ((3, "many"), np.split(large[:6000], 3000)),
        ((4, "large"), [large[:1], large, large[:0]]), ((5, b"x" * 500_000), [large[:7]]),
    ]  # fmt: skip
    ends = [frames.FrameSocket(sock) for sock in socket.socketpair()]
    sender, raised = in_thread(lambda: [ends[0].send(*frame) for frame in sent])
    for message, pieces in sent:
        received, data = ends[1].receive(large.nbytes + 1)
        assert received == message
        np.testing.assert_array_equal(data, np.concatenate([large[:0], *pieces]))
    sender.join(10.0)
    ends[0].close()
    with pytest.raises(ConnectionError, match="closed the connection"):
        ends[1].receive(0)
    ends[1].close()
    assert not raised


def test_what_is_compressed_arrives_as_it_was_sent():
    """Frames of a game, noise, and both in turns, in pieces of all sizes."""
    rng = np.random.default_rng(0)
    noise = rng.integers(256, size=2_000_000).astype(np.uint8)
    still = np.repeat(noise[:40_000], 50)
    mixed = np.where(np.arange(2_000_000) // 300_000 % 2, noise, still)
    ends = [frames.FrameSocket(sock) for sock in socket.socketpair()]
    for data in (still, noise, mixed, still[:16_384], noise[:16_384], still[:16_383]):
        pieces = np.split(data, np.sort(rng.integers(len(data), size=20)))
        sender, raised = in_thread(lambda pieces=pieces: ends[0].send((1, "x"), pieces))
        received, arrived = ends[1].receive(data.nbytes)
        sender.join(10.0)
        assert received == (1, "x") and not raised
        np.testing.assert_array_equal(arrived, data)
    for end in ends:
        end.close()


def in_chunks(data):
    """Returns the bytes of a frame."""
    left, right = socket.socketpair()
    sender, _ = in_thread(lambda: frames.FrameSocket(left).send((1, "x"), [data]))
    sender.join(10.0)
    left.close()
    with right, right.makefile("rb") as file:
        return file.read()


def test_changed_chunks_are_refused_or_other_data_of_the_same_size():
    """Whatever their sizes say, and whatever is not what was compressed."""
    rng = np.random.default_rng(0)
    data = np.repeat(rng.integers(256, size=1000).astype(np.uint8), 40)
    frame, refused = in_chunks(data), 0
    assert len(frame) < 10_000
    for _ in range(300):
        changed = bytearray(frame)
        start = rng.choice((13, len(frame) // 2))  # not the frame's sizes
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(start, len(changed))] = rng.integers(256)
        left, right = socket.socketpair()
        with left:
            left.sendall(changed)
        end = frames.FrameSocket(right)
        try:
            assert end.receive(data.nbytes)[1].shape == data.shape
        except (MessageError, ConnectionError):
            refused += 1
        end.close()
    assert refused > 30


@pytest.mark.parametrize("sizes", [(0, 0), (2**20 + 1, 0), (1, 11)])
def test_a_frame_of_impossible_sizes_is_refused_at_once(sizes):
    left, right = socket.socketpair()
    end = frames.FrameSocket(right)
    with left, contextlib.closing(end):
        left.sendall(struct.pack("<IQ?", *sizes, False))
        with pytest.raises(MessageError, match=f"a frame of {sizes[0]} and {sizes[1]} bytes"):
            end.receive(10)


@make_served
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_client_goes_on_after_each_loss_of_its_connection(make_replay, streams, pipelined):
    """With exact counts: what is sent again is inserted, and sampled, once."""
    replay = make_replay(ReplayConfig("queue", T, max_size=16), 4)
    actor, learner = replay.client(pipelined=pipelined), replay.client()
    lives = 60
    done = threading.Event()

    def cut():
        while not done.wait(0.003):
            for client in (actor, learner):
                for connection in (client._served._inserts, client._served._samples):
                    sock = connection._sock
                    if sock is not None:
                        try:
                            sock.sock.shutdown(socket.SHUT_RDWR)
                        except OSError:  # it was already, or is not yet connected
                            continue

    cutter, _ = in_thread(cut)

    def add():
        streams.add_to(actor, np.arange(4, dtype=np.int32), lives * T + 1)
        actor.flush()

    adder, raised = in_thread(add)
    seen = []
    for _ in range(lives):
        seen += streams.check(learner.sample(20.0).trajectory)
    adder.join(20.0)
    done.set()
    cutter.join(5.0)
    assert not raised
    assert seen == [(i, 0, k * T) for k in range(lives) for i in range(4)]
    assert learner.info()[:5] == (streams.table, 0, 16, 4 * lives, 4 * lives)


@make_served
def test_two_inserts_may_be_on_their_way(make_replay, streams):
    """Not three: those that the table has no room for hold up whoever inserts more."""
    replay = make_replay(ReplayConfig("queue", T, max_size=4), 4)
    actor = replay.client(insert_timeout=0.5, pipelined=True)
    learner, everyone = replay.client(), np.arange(4, dtype=np.int32)
    streams.add_to(actor, everyone, 3 * T + 1)  # the second is without room, the third behind it
    assert learner.info().inserts == 4
    with pytest.raises(DeadlineExceeded, match="an insert waits for room: table"):
        streams.add_to(actor, everyone, T)
    for k in range(2):
        with pytest.raises(DeadlineExceeded, match="an insert waits for room: table"):
            actor.flush()
        assert streams.check(learner.sample(10.0).trajectory) == [(i, 0, k * T) for i in everyone]
    actor.flush()
    assert streams.check(learner.sample(10.0).trajectory) == [(i, 0, 2 * T) for i in everyone]
    assert learner.info()[:5] == (streams.table, 0, 4, 12, 12)


@make_served
def test_an_insert_waits_behind_one_that_has_no_room_wholly(make_replay, streams):
    """Three of four unrolls fit: the fourth is before those of the next insert."""
    replay = make_replay(ReplayConfig("queue", T, max_size=7), 1)
    actor = replay.client(insert_timeout=0.5, pipelined=True)
    learner, everyone = replay.client(), np.arange(4, dtype=np.int32)
    streams.add_to(actor, everyone, 3 * T + 1)
    with pytest.raises(DeadlineExceeded):
        actor.flush()
    seen = []
    for _ in range(12):
        seen += streams.check(learner.sample(10.0).trajectory)
        with contextlib.suppress(DeadlineExceeded):
            actor.flush()
    assert seen == [(i, 0, k * T) for k in range(3) for i in everyone]


@make_served
def test_what_is_wrong_with_an_insert_is_told_by_the_next_call(make_replay, streams):
    replay = make_replay(ReplayConfig("uniform", T, max_size=16), 4)
    client = replay.client(pipelined=True)
    everyone = np.arange(4, dtype=np.int32)
    streams.add_to(client, everyone, T + 1)
    client.flush()
    block = client.columns.allocate(4)._replace(priorities=np.ones(3))
    client._served.insert(block, None, 10.0, pipelined=True)
    with pytest.raises(SpecError, match=r"priorities \[3\]"):
        client.flush()
    streams.add_to(client, everyone, T)
    client.flush()
    assert client.info().inserts == 8


@make_served
def test_a_call_that_arrives_after_a_later_one_is_not_made(make_replay):
    """It lay in a connection that was lost, and its repetition was answered long ago."""
    replay = make_replay(ReplayConfig("uniform", T, max_size=16), 4)
    begin = greeting()

    def framed(*call):
        head = encode(call)
        return sizes(len(head), 0) + head

    late = stranger(replay, begin)
    with late, stranger(replay, begin + framed(1, "info", ())) as sock:
        assert sock.recv(1)
        late.sendall(framed(0, "reconfigure", ({"min_size_to_sample": 8},)))
        assert is_cut(late)
    assert replay.client().info().limits.min_size_to_sample == 1


@make_served
def test_strangers_reach_nothing(make_replay, streams):
    replay = make_replay(ReplayConfig("uniform", T, max_size=16), 4)
    client = replay.client()
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1)
    call = encode((0, "reconfigure", ({"max_size": 1},)))
    frame = sizes(len(call), 0) + call
    wrong = greetings.greeting("another key", os.urandom(16), "")
    for data in (wrong + frame, frame * 4, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n" * 9):
        with stranger(replay, data) as sock:
            assert is_cut(sock)
    before = threading.active_count()
    slow = [stranger(replay, greetings.proof(KEY)[:20]) for _ in range(100)]
    for sock in slow:  # 64 at most at a time, each for 2 s
        with sock:
            assert is_cut(sock)
    assert threading.active_count() <= before + 64
    streams.check(client.sample(5.0).trajectory)
    assert client.info().inserts == 4


@make_served
@pytest.mark.parametrize("counts", [(2**32 - 1, 0, 0), (10, 2**63, 0), (0, 2**40, 1), (3, 0, 0)])
def test_frames_that_are_too_large_or_no_messages_end_the_connection(make_replay, counts):
    """Even for a client with the key; nothing of that size is allocated."""
    replay = make_replay(ReplayConfig("uniform", T, max_size=16), 4)
    begin = greeting()
    with stranger(replay, begin + struct.pack("<IQ?", *counts) + b"xyz") as sock:
        assert is_cut(sock)
    assert replay.client().info().inserts == 0


@make_served
def test_fuzzed_calls_neither_end_the_server_nor_insert(make_replay, streams):
    replay = make_replay(ReplayConfig("uniform", T, max_size=16), 4)
    rng = np.random.default_rng(0)
    good = encode((0, "insert", (4, None, 0.1, False)))
    for _ in range(100):
        head = bytearray(good)
        for _ in range(rng.integers(1, 5)):
            head[rng.integers(len(head))] = rng.integers(256)
        begin = greeting()
        with stranger(replay, begin + sizes(len(head), 64) + head + bytes(64)) as sock:
            is_cut(sock)  # or answered, if it was a call
    client = replay.client()
    assert client.info().inserts == 0
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1)
    assert client.info().inserts == 4


@make_served
def test_a_server_that_is_started_again_has_its_clients_and_its_checkpoint(
    make_replay, streams, tmp_path
):
    replay = make_replay(ReplayConfig("queue", T, max_size=16), 4)
    actor, learner = replay.client(), replay.client()
    everyone = np.arange(4, dtype=np.int32)
    streams.add_to(actor, everyone, T + 1)
    replay.stop_serving()
    adder, raised = in_thread(lambda: streams.add_to(actor, everyone, T))
    replay.serve()
    adder.join(20.0)
    assert not adder.is_alive() and not raised
    counts = learner.save(tmp_path / "table", 20.0)
    assert counts == {"size": 8, "inserts": 8, "samples": 0}
    replay.close()
    again = make_replay(ReplayConfig("queue", T, max_size=16), 4, saved=tmp_path / "table").client()
    seen = [window for _ in range(2) for window in streams.check(again.sample(10.0).trajectory)]
    assert seen == [(i, 0, k * T) for k in range(2) for i in range(4)]


@make_served
@pytest.mark.parametrize(
    ("room", "answers"),
    [
        (8, [("ok", None)]),
        (2, [("wait", 2)]),
        (6, [("ok", None), ("wait", 2), ("wait", 0)]),  # the third is behind the second
    ],
)
def test_a_server_that_died_before_its_answers_has_inserted_once(make_replay, room, answers):
    """The next one finds in the table's memory which unrolls of repeated calls it has."""
    replay = make_replay(ReplayConfig("queue", T, max_size=room), 2)
    begin, learner = greeting(), replay.client()
    unrolls = learner.columns.pack(learner.columns.allocate(4))
    numbers = range(3, 3 + len(answers))
    for server in range(2):
        with stranger(replay, begin) as sock:
            connection = frames.FrameSocket(sock)
            for number in numbers:
                connection.send((number, "insert", (4, None, 0.0, False)), [unrolls])
            assert [connection.receive(0)[0][:2] for _ in numbers] == answers
        assert learner.info().inserts == min(4 * len(answers), room)
        if server == 0:
            replay.stop_serving()
            replay.serve()


@make_served
@pytest.mark.parametrize("pipelined", [False, True])
def test_both_sides_blocked_is_an_error_with_the_inequality(
    make_replay, streams, monkeypatch, pipelined
):
    """As of a table in shared memory."""
    monkeypatch.setattr(ReplayConfig, "check", lambda *arguments: None)
    config = ReplayConfig("uniform", T, 8, 2, samples_per_insert=1.0, error_buffer=1.0)
    replay = make_replay(config, 4)
    writer = replay.client(pipelined=pipelined)
    with pytest.raises(Blocked, match=r"neither an insert nor a sample is admitted: .*it is 3"):
        streams.add_to(writer, np.arange(4, dtype=np.int32), 2 * T + 1)
        writer.flush()
    with pytest.raises(Blocked, match=r"neither .* 1 <= inserts \* 1 - samples"):
        replay.client().sample(30.0)
    replay.client().reconfigure(samples_per_insert=None)
    streams.add_to(writer, np.arange(4, dtype=np.int32), T, life=1)
    writer.flush()


@make_served
def test_a_wait_names_who_waits(make_replay):
    replay = make_replay(ReplayConfig("queue", T, max_size=8), 4)
    for name, who in (("actor/3", "actor/3"), ("a\n\x1b" + "é" * 30, "a??" + "é" * 22)):
        stop = threading.Event()
        waiting, _ = in_thread(
            lambda stop=stop, name=name: replay.client(stop, name=name).sample(9.0)
        )
        until(lambda who=who: [w.who for w in replay._shared.info().waits] == [who], who)
        stop.set()
        waiting.join(5.0)


@make_served
def test_a_client_that_does_not_come_back_is_forgotten(make_replay):
    replay = make_replay(ReplayConfig("queue", T, max_size=8), 4)
    replay.stop_serving()
    replay.serve(kept=0.1)
    clients = replay._shared.clients
    before = np.count_nonzero(clients._rows[:, 0])
    with stranger(replay, greeting()) as sock:
        connection = frames.FrameSocket(sock)
        for number in range(2):  # the first one has made its row
            connection.send((number, "sample", (0.0,)))
            assert connection.receive(0)[0][0] == "wait"
        time.sleep(0.7)  # it is not forgotten while it is there
        assert np.count_nonzero(clients._rows[:, 0]) == before + 1
    until(lambda: np.count_nonzero(clients._rows[:, 0]) == before, "its row is free")
    assert not replay._served._clients


@make_served
def test_a_closed_server_is_told(make_replay):
    replay = make_replay(ReplayConfig("uniform", T, max_size=16), 4)
    client = replay.client()
    client.info()
    replay.stop_serving()
    began = time.monotonic()
    with pytest.raises((ServerSilent, Stopped), match="table"):
        client._served._others.call("info", timeout=0.5)
    assert time.monotonic() - began < 30
