"""`distrl tables`, from another process than the tables'."""

import fcntl
import os

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.launch.run_dir.folder import LOCK
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.announce import announced
from distrl.replay.shared.table import SharedTable
from tests.support.commands import distrl


def unrolls() -> specs.Trajectory:
    """Returns those of CartPole, as shapes and dtypes."""
    environment = specs.EnvironmentSpec(
        dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(2, np.int32)
    )
    return specs.trajectory_struct(environment, (), ())


def test_tables_shows_how_a_table_stands(tmp_path):
    struct = unrolls()
    config = ReplayConfig("prioritized", 4, max_size=8)
    name = f"shown-{os.getpid()}"
    table = SharedTable.create(struct, config, 2, name)
    try:
        done = distrl(tmp_path, "tables", name)
        changes = ("--set", "table=uniform", "--set=samples_per_insert=4")
        changed = distrl(tmp_path, "tables", name, *changes)
        assert (table.info().limits.samples_per_insert, table.config.table) == (4.0, "uniform")
        refused = distrl(tmp_path, "tables", name, "--set", "error_buffer=1")
    finally:
        table.close()
    assert done.returncode == 0, done.stderr
    assert changed.returncode == 0, changed.stderr
    assert "inserts * 4 - samples" in changed.stdout
    assert refused.returncode == 2
    assert "error_buffer=1.0 must be at least max(1, samples_per_insert) = 4" in refused.stderr
    counts, contents = done.stdout.splitlines()
    assert counts.startswith(f"table '{name}': size 0 of 8, 0 inserts, 0 samples; ")
    assert counts.endswith(f"made by process {os.getpid()}")
    assert contents.startswith("  0.0 MB of ")


def test_tables_of_a_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    none = distrl(tmp_path, "tables", str(run))
    with open(run / LOCK, "w") as lock:  # a run of this process
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        name = f"of-a-run-{os.getpid()}"
        early = distrl(tmp_path, "tables", str(run))
        table = SharedTable.create(unrolls(), ReplayConfig("uniform", 4, max_size=8), 2, name)
        try:
            done = distrl(tmp_path, "tables", str(run))
        finally:
            table.close()
    assert none.returncode == 2
    assert f"{run}: no program is running there on this machine" in none.stderr
    assert early.returncode == 2 and "has no table that others can read" in early.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"table '{name}': size 0 of 8, ")


def test_tables_finds_reverb_servers(tmp_path):
    reverb = pytest.importorskip("reverb", reason="dm-reverb is not installed")
    from distrl.replay.reverb.server import about_tables, reverb_tables

    struct = unrolls()
    config = ReplayConfig("uniform", 4, max_size=8)
    name = f"served-{os.getpid()}"
    server = reverb.Server(reverb_tables(config, struct, 2, name))
    about = about_tables(config, struct, f"127.0.0.1:{server.port}")
    try:
        with announced(name, about):
            shown = distrl(tmp_path, "tables", name)
            refused = distrl(tmp_path, "tables", name, "--set=min_size_to_sample=2")
    finally:
        server.stop()
    gone = distrl(tmp_path, "tables", name)
    assert shown.returncode == 0, shown.stderr
    counts, contents = shown.stdout.splitlines()
    assert counts.startswith(f"table '{name}': size 0 of 8, 0 inserts, 0 samples; ")
    assert contents.endswith("; uniform")
    assert refused.returncode == 2
    assert "Reverb fixes a table's rate limiter and sampler" in refused.stderr
    assert "with replay.backend=shared_memory they can be" in refused.stderr
    assert gone.returncode == 2 and f"no table '{name}'" in gone.stderr
