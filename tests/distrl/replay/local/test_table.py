"""What is specific to tables in this process."""

import pytest

from distrl.errors import ConfigError
from distrl.replay.buffer import ReplayConfig
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
