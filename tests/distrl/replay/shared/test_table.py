"""What is specific to shared memory: files, names, other processes, and their deaths."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from distrl.errors import Blocked, ConfigError, DeadlineExceeded, PeerError, SpecError, Stopped
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared import clients
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.runtime.patience import Patience
from distrl.shared_memory import segment
from tests.support.selection import full

T = 4
CONFIG = ReplayConfig("queue", T, max_size=8)
ROOT = Path(__file__).parents[4]
KILLING = Path(__file__).with_name("killing.py")


@pytest.fixture
def name(request):
    return f"{request.node.name}-{os.getpid()}"


def left(name):
    return [file for file in segment.existing() if file.name == name]


def client(table, struct, config=CONFIG, batch_size=4, **more):
    return SharedReplayBuffer(table, struct, config, batch_size, **more)


def killing(*arguments, timeout=110):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(KILLING), *map(str, arguments)],
        env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_killed_at_some_lines(kind):
    killing("steps", kind, "line", 17)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_killed_between_instructions(kind):
    killing("steps", kind, "opcode", 3, timeout=800)


@pytest.mark.parametrize("kind", [full("queue"), full("uniform"), "prioritized"])
def test_killed_at_random(kind):
    killing("chaos", kind, 1, 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_killed_at_random_for_a_minute(kind):
    killing("chaos", kind, 60, 1, timeout=200)


def test_removed_at_the_end(streams, name):
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    assert [file.creator.pid for file in left(name)] == [os.getpid()]
    table.close()
    assert not left(name)
    kept = SharedTable.create(streams.struct, CONFIG, 4, name)
    assert left(name)
    del kept, table  # deleted without being closed
    assert not left(name)


def test_a_name_is_used_once(streams, name):
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    with pytest.raises(ConfigError, match=f"already, of process {os.getpid()}"):
        SharedTable.create(streams.struct, CONFIG, 4, name)
    table.close()
    with pytest.raises(ConfigError, match="1 to 200 characters"):
        SharedTable.create(streams.struct, CONFIG, 4, "")


def test_a_name_may_have_any_letters(streams, name):
    odd = f"runs/2024 a.b.1.2 ü {name}"
    table = SharedTable.create(streams.struct, CONFIG, 4, odd)
    assert SharedTable.open(odd, 0.0).info().max_size == 8
    table.close()


CREATOR = """
import sys
import numpy as np
from distrl import specs
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.table import SharedTable
from dm_env import specs as dm_specs
spec = specs.EnvironmentSpec(dm_specs.Array((2,), np.float32), dm_specs.DiscreteArray(2, np.int32))
struct = specs.trajectory_struct(spec, {}, ())
table = SharedTable.create(struct, ReplayConfig("queue", 4, max_size=8), 4, sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def creator(name):
    process = subprocess.Popen(
        [sys.executable, "-c", CREATOR, name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate(timeout=10)


def test_a_dead_owner(creator, streams, name):
    from dm_env import specs as dm_specs

    from distrl import specs

    spec = specs.EnvironmentSpec(
        dm_specs.Array((2,), np.float32), dm_specs.DiscreteArray(2, np.int32)
    )
    struct = specs.trajectory_struct(spec, {}, ())
    reader = client(name, struct)
    creator.kill()
    # It is a zombie until it is waited for, which counts as dead.
    with pytest.raises(PeerError, match=f"process {creator.pid}, which made it, is dead"):
        reader.sample(20.0)
    # Another test's process may have removed it while creating a table.
    seen = f"of dead process {creator.pid}" if left(name) else f"no table '{name}'"
    with pytest.raises(DeadlineExceeded, match=f"{seen}|no table '{name}'"):
        SharedTable.open(name, 0.0)
    # Its file is removed when any table is created, also one of the same name.
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    assert [file.creator.pid for file in left(name)] == [os.getpid()]
    table.close()
    assert not left(name)


def test_what_a_crashed_program_has_left_takes_no_room(creator, streams, name):
    assert left(name)
    creator.kill()
    creator.wait(timeout=10)
    SharedTable.check_room(streams.struct, CONFIG, 4)
    assert not left(name)


def test_open_waits_for_the_table(streams, name):
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=f"no table '{name}' in /dev/shm after 0.2 s"):
        client(name, streams.struct, open_timeout=0.2)
    assert time.monotonic() - began < 5
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        SharedTable.open(name, 10.0, stop)
    made = []
    timer = threading.Timer(
        0.3, lambda: made.append(SharedTable.create(streams.struct, CONFIG, 4, name))
    )
    timer.start()
    assert SharedTable.open(name, 30.0).info().size == 0
    timer.join()
    made[0].close()


def test_what_differs_is_refused(streams, name):
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    other = streams.struct._replace(action=jax.ShapeDtypeStruct((), np.float32))
    with pytest.raises(SpecError, match=f"{name}.*differ in environment, agent"):
        client(name, other)
    with pytest.raises(ConfigError, match=r"made with replay.max_size=8, and .* has 9"):
        client(name, streams.struct, ReplayConfig("queue", T, max_size=9))
    with pytest.raises(ConfigError, match="made with batch_size=4, and its client has 2"):
        client(name, streams.struct, batch_size=2)
    table.close()


def test_too_little_memory_is_refused(streams, name):
    config = ReplayConfig("uniform", 1000, max_size=10**10)
    with pytest.raises(ConfigError, match=r"MB of /dev/shm, which has .* MB left"):
        SharedTable.create(streams.struct, config, 4, name)
    assert not left(name)


def test_shared_memory_that_cannot_be_written_is_refused(streams, name, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != segment.FOLDER)
    said = rf"'{name}' needs /dev/shm, which cannot be written: .* --topology=single_process$"
    with pytest.raises(ConfigError, match=f"^table {said}"):
        SharedTable.check_room(streams.struct, CONFIG, 4, name)
    with pytest.raises(ConfigError, match=f"^request file {said}"):
        segment.check_room(name, 1, segment.REQUESTS)
    with pytest.raises(ConfigError, match=f"^table {said}"):
        SharedTable.create(streams.struct, CONFIG, 4, name)
    assert not left(name)


@pytest.mark.parametrize("installed", [False, True])
def test_what_has_no_room_is_advised_what_is_installed(monkeypatch, installed):
    def find_spec(name):
        assert name in {"reverb", "courier"}
        return object() if installed else None

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    for kind, advice, elsewhere in (
        (segment.TABLE, "--topology=single_process", "replay.backend=reverb"),
        (segment.REQUESTS, "--topology=heavy_env", "inference.transport=courier"),
    ):
        with pytest.raises(ConfigError) as refused:
            segment.check_room("x", 1 << 60, kind)
        assert advice in str(refused.value)
        assert (elsewhere in str(refused.value)) == installed
    with pytest.raises(ConfigError, match=r"left: give it more memory$"):
        segment.check_room("x", 1 << 60, segment.BOARD)


def test_both_sides_blocked_is_an_error_with_the_inequality(streams, name, monkeypatch):
    """`ReplayConfig.check` refuses such settings; if it misses one, no call waits forever."""
    monkeypatch.setattr(ReplayConfig, "check", lambda *arguments: None)
    config = ReplayConfig("uniform", T, 8, 2, samples_per_insert=1.0, error_buffer=1.0)
    table = SharedTable.create(streams.struct, config, 4, name)
    writer = client(table, streams.struct, config)
    with pytest.raises(
        Blocked, match=r"neither an insert nor a sample is admitted: .*inserts beyond"
    ):
        streams.add_to(writer, np.arange(4, dtype=np.int32), T + 1)
    with pytest.raises(Blocked, match=r"neither .* 1 <= inserts \* 1 - samples"):
        client(table, streams.struct, config).sample(30.0)
    table.close()


def insert(name, streams):
    streams.add_to(client(name, streams.struct), np.arange(2, dtype=np.int32), T + 1)


class OnTheirWay:
    """Workers that have been restarted, and have not come to the table yet."""

    def signs(self):
        return 0

    def busy(self):
        return False

    def present(self):
        return True

    def describe(self):
        return "on their way"


def test_a_wait_for_a_dead_side_ends(streams, elsewhere, name, monkeypatch):
    monkeypatch.setattr("distrl.replay.shared.waits.REPLACED_WITHIN", 0.0)
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    child = elsewhere(insert, name, streams)
    assert child.wait(60.0) == 0
    reader = client(name, streams.struct)
    with pytest.raises(DeadlineExceeded):  # an actor is known to be on its way
        reader.sample(Patience(1.0, OnTheirWay()))
    with pytest.raises(Blocked, match=f"process {child.pid}, which inserted, is dead, and no"):
        reader.sample(30.0)
    streams.add_to(client(name, streams.struct), np.arange(2, 6, dtype=np.int32), T + 1)
    reader.sample(30.0)  # another writer has come
    table.close()


def test_contents_are_bytes_and_priorities(streams, name):
    config = ReplayConfig("prioritized", T, max_size=8, priority_exponent=0.5)
    table = SharedTable.create(streams.struct, config, 4, name)
    writer = client(name, streams.struct, config)
    streams.add_to(writer, np.arange(4, dtype=np.int32), T + 1)
    writer.update_priorities(np.arange(4, dtype=np.uint64), np.array([1.0, 1.0, 2.0, 11.0]))
    nbytes, capacity, sampler, ages, priorities = table.contents()
    assert 0 < nbytes == 4 * capacity // table.slots
    assert sampler == "prioritized, exponent 0.5"
    assert ages is not None and ages[:2] == (3, 1)
    assert priorities is not None
    counts, edges = priorities
    assert counts == (2, 1, 0, 0, 0, 0, 0, 0, 0, 1)
    np.testing.assert_allclose(edges, np.arange(1.0, 12.0), rtol=1e-6)
    assert "priorities from 1: 2, 2: 1" in str(table.contents())
    table.close()


def test_the_owner_closes(streams, name):
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    reader, writer = client(name, streams.struct), client(name, streams.struct)
    raised = []

    def wait():
        try:
            reader.sample(None)
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not table.info().waits:
        time.sleep(0.01)
    (waits,) = table.info().waits
    assert waits.who == f"process {os.getpid()}" and waits.what == "samples"
    assert "has waited for samples for" in str(table.info())
    table.close()
    thread.join(5.0)
    assert "closed by its owner" in str(raised[0])
    with pytest.raises(Stopped, match="closed by its owner"):
        streams.add_to(writer, np.arange(4, dtype=np.int32), T + 1)
    assert reader.info().waits == ()


def test_more_at_once_than_there_is_room(streams, name):
    """A block of more unrolls than there are slots is inserted in parts."""
    config = ReplayConfig("uniform", T, max_size=3)
    table = SharedTable.create(streams.struct, config, 2, name)
    writer, reader = (
        client(name, streams.struct, config, 2),
        client(name, streams.struct, config, 2),
    )
    streams.add_to(writer, np.arange(20, dtype=np.int32), T + 1)
    assert reader.info()[1:4] == (3, 3, 20)
    seen = [u for _ in range(20) for u in streams.check(reader.sample(1.0).trajectory)]
    assert set(seen) == {(i, 0, 0) for i in (17, 18, 19)}
    table.close()


def test_an_insert_waits_until_all_of_it_is_admitted(streams, name):
    """Or as much as can be before the samples wait, too. A sample admits one unroll."""
    config = ReplayConfig("uniform", T, 32, 4, samples_per_insert=4.0, error_buffer=16.0)
    table = SharedTable.create(streams.struct, config, 4, name)
    reader, writer = (client(table, streams.struct, config) for _ in range(2))
    streams.add_to(writer, np.arange(8, dtype=np.int32), T + 1)

    def insert(count):
        writer = client(table, streams.struct, config)
        arguments = writer, np.arange(count, dtype=np.int32), T + 1
        thread = threading.Thread(target=streams.add_to, args=arguments, daemon=True)
        thread.start()
        return thread

    def samples_until_woken(inserts):
        """Begins when an insert waits after so many."""
        deadline = time.monotonic() + 30.0
        while table.info().inserts != inserts or not table.clients.waiting[clients.ROOM]:
            assert time.monotonic() < deadline, f"no insert waits: {table.info()}"
            time.sleep(0.001)
        woken, count = table.events[clients.ROOM].read(), 0
        while table.events[clients.ROOM].read() == woken:
            reader.sample(10.0)
            count += 1
        return count

    first = insert(4)
    assert samples_until_woken(8) == 4
    first.join(30.0)
    second = insert(12)
    assert samples_until_woken(12) == 8  # of which the last leaves no other
    assert samples_until_woken(20) == 4
    second.join(30.0)
    assert table.info().inserts == 24
    table.close()


def test_a_queue_above_its_capacity_after_a_death(streams, name):
    """A reader dies after writers have filled its room: inserts block until it is free again."""
    table = SharedTable.create(streams.struct, CONFIG, 4, name)
    writer = client(table, streams.struct, insert_timeout=0.3)
    reader = client(table, streams.struct)
    streams.add_to(writer, np.arange(8, dtype=np.int32), T + 1)
    with table.lock:
        table.store.take(99, 4)
    streams.add_to(client(table, streams.struct), np.arange(8, 12, dtype=np.int32), T + 1)
    with table.lock:
        table.store.repair([99])
    assert table.info().size == 12
    with pytest.raises(DeadlineExceeded, match="size 12 of 8"):
        streams.add_to(writer, np.arange(8, dtype=np.int32), T)
    seen = [u for _ in range(3) for u in streams.check(reader.sample(1.0).trajectory)]
    assert seen == [(i, 0, 0) for i in range(12)]
    table.close()
