"""What is specific to tables in this process."""

import dataclasses

import pytest

from distrl.errors import ConfigError
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable

T = 4
BATCH = 4
RATIO = ReplayConfig(
    "uniform", T, max_size=40, min_size_to_sample=4, samples_per_insert=2.0, error_buffer=8.0
)


def test_in_one_thread_a_step_of_all_streams_must_fit(streams):
    table = LocalTable(streams.struct, RATIO, BATCH, streams=4)
    with pytest.raises(ConfigError, match="with 4 unrolls that one step of 4 streams"):
        table.reconfigure(samples_per_insert=4.0, error_buffer=8.0)
    assert table.reconfigure(samples_per_insert=4.0, error_buffer=12.0).limits[0] == 4.0


def test_a_client_with_other_sizes_than_its_table_is_refused(streams):
    table = LocalTable(streams.struct, RATIO, BATCH)
    with pytest.raises(ConfigError, match=r"'replay' was made with batch_size=4, .* client has 2"):
        LocalReplayBuffer(table, streams.struct, RATIO, 2)
    longer = dataclasses.replace(RATIO, unroll_length=T + 1)
    with pytest.raises(ConfigError, match=r"replay\.unroll_length=4, and its client has 5"):
        LocalReplayBuffer(table, streams.struct, longer, BATCH)
    other = dataclasses.replace(RATIO, table="prioritized")  # as `reconfigure` may make it
    assert not LocalReplayBuffer(table, streams.struct, other, BATCH).is_prioritized
