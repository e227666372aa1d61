"""The limits of a Reverb table that is loaded with other settings."""

import pytest

from distrl.replay.buffer import ReplayConfig

pytest.importorskip("reverb")
from reverb.cc.checkpointing import checkpoint_pb2

from distrl.replay.reverb.checkpoints import _set_limits


@pytest.mark.parametrize("before, after", [(1000, 5000), (5000, 1000), (1000, 1000)])
def test_a_start_that_changes_leaves_nothing_to_make_up_for(before, after):
    table = checkpoint_pb2.PriorityTableCheckpoint()
    table.rate_limiter.insert_count, table.rate_limiter.delete_count = 10_000, 2000
    samples = 8 * (10_000 - before) + 32  # one batch ahead
    facts = {
        "samples_per_insert": 8.0, "min_size_to_sample": before,
        "size": 8000, "inserts": 10_000, "samples": samples,
    }  # fmt: skip
    config = ReplayConfig("uniform", 4, 8000, after, 8.0, error_buffer=256.0)
    _set_limits(table, facts, config, 32, 1)
    assert 8 * 10_000 - table.rate_limiter.sample_count == 8 * after - 32
    assert table.rate_limiter.min_diff == 8 * after - 256


def test_a_table_below_its_start_is_filled_like_a_new_one():
    table = checkpoint_pb2.PriorityTableCheckpoint()
    table.rate_limiter.insert_count, table.rate_limiter.delete_count = 10_000, 7000
    facts = {
        "samples_per_insert": 8.0, "min_size_to_sample": 1000,
        "size": 3000, "inserts": 10_000, "samples": 8 * 9000,
    }  # fmt: skip
    config = ReplayConfig("uniform", 4, 8000, 5000, 8.0, error_buffer=256.0)
    _set_limits(table, facts, config, 32, 1)
    missing = 5000 - 3000
    assert 8 * (10_000 + missing) - table.rate_limiter.sample_count == 8 * 5000
