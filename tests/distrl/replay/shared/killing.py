"""Kills processes while they use a shared table. A separate program, because it forks.

  python killing.py steps TABLE line|opcode EVERY  a kill at each line of each change
  python killing.py chaos TABLE SECONDS SEED       kills at random times, as settings change

Every value of an unroll identifies its step, which reveals torn unrolls and those of two lives.
Exits with 0 if all was well, and prints counts.
"""

import dataclasses
import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import DeadlineExceeded
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.call_numbers import Call
from distrl.replay.shared.slots import FREE, PENDING, READY, QueueSlots, RingSlots
from distrl.replay.shared.table import SharedTable
from distrl.shared_memory.segment import FOLDER
from distrl.types import Inference, Sample, TimeStep

T = 3
BATCH = 4
WIDTH = 500
STRUCT = specs.trajectory_struct(
    specs.EnvironmentSpec(
        dm_specs.Array((WIDTH,), np.int64), dm_specs.DiscreteArray(1000, np.int32)
    ),
    {},
    jax.ShapeDtypeStruct((2,), np.int64),
)
CONFIGS = {
    "queue": ReplayConfig("queue", T, max_size=8),
    "uniform": ReplayConfig(
        "uniform", T, max_size=9, min_size_to_sample=3, samples_per_insert=2.0, error_buffer=20.0
    ),
    "prioritized": ReplayConfig(
        "prioritized", T, max_size=9, min_size_to_sample=3, samples_per_insert=2.0,
        error_buffer=20.0, priority_exponent=1.0,
    ),
}  # fmt: skip

CHANGES: dict[str, dict[str, Any]] = {
    "uniform": {"table": "prioritized", "samples_per_insert": 1.0, "min_size_to_sample": 9},
    "prioritized": {"priority_exponent": 0.5, "samples_per_insert": 1.0, "error_buffer": 8.0},
}
LIVELY = [
    {"samples_per_insert": None},
    {"samples_per_insert": 4.0, "error_buffer": None, "priority_exponent": 0.0},
    {"samples_per_insert": 0.5, "error_buffer": 3.0, "table": "uniform"},
    {"min_size_to_sample": 9, "priority_exponent": 0.7},
    {"min_size_to_sample": 1, "table": "prioritized"},
]

# Files that only touch memory of this process: no kills there.
CUTTING = tuple(
    f"{name}.py"
    for name in ("unrolls", "step_rows", "stream_columns", "stream_index", "step_values", "columns")
)

Unroll = tuple[int, int, int]  # stream, life, number of the unroll


class Writer:
    """Adds steps of `count` streams from `first` on, in one life."""

    def __init__(self, buffer: SharedReplayBuffer, first: int, count: int, life: int):
        self._buffer, self._life = buffer, life
        self._ids = np.arange(first, first + count, dtype=np.int32)
        self._step = 0

    def step(self) -> None:
        """Adds one step of each stream."""
        count, step = len(self._ids), self._step
        tag = (self._ids.astype(np.int64) << 40) | (self._life << 28) | step
        timestep = TimeStep(
            np.ones(count, np.int8),
            np.full(count, step, np.float32),
            np.ones(count, np.float32),
            np.repeat(tag[:, None], WIDTH, 1),
            np.zeros(count, np.int32),
        )
        action = np.full(count, step % 1000, np.int32)
        state = np.stack([tag, -tag], 1)
        self._buffer.add(self._ids, timestep, Inference(action, {}, step, state), self._life)
        self._step += 1


