"""What every table saves and loads: contents, counts, priorities, random state."""

import dataclasses
import itertools
import json
import math
import os
import pickle
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import ConfigError, SpecError
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Columns
from distrl.replay.local.table import LocalTable
from distrl.replay.table import files
from tests.support.selection import full

T = 4
ROOT = Path(__file__).parents[4]
RESTORING = Path(__file__).with_name("restoring.py")
CONFIGS = {
    "queue": (ReplayConfig("queue", T, max_size=32), 4),
    "uniform": (
        ReplayConfig("uniform", T, 16, 4, samples_per_insert=2.0, error_buffer=200.0), 1,
    ),
    "prioritized": (ReplayConfig("prioritized", T, 16, 4), 1),
}  # fmt: skip
BATCH = 4


@pytest.fixture(params=CONFIGS)
def table(request):
    return CONFIGS[request.param]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(files, "SLICE_BYTES", 1000)  # 2 unrolls


def filled(replay, streams):
    """Returns a client of a table after 20 inserts and 8 samples."""
    client = replay.client()
    streams.add_to(client, np.arange(4, dtype=np.int32), 5 * T + 1)
    client.flush()
    for _ in range(2):
        sample = client.sample(10.0)
        if client.is_prioritized:
            client.update_priorities(sample.key, np.arange(1.0, 5.0))
    return client


def in_fresh_process(tmp_path, kind, config, per_item, folder, samples):
    asked = tmp_path / "asked"
    asked.write_bytes(pickle.dumps((kind, config, BATCH, per_item, folder, samples)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RESTORING), str(asked)],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads(asked.with_suffix(".out").read_bytes())


def key(sample):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(sample)]


@pytest.mark.parametrize("make_replay", ["local", "shared", full("reverb")], indirect=True)
def test_a_fresh_process_has_the_same_table(make_replay, streams, tmp_path, table):
    config, per_item = table
    replay = make_replay(config, BATCH, per_item)
    client = filled(replay, streams)
    folder = tmp_path / "table"
    before = client.info()
    counts = client.save(folder, 30.0)
    client.flush()
    if replay.kind != "reverb":  # its sampler has some in flight
        assert (counts["size"], counts["inserts"], counts["samples"]) == before[1:2] + before[3:5]
    if replay.kind == "shared":
        client.close()
        shared, client = replay, replay.client()
        client.restore_rng(folder)
        samples = [client.sample(10.0) for _ in range(3)]
        shared.close()  # the other process uses its name
    samples = samples if replay.kind == "shared" else [client.sample(10.0) for _ in range(3)]
    # Unrolls that Reverb's sampler has fetched ahead count as sampled.
    left = counts["size"] // BATCH if replay.kind == "reverb" else 3
    loaded, seen = in_fresh_process(tmp_path, replay.kind, config, per_item, folder, left)
    assert (loaded.size, loaded.inserts, loaded.samples) == (
        counts["size"], counts["inserts"], counts["samples"],
    )  # fmt: skip
    assert loaded.limits == before.limits
    if replay.kind == "reverb":
        if config.table == "queue":
            windows = [w for sample in seen for w in streams.check(sample.trajectory)]
            assert windows == [(i, 0, k * T) for k in range(5) for i in range(4)][-len(windows) :]
        for sample in seen:
            streams.check(sample.trajectory)
        return
    assert list(map(key, seen)) == list(map(key, samples))
    again = folder.with_name("again")
    assert {p.name for p in again.iterdir()} == {p.name for p in folder.iterdir()}
    for path in again.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_reverb_keeps_keys_and_priorities(make_replay, streams, tmp_path):
    config = CONFIGS["prioritized"][0]
    replay = make_replay(config, BATCH)
    if replay.kind != "reverb":
        pytest.skip("test_a_fresh_process_has_the_same_table compares every byte")
    from distrl.replay.reverb.checkpoints import FOLDER, _tables

    client = filled(replay, streams)
    client.save(tmp_path / "table", 30.0)
    in_fresh_process(tmp_path, "reverb", config, 1, tmp_path / "table", 1)

    def items(folder):
        return {
            (item.key, item.priority, item.times_sampled)
            for item in _tables(folder, streams.table)[streams.table].items
        }

    assert items(tmp_path / "table" / FOLDER) == items(tmp_path / "again" / FOLDER)
    assert len({priority for _, priority, _ in items(tmp_path / "again" / FOLDER)}) > 2


