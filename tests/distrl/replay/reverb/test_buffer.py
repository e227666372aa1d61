"""What is specific to Reverb: items, a server in another process, and its death."""

import json
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from distrl.errors import ConfigError, DeadlineExceeded
from distrl.replay.buffer import ReplayConfig
from distrl.replay.reverb import calls

reverb = pytest.importorskip(
    "reverb", reason="dm-reverb is not installed (it has wheels for Python 3.10 at most)"
)
from distrl.replay.reverb.buffer import ReverbReplayBuffer  # noqa: E402
from distrl.replay.reverb.server import (  # noqa: E402
    about_tables,
    reverb_tables,
    served_table,
)

T = 4
CONFIG = ReplayConfig("queue", T, max_size=8)

SERVER = """
import socket, sys, reverb
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = reverb.Server([reverb.Table.queue("task-1", 2)], port)
print(port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield process, f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate(timeout=10)


def buffer_at(address, struct, name="task-1", **settings):
    return ReverbReplayBuffer(reverb.Client(address), struct, CONFIG, 4, name, **settings)


def test_a_server_in_another_process_and_its_death(server, streams, monkeypatch):
    process, address = server
    monkeypatch.setattr(calls, "_CALL_TIMEOUT", 1)
    monkeypatch.setattr(calls, "_WATCH_INTERVAL", 0.5)
    four = np.arange(4, dtype=np.int32)
    actor = buffer_at(address, streams.struct, unrolls_per_item=4)
    learner = buffer_at(address, streams.struct, unrolls_per_item=4)
    adding = threading.Thread(target=streams.add_to, args=(actor, four, 100 * T + 1), daemon=True)
    adding.start()
    seen = []
    for _ in range(100):
        seen += streams.check(learner.sample(20.0).trajectory)
    adding.join(10.0)
    assert seen == [(i, 0, k * T) for k in range(100) for i in range(4)]

    # Fetched ahead: one assembled batch, one in the sampler, and no more.
    streams.add_to(actor, four, 4 * T)
    deadline = time.monotonic() + 10
    while learner.info().samples < 4 * 102:
        assert time.monotonic() < deadline
    time.sleep(0.2)
    assert learner.info().samples == 4 * 102

    process.send_signal(signal.SIGKILL)
    process.wait(10)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=rf"table 'task-1' at {address}.*did not answer"):
        for _ in range(10):
            learner.sample(None)
    assert time.monotonic() - began < 5
    with pytest.raises((DeadlineExceeded, RuntimeError), match=f"table 'task-1' at {address}"):
        streams.add_to(actor, four, 10 * T)
    learner.close()
    actor.close()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)
def test_a_server_without_the_table(make_replay, streams):
    """Another program's server listens on our server's port."""
    address = make_replay(CONFIG, 4, 4).address
    buffer = buffer_at(address, streams.struct, name="task-2", unrolls_per_item=4)
    with pytest.raises(RuntimeError, match="task-2"):
        buffer.sample(10.0)
    with pytest.raises(RuntimeError, match=rf"task-2.*no such table; it has \['{streams.table}'\]"):
        buffer.info()
    with pytest.raises(RuntimeError, match="task-2"):
        streams.add_to(buffer, np.arange(4, dtype=np.int32), 9 * T)
    buffer.close()


@pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)
def test_another_struct_is_refused(make_replay, streams):
    replay = make_replay(CONFIG, 4, 4)
    actor = replay.client()
    streams.add_to(actor, np.arange(4, dtype=np.int32), T + 1)
    other = streams.struct._replace(action=jax.ShapeDtypeStruct((), np.float32))
    learner = buffer_at(replay.address, other, streams.table, unrolls_per_item=4)
    with pytest.raises(RuntimeError, match=rf"{streams.table}.*differ in environment, agent"):
        learner.sample(10.0)
    learner.close()


def test_sizes_must_be_multiples_of_an_items(streams):
    for settings, batch_size, per_item, message in (
        ({"max_size": 10}, 8, 4, "max_size=10 is no multiple of unrolls_per_item=4; 2 would be"),
        ({"max_size": 12}, 6, 4, "batch_size=6 is no multiple"),
        ({"table": "uniform"}, 4, 4, "must be 1 for replay.table=uniform"),
        ({}, 4, 0, "must be 1 or more"),
        ({"max_size": 2}, 4, 1, "can never hold a batch of 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            reverb_tables(ReplayConfig(**settings), streams.struct, batch_size, "t", per_item)


@pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)
def test_a_strict_ratio_with_a_small_error_buffer(make_replay, streams):
    """The limits are less than twice `samples_per_insert` apart, for which Reverb's class asks."""
    config = ReplayConfig("uniform", T, samples_per_insert=8.0, error_buffer=8.0, strict_ratio=True)
    replay = make_replay(config, 4)
    client = replay.client()
    assert client.info().limits == config.limits(4)
    for steps, samples in ((T + 1, 1), (T, 2), (T, 2)):
        streams.add_to(client, np.arange(1, dtype=np.int32), steps)
        client.flush()
        for _ in range(samples):
            client.sample(timeout=60.0)


@pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)
def test_the_state_of_a_server_in_another_process(make_replay, streams):
    config = ReplayConfig(
        "uniform", T, max_size=9, min_size_to_sample=2, samples_per_insert=2.0, error_buffer=8.0
    )
    replay = make_replay(config, 2)
    client = replay.client()
    about = json.loads(json.dumps(about_tables(config, streams.struct, replay.address)))
    assert served_table(streams.table, about)[1].ages is None
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1)
    client.flush()
    info, contents = served_table(streams.table, about)
    assert info == client.info()
    assert info[:5] == (streams.table, 4, 9, 4, 0) and info.limits == config.limits(2)
    assert contents.nbytes == 4 * contents.capacity_bytes // 9 > 0
    assert contents.sampler == "uniform" and contents.ages == (3, 1, None, None)
    with pytest.raises(RuntimeError, match="no such table"):
        served_table("task-2", about)
    # Without a limiter Reverb's bounds are the largest doubles.
    free = make_replay(ReplayConfig("uniform", T), 2)
    assert free.client().info().limits == ReplayConfig("uniform", T).limits(2)