def check(sample: Sample) -> list[Unroll]:
    """Asserts that each unroll is complete and of one stream and life; returns them."""
    seen = []
    trajectory = sample.trajectory
    for b in range(len(sample.key)):
        stream, life = int(trajectory.stream_id[b]), int(trajectory.life[b])
        first = int(trajectory.version[0, b])
        steps = first + np.arange(T + 1)
        tags = (stream << 40) | (life << 28) | steps
        assert (trajectory.timestep.observation[:, b] == tags[:, None]).all(), "torn"
        assert (trajectory.timestep.reward[:, b] == steps).all(), "torn"
        assert (trajectory.version[:, b] == steps).all(), "torn"
        assert (trajectory.action[:, b] == steps % 1000).all(), "torn"
        assert trajectory.state[b].tolist() == [tags[0], -tags[0]], "torn"
        seen.append((stream, life, first // T))
    return seen


def check_whole(table: SharedTable) -> None:
    """Asserts that counts, order and sums match the slots, when all clients are idle."""
    with table.lock:
        store = table.store
        table.take_back(table.clients.dead())
        state = store.word & 3
        assert set(state.tolist()) <= {FREE, READY} and table._ints[PENDING] == 0
        ready = np.flatnonzero(state == READY)
        assert store.size == len(ready), (store.size, len(ready))
        first, count = table._ints[4], table._ints[5]
        free = store._free[(first + np.arange(count)) % len(store._free)]
        assert sorted(free.tolist()) == np.flatnonzero(state == FREE).tolist()
        if isinstance(store, RingSlots):
            counts = store.counts
            keys = np.arange(counts.deletes, counts.inserts)
            slots = store._order[keys % table.config.max_size]
            assert sorted(slots.tolist()) == ready.tolist()
            assert store.key[slots].tolist() == keys.tolist()
            tree = store.ring._tree
            if tree is not None:
                weights = tree.get(np.arange(table.config.max_size))
                assert abs(tree.total - weights.sum()) < 1e-9
                assert (weights > 0).sum() == len(keys)
                indices = keys % table.config.max_size
                priorities = store.ring.priorities()
                assert np.allclose(weights[indices], priorities**table.config.priority_exponent)


def make_table(kind: str) -> SharedTable:
    return SharedTable.create(STRUCT, CONFIGS[kind], BATCH, f"killing-{kind}-{os.getpid()}", seed=1)


def client(table: SharedTable) -> SharedReplayBuffer:
    return SharedReplayBuffer(table, STRUCT, table.config, BATCH)


def fork(function: Callable[[], Any]) -> int:
    """Runs a function in a child process; returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        function()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def die_at(count: int, opcodes: bool) -> Callable[..., Any]:
    """Returns a trace function that kills this process at the n-th line of the replay's code."""
    left = count

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if "/distrl/replay/" not in name or Path(name).name in CUTTING:
            return None
        frame.f_trace_opcodes = opcodes
        if event == ("opcode" if opcodes else "line"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def in_order(table: SharedTable) -> list[Unroll]:
    """Returns the table's unrolls in order of keys, after checking each."""
    store = table.store
    slots, _ = store._sorted(READY)
    handle = client(table)._handle
    batch = handle.columns.take(handle._stored, slots)
    trajectory = handle.columns.trajectory(batch, np.ones(len(slots), np.float32))
    handle.leave()
    return check(Sample(trajectory, np.zeros(len(slots))))


def steps(kind: str, opcodes: bool, every: int) -> dict[str, int]:
    """Kills a child at every line of each change; the table must stay consistent."""
    table = make_table(kind)
    kills = 0
    for what in ("insert", "sample", "update", "change"):
        if (what == "update" and kind != "prioritized") or (what == "change" and kind == "queue"):
            continue
        for moment in range(0, 1_000_000, every):
            # A full table whose order has wrapped around.
            own_client = client(table)
            writer = Writer(own_client, 0, 3, moment + 1)
            while table.store.can_insert(3) >= 3:
                writer.step()
            own_client.update_priorities(
                table.store.key.astype(np.uint64), np.full(table.slots, 5.0)
            )
            if what == "insert":
                own_client.sample(5.0)
            own_client.close()
            check_whole(table)
            before, info = in_order(table), table.info()
            again = client(table)
            other = Writer(again, 50, 2, moment + 1)
            for _ in range(T if what == "insert" else 0):
                other.step()

            call = Call(what.encode().ljust(16), moment)
            reports, pipe = os.pipe()

            def act(
                what: str = what,
                moment: int = moment,
                other: Writer = other,
                call: Call = call,
                pipe: int = pipe,
            ) -> None:
                # The child needs its own client: slots belong to processes.
                child_client = client(table)
                insert = child_client._handle.insert
                numbered = functools.partial(insert, call=call)
                other._buffer._table = SimpleNamespace(insert=numbered)
                store = table.store
                keys = store.key[store.word == READY].astype(np.uint64)
                if isinstance(store, QueueSlots):
                    done = store.done

                    def report(slots: np.ndarray) -> None:
                        os.write(pipe, b"x")
                        done(slots)

                    store.done = report  # type: ignore[method-assign]
                sys.settrace(die_at(moment, opcodes))
                if what == "insert":
                    other.step()
                elif what == "sample":
                    child_client.sample(5.0)
                elif what == "update":
                    child_client.update_priorities(keys, np.full(len(keys), 2.0))
                else:
                    table.reconfigure(**CHANGES[kind])
                sys.settrace(None)

            status = os.waitpid(fork(act), 0)[1]
            os.close(pipe)
            read = os.read(reports, 1) == b"x"
            os.close(reports)
            check_whole(table)
            after, now = in_order(table), table.info()
            added = [u for u in after if u not in before]
            assert added == [(50 + i, moment + 1, 0) for i in range(len(added))], added
            kept = [u for u in after if u in before]
            assert kept == before[len(before) - len(kept) :]
            assert now.inserts == info.inserts + len(added)
            with table.lock:
                counted = table.numbered.done(call)
            assert counted == len(added)
            if kind == "queue":
                lost = len(before) - len(kept)
                # All are sampled again, unless all were read.
                assert lost == 0 or (lost == BATCH and read), lost
                assert now.inserts - now.samples == now.size
            elif what != "insert":
                assert kept == before
            else:
                assert now.size >= info.size - 2
            if what == "change":
                new = dataclasses.replace(CONFIGS[kind], **CHANGES[kind])
                assert table.config in (CONFIGS[kind], new)
                assert (now.limits == info.limits) == (table.config == CONFIGS[kind])
                old = {name: getattr(CONFIGS[kind], name) for name in CHANGES[kind]}
                table.reconfigure(**old)
                check_whole(table)
            if kind == "prioritized" and added:
                new = np.arange(info.inserts, now.inserts) % table.config.max_size
                # The largest priority so far, of the update above.
                assert (table.store.ring._tree.get(new) == 5.0).all()  # type: ignore[union-attr]
            again.close()
            # The table still works.
            reader = client(table)
            while reader.can_sample():
                check(reader.sample(5.0))
            reader.close()
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                assert moment > every, f"{what}: killed less than twice"
                break
            kills += 1
        else:
            raise AssertionError("the change has no last line")
    table.close()
    return {"kills": kills}


def chaos(kind: str, seconds: float, seed: int) -> dict[str, Any]:
    """Kills writers and a reader at random times, while this process reads and checks."""
    rng = random.Random(seed)
    table = make_table(kind)
    lives: dict[int, int] = {}
    running: dict[int, tuple[str, int]] = {}
    pipes: dict[int, int] = {}  # of the readers

    def write(first: int, life: int) -> None:
        writer = Writer(client(SharedTable.open(table.name)), first, 3, life)
        while True:
            writer.step()

    def read(pipe: int) -> None:
        buffer = client(SharedTable.open(table.name))
        while True:
            sample = buffer.sample(None)
            os.write(pipe, (json.dumps(check(sample)) + "\n").encode())  # atomic: it is short
            if kind == "prioritized":
                buffer.update_priorities(sample.key, np.full(BATCH, rng.random() + 0.1))

    def start(role: tuple[str, int]) -> None:
        if role[0] == "writer":
            life = lives[role[1]] = lives.get(role[1], -1) + 1
            running[fork(lambda: write(role[1], life))] = role
        else:
            end, pipe = os.pipe()
            running[fork(lambda: read(pipe))] = role
            os.close(pipe)
            pipes[end] = 0

    def reports() -> Iterator[Unroll]:
        for end in pipes:
            with os.fdopen(end, "r") as file:
                for line in file:
                    yield from map(tuple, json.loads(line))  # type: ignore[misc]

    for role in (("writer", 0), ("writer", 100), ("writer", 200), ("reader", 0)):
        start(role)
    own_client = client(table)
    seen: list[Unroll] = []
    kills = 0
    deadline = time.monotonic() + seconds
    next_kill = time.monotonic()
    while time.monotonic() < deadline:
        seen += check(own_client.sample(20.0))
        if kind != "queue" and rng.random() < 0.02:
            table.reconfigure(**rng.choice(LIVELY))
        if time.monotonic() >= next_kill:
            next_kill = time.monotonic() + rng.expovariate(20.0)
            pid = rng.choice(list(running))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), f"{running[pid]} ended by itself: {status}"
            start(running.pop(pid))
            kills += 1
    for pid, role in running.items():
        done, status = os.waitpid(pid, os.WNOHANG)
        assert done == 0, f"{role} ended by itself: {status}"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    check_whole(table)
    try:
        while kind == "queue":
            seen += check(own_client.sample(0.0))
    except DeadlineExceeded:
        pass
    info = table.info()
    seen += reports()
    if kind == "queue":
        assert len(set(seen)) == len(seen), "read twice"
        assert info.inserts - info.samples == info.size < BATCH
        # Only what a dead reader read and did not report may be missing.
        assert 0 <= info.samples - len(seen) <= BATCH * (kills + 1)
    else:
        assert min(table.observed_margins()) >= -1e-6, table.observed_margins()
    own_client.close()
    assert not table.clients._rows[:, 0].any()
    table.close()
    assert not [p for p in FOLDER.iterdir() if table.name in p.name]
    return {"kills": kills, "inserts": info.inserts, "samples": info.samples, "read": len(seen)}


if __name__ == "__main__":
    assert Path(FOLDER).is_dir()
    mode, table_kind, *rest = sys.argv[1:]
    if mode == "steps":
        print(json.dumps(steps(table_kind, rest[0] == "opcode", int(rest[1]))))
    else:
        print(json.dumps(chaos(table_kind, float(rest[0]), int(rest[1]))))