def test_current_sizes_and_limits_apply(make_replay, streams, tmp_path, table):
    """With a smaller table and another ratio the newest stay, and neither side is blocked."""
    config, per_item = table
    replay = make_replay(config, BATCH, per_item)
    counts = filled(replay, streams).save(tmp_path / "table", 30.0)
    replay.close()
    ratio = None if config.table == "queue" else 8.0
    smaller = ReplayConfig(config.table, T, 8, samples_per_insert=ratio)
    make_again = make_replay(smaller, BATCH, per_item, saved=tmp_path / "table")
    client = make_again.client()
    info = client.info()
    assert (info.size, info.inserts, info.max_size) == (
        min(8, counts["size"]), counts["inserts"], 8,
    )  # fmt: skip
    if config.table == "queue":
        assert make_again.kind == "reverb" or info.samples == info.inserts - 8
    else:
        assert abs(info.error - 8.0) <= smaller.limits(BATCH).max_diff
        assert info.limits == smaller.limits(BATCH)
    for _ in range(2 if ratio else info.size // BATCH):
        streams.check(client.sample(10.0).trajectory)
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1, life=1)


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_no_samples_are_owed_for_offline_data_after_loading(make_replay, streams, tmp_path):
    config = ReplayConfig("uniform", T, 64, 4, samples_per_insert=2.0, error_buffer=8.0)
    replay = make_replay(config, BATCH)
    client = replay.client()
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1)
    for _ in range(5):
        client.experience.extend(client.experience[:4])
    before = client.info()
    assert before.limits.min_diff > config.limits(BATCH).max_diff
    client.save(tmp_path / "table", 30.0)
    replay.close()
    client = make_replay(config, BATCH, saved=tmp_path / "table").client()
    assert client.info() == before
    for _ in range(2):  # the error_buffer of 8
        client.sample(10.0)
    assert not client.can_sample()


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_no_samples_are_owed_after_a_change_of_the_ratio(make_replay, streams, tmp_path):
    """The ratio is changed while the table is used, and is the setting again when it is loaded."""
    config = ReplayConfig("uniform", T, 64, 4, samples_per_insert=8.0, error_buffer=32.0)
    replay = make_replay(config, BATCH)
    client = replay.client()
    client.reconfigure(samples_per_insert=1.0)
    streams.add_to(client, np.arange(4, dtype=np.int32), 5 * T + 1)
    client.save(tmp_path / "table", 30.0)
    replay.close()
    info = make_replay(config, BATCH, saved=tmp_path / "table").client().info()
    assert (info.inserts, info.samples) == (20, 8 * (20 - 4))
    assert info.limits == config.limits(BATCH) and info.error == 8.0 * 4


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
@pytest.mark.parametrize("saved_moved", ["now", "by an older program"])
def test_a_table_without_bounds_has_none_after_loading(make_replay, streams, tmp_path, saved_moved):
    config = ReplayConfig("uniform", T, 64, 4, samples_per_insert=2.0, error_buffer=math.inf)
    replay = make_replay(config, BATCH)
    before = replay.client()
    streams.add_to(before, np.arange(4, dtype=np.int32), 5 * T + 1)
    before.save(tmp_path / "table", 30.0)
    replay.close()
    facts = json.loads((tmp_path / "table/table.json").read_text())
    assert facts["moved"] == 0.0
    if saved_moved != "now":
        facts["moved"] = math.nan
        (tmp_path / "table/table.json").write_text(json.dumps(facts))
    client = make_replay(config, BATCH, saved=tmp_path / "table").client(insert_timeout=5.0)
    assert client.info().limits == config.limits(BATCH)
    assert client.can_sample()
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1, life=1)


@pytest.mark.parametrize("before, after", [(8, 1), (8, 8), (8, 40), (8, 64), (56, 8)])
@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_a_start_that_changes_is_as_in_a_live_table(make_replay, streams, tmp_path, before, after):
    """With another `min_size_to_sample` neither side must make up for the past."""
    config = ReplayConfig("uniform", T, 64, before, samples_per_insert=8.0, error_buffer=32.0)
    replay = make_replay(config, BATCH)
    client = replay.client(insert_timeout=5.0)
    for i in range(12):
        streams.add_to(client, np.arange(4, dtype=np.int32), T + (i == 0))
        while client.can_sample() and client.info().error >= 8.0 * before:
            client.sample(5.0)
    client.save(tmp_path / "table", 30.0)
    live = client.reconfigure(min_size_to_sample=after)
    assert (live.size, live.samples > 0) == (48, before == 8)
    for again in ("once", "twice"):  # the second time nothing has changed
        replay.close()
        changed = dataclasses.replace(config, min_size_to_sample=after)
        replay = make_replay(changed, BATCH, saved=tmp_path / "table")
        client = replay.client()
        assert client.info()[1:6] == live[1:6], again
        tmp_path = tmp_path / again
        tmp_path.mkdir()
        client.save(tmp_path / "table", 30.0)


