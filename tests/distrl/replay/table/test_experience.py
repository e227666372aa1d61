"""Tables that index, slice and extend like lists."""

import jax
import numpy as np
import pytest

from distrl.errors import ConfigError, DeadlineExceeded, SpecError
from distrl.replay.buffer import ReplayBuffer, ReplayConfig
from distrl.replay.local.table import LocalTable
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.table.experience import Experience

T = 4
both = pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)
KINDS = pytest.mark.parametrize("kind", ["queue", "uniform", "prioritized"])


def ids(count, first=0):
    return np.arange(first, first + count, dtype=np.int32)


@both
@KINDS
def test_a_table_is_like_a_list(make_replay, streams, kind):
    replay = make_replay(ReplayConfig(kind, T, max_size=8), 2)
    client = replay.client()
    unrolls = client.experience
    assert len(unrolls) == 0 and list(unrolls) == [] and unrolls[:].stream_id.shape == (0,)
    streams.add_to(client, ids(3), 2 * T + 1)
    all_of_them = [(i, 0, k * T) for k in range(2) for i in range(3)]
    assert len(unrolls) == 6
    assert streams.check(unrolls[:]) == all_of_them
    assert streams.check(unrolls[1:-1]) == all_of_them[1:-1]
    assert streams.check(unrolls[::-2]) == all_of_them[::-2]
    for i in (0, 5, -1, -6):
        one = unrolls[i]
        assert one.timestep.reward.shape == (T + 1,) and one.probability.shape == ()
        assert (int(one.stream_id), int(one.timestep.observation["step"][0, 0])) == (
            all_of_them[i][0],
            all_of_them[i][2],
        )
    for i in (6, -7):
        with pytest.raises(IndexError, match=f"unroll {i} of a table that has 6"):
            unrolls[i]
    assert [int(one.stream_id) for one in unrolls] == [0, 1, 2, 0, 1, 2]
    before = unrolls[:2]
    client.sample(1.0)
    assert len(unrolls) == (4 if kind == "queue" else 6)
    assert client.info().samples == 2  # reading is not sampling
    streams.check(before)  # a copy


@both
@KINDS
def test_extend(make_replay, make_streams, kind):
    """Copies from one table to another, as the newest, in order."""
    source = LocalTable(make_streams.struct, ReplayConfig("queue", T, max_size=12), 2)
    made = make_streams()
    from distrl.replay.local.buffer import LocalReplayBuffer

    writer = LocalReplayBuffer(source, made.struct, ReplayConfig("queue", T, max_size=12), 2)
    made.add_to(writer, ids(12), T + 1)
    everything = Experience(source)[:]
    client = make_replay(ReplayConfig(kind, T, max_size=8), 2).client()
    unrolls = client.experience
    unrolls.extend(Experience(source)[:3])
    unrolls.extend(Experience(source)[3:6])
    assert made.check(unrolls[:]) == [(i, 0, 0) for i in range(6)]
    if kind == "queue":
        with pytest.raises(ConfigError, match="room for 2 unrolls cannot take 12 more"):
            unrolls.extend(everything)
        assert len(unrolls) == 6
    else:
        unrolls.extend(everything)
        assert made.check(unrolls[:]) == [(i, 0, 0) for i in range(4, 12)]
        assert client.info().inserts == 18
    assert made.check(client.sample(1.0).trajectory)
    wrong = everything._replace(action=everything.action.astype(np.float32))
    with pytest.raises(SpecError, match=r"unrolls.action: expected int32\[5, 12\], got float32"):
        unrolls.extend(wrong)
    with pytest.raises(SpecError, match=r"this is one, \[T \+ 1, ...\]: take a slice, such as"):
        unrolls.extend(Experience(source)[-1])
    with pytest.raises(SpecError, match="unrolls must be"):
        unrolls.extend(everything._replace(extras=()))


@both
@pytest.mark.parametrize("ratio", [None, 1.0, 4.0])
def test_a_prefill_is_exempt_from_the_rate_limiter(make_replay, streams, ratio):
    """Any number of offline unrolls fits; afterwards the ratio holds for new ones."""
    config = ReplayConfig(
        "uniform", T, max_size=200, min_size_to_sample=10, samples_per_insert=ratio
    )
    offline = jax.tree.map(np.copy, make_offline(streams, 50))
    replay = make_replay(config, 4)
    client = replay.client()
    for _ in range(3):
        client.experience.extend(offline)
    info = client.info()
    assert (info.size, info.inserts, info.samples) == (150, 150, 0)
    if ratio is None:
        return
    assert info.error == (info.limits.min_diff + info.limits.max_diff) / 2
    client.sample(1.0)  # at once
    with pytest.raises(DeadlineExceeded):
        for _ in range(100):
            client.sample(0.05)
    info = client.info()
    assert info.samples <= (info.limits.max_diff - info.limits.min_diff) / 2
    other = replay.client(insert_timeout=0.2)
    with pytest.raises(DeadlineExceeded):
        streams.add_to(other, ids(1, 900), 200 * T)
    info = client.info()
    assert info.limits.min_diff <= info.error <= info.limits.max_diff
    client.experience.extend(offline)  # also into a table whose writers are blocked
    assert client.info().inserts == info.inserts + 50
    assert client.info().limits.max_diff == info.limits.max_diff + 50 * ratio


def make_offline(streams, count):
    config = ReplayConfig("queue", T, max_size=count)
    table = LocalTable(streams.struct, config, 2)
    from distrl.replay.local.buffer import LocalReplayBuffer

    streams.add_to(LocalReplayBuffer(table, streams.struct, config, 2), ids(count, 100), T + 1)
    return Experience(table)[:]


def fill(name, struct, config, offline):
    client = SharedReplayBuffer(name, struct, config, 4)
    client.experience.extend(offline)
    client.close()


@pytest.mark.parametrize("make_replay", ["shared"], indirect=True)
def test_another_process_fills_a_table(make_replay, streams, elsewhere):
    config = ReplayConfig("prioritized", T, 40, 10, samples_per_insert=1.0)
    client = make_replay(config, 4).client()
    offline = make_offline(streams, 50)
    assert elsewhere(fill, streams.table, streams.struct, config, offline).wait(60.0) == 0
    streams.check(client.sample(5.0).trajectory)
    assert client.info().size == 40
    np.testing.assert_array_equal(client.experience[:].stream_id, np.arange(110, 150))


@pytest.mark.parametrize("make_replay", ["reverb"], indirect=True)
def test_a_reverb_client_has_no_list_and_no_reconfigure(make_replay):
    client = make_replay(ReplayConfig("queue", T), 2).client()
    assert isinstance(client, ReplayBuffer)
    assert not hasattr(client, "experience") and not hasattr(client, "reconfigure")
