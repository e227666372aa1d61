"""Sampling by what is in an unroll: exact chances in every kind of table, which stay."""

import numpy as np
import pytest

from distrl.errors import ConfigError, SpecError
from distrl.replay.buffer import ReplayConfig

T = 4
WEIGHTS = np.array([0.0, 1.0, 4.0, 9.0, 16.0, 0.25])


def by_stream(unrolls):
    """The weight of an unroll's stream, which is in its observations."""
    assert unrolls.timestep.reward.shape[0] == T + 1
    return WEIGHTS[unrolls.timestep.observation["stream"][0]]


def config(**settings):
    return ReplayConfig(
        **{
            "table": "prioritized", "unroll_length": T, "max_size": 6, "min_size_to_sample": 6,
            "priority_exponent": 0.5, "priority_of": by_stream, **settings,
        }
    )  # fmt: skip


def test_unrolls_are_sampled_by_what_is_in_them(make_replay, streams, take):
    replay = make_replay(config(), 60)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(6, dtype=np.int32), 2 * T + 1)  # the first six are removed
    actor.flush()
    chances = WEIGHTS**0.5 / np.sum(WEIGHTS**0.5)
    counts, updated = np.zeros(6), False
    for sample in take(learner, 30):
        stream = sample.trajectory.stream_id
        np.testing.assert_allclose(sample.trajectory.probability, chances[stream], rtol=1e-5)
        counts += np.bincount(stream, minlength=6)
        if not updated:  # the learner's errors do not replace them
            learner.update_priorities(sample.key, np.full(len(sample.key), 100.0))
            updated = True
    assert counts[0] == 0
    expected = 30 * 60 * chances[1:]
    chi_square = np.sum((counts[1:] - expected) ** 2 / expected)
    assert chi_square < 23.5  # 4 degrees of freedom: once in 10,000 runs


def test_unrolls_that_all_have_priority_0_are_sampled_uniformly(make_replay, streams, caplog):
    replay = make_replay(config(priority_of=lambda unrolls: np.zeros(6)), 60)
    actor, learner = replay.client(), replay.client()
    streams.add_to(actor, np.arange(6, dtype=np.int32), T + 1)
    actor.flush()
    for _ in range(2):
        np.testing.assert_allclose(learner.sample(5.0).trajectory.probability, 1 / 6, rtol=1e-5)
    said = [record.message for record in caplog.records if "priority 0" in record.message]
    assert said in ([], ["all 6 unrolls in the table have priority 0: they are sampled uniformly"])
    assert said or not hasattr(actor, "experience")  # Reverb does not say it


def test_unrolls_put_into_a_table_by_hand_count_too(make_replay, streams):
    replay = make_replay(config(), 60)
    actor = replay.client()
    if not hasattr(actor, "experience"):
        pytest.skip("a Reverb table has no experience")
    streams.add_to(actor, np.arange(6, dtype=np.int32), T + 1)
    unrolls = actor.experience[:]
    actor.experience.extend(unrolls)
    sample = actor.sample(5.0)
    chances = WEIGHTS**0.5 / np.sum(WEIGHTS**0.5)
    expected = chances[sample.trajectory.stream_id]
    np.testing.assert_allclose(sample.trajectory.probability, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("priority_of", "message"),
    [
        (lambda unrolls: 1.0, "one number for each of 2 unrolls, got float64"),
        (lambda unrolls: np.array([1.0, -1.0]), "finite numbers of 0 or more, got -1.0"),
        (lambda unrolls: np.array([1e39, 1.0]), "as float32, finite numbers .* got 1e[+]39"),
        (lambda unrolls: np.array([np.nan, 1.0]), "finite numbers of 0 or more, got nan"),
    ],
)
def test_what_is_no_priority_is_refused(make_replay, streams, priority_of, message):
    actor = make_replay(config(priority_of=priority_of), 2).client()
    with pytest.raises(SpecError, match=message):
        streams.add_to(actor, np.arange(2, dtype=np.int32), T + 1)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="priority_of is for sampling by priority, not for"):
        config(table="uniform", priority_exponent=0.6)
    with pytest.raises(ConfigError, match="priority_of must be a function"):
        config(priority_of=3)
