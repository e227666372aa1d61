"""`Sample.inserts`: how many unrolls a table had received when it gave a batch."""

import numpy as np
import pytest

from distrl.replay.buffer import ReplayConfig
from tests.support.selection import full

T = 2
IDS = np.arange(4, dtype=np.int32)


@pytest.mark.parametrize("make_replay", ["local", "shared", full("reverb")], indirect=True)
@pytest.mark.parametrize("table", ["uniform", "queue"])
def test_a_sample_tells_how_much_the_table_received(make_replay, streams, table):
    replay = make_replay(ReplayConfig(table, T, max_size=12), 4)
    writer, reader = replay.client(), replay.client()
    streams.add_to(writer, IDS, T + 1)
    writer.flush()
    first = reader.sample(10.0).inserts
    streams.add_to(writer, IDS, 2 * T)
    writer.flush()
    counts = [first, reader.sample(10.0).inserts]
    if replay.kind == "reverb":  # asked for once a second, with the first batch
        assert counts[0] == 4
    else:
        assert counts == ([4, 12] if table == "uniform" else [4, 8])
