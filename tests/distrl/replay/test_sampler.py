"""Custom samplers."""

import dataclasses
import pickle

import numpy as np
import pytest

from distrl.errors import ConfigError, SpecError
from distrl.replay import config as replay_config
from distrl.replay.buffer import ReplayConfig
from tests.support.replay import Streams

T = 4
both = pytest.mark.parametrize("make_replay", ["local", "shared"], indirect=True)


def ids(count, first=0):
    return np.arange(first, first + count, dtype=np.int32)


@dataclasses.dataclass(frozen=True)
class NewestFirst:
    """Samples the newest half of the time, otherwise in proportion to priorities."""

    share: float = 0.5

    def choose(self, rng, count, view):
        weights = view.priorities / view.priorities.sum()
        chances = self.share * (view.ages == 0) + (1 - self.share) * weights
        indices = rng.choice(view.size, count, p=chances)
        return indices, chances[indices]


@both
def test_a_custom_sampler(make_replay, streams):
    sampler = pickle.loads(pickle.dumps(NewestFirst()))
    replay = make_replay(ReplayConfig("prioritized", T, max_size=6, sampler=sampler), 200)
    client = replay.client()
    streams.add_to(client, ids(4), 2 * T + 1)  # the first 2 of 8 are removed
    priorities = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])
    client.update_priorities(np.arange(2, 8, dtype=np.uint64), priorities)
    chances = 0.5 * priorities / 15
    chances[-1] = 0.5
    counts = np.zeros(6)
    for _ in range(50):
        sample = client.sample(5.0)
        indices = sample.key.astype(int) - 2
        np.testing.assert_allclose(sample.trajectory.probability, chances[indices], rtol=1e-6)
        np.testing.assert_array_equal(sample.trajectory.stream_id, (indices + 2) % 4)
        counts += np.bincount(indices, minlength=6)
    expected = 50 * 200 * chances
    assert ((counts - expected) ** 2 / expected).sum() < 30.9  # 5 degrees: once in 10^5
    table = replay._table or replay._shared
    assert table.contents().sampler == "NewestFirst"
    assert client.info().samples == 50 * 200


@pytest.mark.parametrize(
    "choice, message",
    [
        (lambda view: ([0], [1.0]), r"indices must have shape \[2\], got \[1\]"),
        (lambda view: ([0, view.size], [1.0, 1.0]), "integers from 0 to 3, got int64 from 0 to 4"),
        (lambda view: ([0.0, 1.0], [1.0, 1.0]), "indices must be integers"),
        (lambda view: ([0, 1], [0.0, 1.0]), "above 0 and at most 1"),
        (lambda view: np.arange(3), r"must return indices and prob.*; got array\(\[0, 1, 2\]\)"),
        (lambda view: 0, "must return indices and probabilities, each .*; got 0"),
    ],
)
@both
def test_what_a_sampler_gives_is_checked(make_replay, streams, choice, message):
    class Mine:
        def choose(self, rng, count, view):
            return choice(view)

    client = make_replay(ReplayConfig("uniform", T, sampler=Mine()), 2).client()
    streams.add_to(client, ids(4), T + 1)
    with pytest.raises(SpecError, match=f"replay.sampler Mine.choose: .*{message}"):
        client.sample(1.0)
    assert client.info().size == 4 and len(client.experience[:].stream_id) == 4


def test_where_there_can_be_no_sampler(make_streams):
    with pytest.raises(ConfigError, match=r"replay.sampler=.* is not for a queue"):
        ReplayConfig("queue", sampler=NewestFirst())
    with pytest.raises(ConfigError, match=r"must have a method choose\(rng, count, view\); got 3"):
        ReplayConfig("uniform", sampler=3)
    pytest.importorskip("reverb", reason="dm-reverb is not installed")
    from distrl.replay.reverb.server import reverb_tables

    config = ReplayConfig("uniform", T, sampler=NewestFirst())
    with pytest.raises(ConfigError, match=r"replay.sampler=NewestFirst is not for Reverb.*shared"):
        reverb_tables(config, make_streams.struct, 2, "t")


class ByStream:
    """Samples unrolls in proportion to the number of their stream."""

    def choose(self, rng, count, view):
        every = view.unrolls(np.arange(view.size))
        np.testing.assert_array_equal(every.probability, 1)
        Streams.check(every)
        weights = every.stream_id.astype(float)
        chances = weights / weights.sum()
        indices = rng.choice(view.size, count, p=chances)
        one = view.unrolls([view.size - 1])
        np.testing.assert_array_equal(one.stream_id, every.stream_id[-1:])
        return indices, chances[indices]


@both
def test_a_sampler_sees_what_unrolls_contain(make_replay, streams):
    replay = make_replay(ReplayConfig("uniform", T, max_size=6, sampler=ByStream()), 50)
    client = replay.client()
    streams.add_to(client, ids(4), 2 * T + 1)  # the first 2 of 8 are removed
    trajectory = client.sample(5.0).trajectory
    Streams.check(trajectory)
    assert set(trajectory.stream_id.tolist()) <= {1, 2, 3}
    np.testing.assert_allclose(trajectory.probability, trajectory.stream_id / 11, rtol=1e-6)


def test_a_sampler_for_a_reverb_server_is_refused():
    with pytest.raises(ConfigError, match=r"replay\.sampler=ByStream is not for a Reverb server, "):
        ReplayConfig("uniform", T, backend="reverb", sampler=ByStream())


@both
def test_a_uniform_table_has_no_priorities_to_sample_by(make_replay, streams):
    replay = make_replay(ReplayConfig("uniform", T, sampler=NewestFirst()), 2)
    client = replay.client()
    streams.add_to(client, ids(4), T + 1)
    with pytest.raises(ConfigError, match=r"^replay.sampler reads priorities.*=prioritized$"):
        client.sample(1.0)
    client.reconfigure(table="prioritized")  # the table is whole, and has them from now on
    assert client.sample(5.0).trajectory.probability.shape == (2,)


def test_a_table_of_which_only_the_name_is_known_is_refused(make_replay, monkeypatch):
    monkeypatch.setattr(replay_config, "TABLES", (*replay_config.TABLES, "recent"))
    with pytest.raises(ConfigError, match=r"^replay.table=recent: .* uniform and prioritized are$"):
        make_replay(ReplayConfig("recent", T), 2)