@pytest.mark.parametrize("buffer, strict", [(200.0, False), (200.0, True), (math.inf, True)])
@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_a_buffer_that_narrows_is_as_in_a_live_table(
    make_replay, streams, tmp_path, buffer, strict
):
    """What was inserted beyond it need not be made up for."""
    config = ReplayConfig("uniform", T, 64, 8, 8.0, buffer, strict_ratio=strict)
    replay = make_replay(config, BATCH)
    client = replay.client(insert_timeout=5.0)
    streams.add_to(client, np.arange(4, dtype=np.int32), 8 * T + 1)
    client.save(tmp_path / "table", 30.0)
    live = client.reconfigure(error_buffer=32.0)
    assert live.error == live.limits.max_diff == 8.0 * 32
    replay.close()
    narrow = dataclasses.replace(config, error_buffer=32.0)
    client = make_replay(narrow, BATCH, saved=tmp_path / "table").client()
    assert client.info()[1:6] == live[1:6]


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_bounds_that_a_table_did_not_have_begin_where_it_is(make_replay, streams, tmp_path):
    config = ReplayConfig("uniform", T, 64, 8, 8.0, error_buffer=math.inf)
    replay = make_replay(config, BATCH)
    client = replay.client()
    streams.add_to(client, np.arange(4, dtype=np.int32), 8 * T + 1)
    client.save(tmp_path / "table", 30.0)
    replay.close()
    config = dataclasses.replace(config, error_buffer=32.0)
    info = make_replay(config, BATCH, saved=tmp_path / "table").client().info()
    assert info.limits.max_diff == info.error == 8.0 * 32


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
def test_unrolls_of_a_table_that_became_uniform_get_the_priority_of_new_ones(
    make_replay, streams, tmp_path
):
    config = dataclasses.replace(CONFIGS["prioritized"][0], priority_exponent=1.0)
    replay = make_replay(config, BATCH)
    client = filled(replay, streams)  # the largest priority is 4
    client.reconfigure(table="uniform")
    client.save(tmp_path / "table", 30.0)
    replay.close()
    client = make_replay(config, BATCH, saved=tmp_path / "table").client()
    streams.add_to(client, np.arange(4, dtype=np.int32), T + 1, life=1)
    samples = [client.sample(10.0) for _ in range(50)]
    assert len({key for sample in samples for key in sample.key.tolist()}) > 8
    for sample in samples:
        np.testing.assert_allclose(sample.trajectory.probability, 1 / 16)


def test_another_struct_is_refused(make_replay, streams, tmp_path, table):
    config, per_item = table
    replay = make_replay(config, BATCH, per_item)
    filled(replay, streams).save(tmp_path / "table", 30.0)
    replay.close()
    action = jax.ShapeDtypeStruct((3,), np.float32)
    other = streams.struct._replace(action=action)
    with pytest.raises(SpecError, match=r"\.action: expected float32\[5, 3\], got int32\[5\]"):
        make_replay(config, BATCH, per_item, tmp_path / "table", other)
    longer = ReplayConfig(config.table, T + 1, max_size=32)
    with pytest.raises(ConfigError, match=r"replay\.unroll_length=4, not 5"):
        make_replay(longer, BATCH, per_item, tmp_path / "table")


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_a_table_that_turned_over_wholly_during_the_copy_is_loaded_empty(
    make_replay, streams, tmp_path, kind, monkeypatch
):
    config = ReplayConfig(kind, T, max_size=16)
    replay = make_replay(config, BATCH)
    client, everyone = replay.client(), np.arange(4, dtype=np.int32)
    streams.add_to(client, everyone, 4 * T + 1)
    real = files._unrolls_per_slice

    def turned_over(columns):
        for _ in range(20):  # more than there are slots
            if kind == "queue":
                client.sample(5.0)
            streams.add_to(client, everyone, T)
        return real(columns)

    monkeypatch.setattr(files, "_unrolls_per_slice", turned_over)
    counts = client.save(tmp_path / "table", 30.0)
    monkeypatch.undo()
    replay.close()
    again = make_replay(config, BATCH, saved=tmp_path / "table").client()
    info = again.info()
    assert (info.size, info.inserts) == (counts["size"], 16)
    if replay.kind == "local" and kind == "queue":  # whose blocks a snapshot holds
        streams.check(again.sample(5.0).trajectory)
    else:
        assert info.size == 0
    streams.add_to(again, everyone, T + 1, life=1)
    streams.check(again.sample(5.0).trajectory)


@pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_saving_makes_no_second_copy_in_memory(make_replay, tmp_path, kind):
    number = dm_specs.Array((), np.float32)
    observation = dm_specs.Array((50_000,), np.float32)  # 1 MB an unroll
    struct = specs.trajectory_struct(specs.EnvironmentSpec(observation, number), (), ())
    replay = make_replay(ReplayConfig(kind, T, max_size=20), BATCH, struct=struct)
    client = replay.client()
    block = Columns(struct, T).allocate(10)
    for column in block.columns:
        column[...] = 1
    for _ in range(2):
        (replay._table or client._handle).insert(block, None, 10.0)
    tracemalloc.start()
    try:
        client.save(tmp_path / "table", 30.0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert client.info().size == 20 and most < 20e6 / 4


@pytest.fixture
def few_descriptors():
    """Leaves the process 16 descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in itertools.count() if number not in used)
    most = next(itertools.islice(free, 16, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_table_may_have_more_columns_than_there_are_descriptors(tmp_path, few_descriptors):
    number = dm_specs.Array((), np.float32)
    observation = {f"{i:02}": dm_specs.Array((0,) if i == 7 else (i % 3,), np.int16)
                   for i in range(60)}  # fmt: skip
    struct = specs.trajectory_struct(specs.EnvironmentSpec(observation, number), (), ())
    config = ReplayConfig("uniform", T, max_size=16)
    table = LocalTable(struct, config, BATCH, seed=0)
    block = table.columns.allocate(10)
    for index, column in enumerate(block.columns):
        column[...] = np.arange(index, index + column.size).reshape(column.shape) % 100
    table.insert(block, None, 10.0)
    table.save(config, tmp_path / "table", 10.0)
    stored = files.Stored(tmp_path / "table", table.columns, config)
    again = [stored.read(start, stop) for start, stop in stored.slices()]
    assert len(again) > 2
    for index, column in enumerate(block.columns):
        axis = 1 if table.columns.has_time[index] else 0
        whole = np.concatenate([part.columns[index] for part in again], axis)
        np.testing.assert_array_equal(whole, column)


@pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])
def test_a_table_in_use_is_saved_consistently(make_replay, streams, tmp_path, kind, monkeypatch):
    """Unrolls inserted or removed during the copy are not in it; its keys are consecutive."""
    config = ReplayConfig(kind, T, max_size=16)
    replay = make_replay(config, BATCH)
    if replay.kind == "reverb":
        pytest.skip("Reverb copies by itself")
    client = replay.client()
    everyone = np.arange(4, dtype=np.int32)
    streams.add_to(client, everyone, 4 * T + 1)
    real, offsets = files._write, []

    def write(descriptor, rows, offset):
        real(descriptor, rows, offset)
        if len(offsets) < 2:  # after the newest unrolls were copied
            offsets.append(offset)
            if kind == "queue":
                client.sample(1.0) if client.can_sample() else None
            streams.add_to(client, everyone, T)

    monkeypatch.setattr(files, "_write", write)
    counts = client.save(tmp_path / "table", 30.0)
    monkeypatch.undo()
    assert counts["inserts"] == 16 and 2 <= counts["size"] <= 16
    replay.close()
    again = make_replay(config, 2, saved=tmp_path / "table").client()
    assert again.info().size == counts["size"]
    if kind == "queue":
        seen = streams.check(again.sample(1.0).trajectory)
        first = again.info().samples - 2
        windows = [(i, 0, k * T) for k in range(4) for i in range(4)]
        assert seen == windows[first : first + 2]
    else:
        seen = [w for _ in range(40) for w in streams.check(again.sample(1.0).trajectory)]
        kept = [(i, 0, k * T) for k in range(4) for i in range(4)][-counts["size"] :]
        assert set(seen) <= set(kept) and len(set(seen)) > min(2, len(kept) - 1)
