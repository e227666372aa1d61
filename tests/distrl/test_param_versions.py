"""Versions beyond int32: ages and lags stay right, and what is stored fits."""

import jax
import numpy as np
import pytest

from distrl.learning.divergence import UpdateCheck
from distrl.learning.policy_lag import PolicyLags
from distrl.metrics.lag_counts import LagCounts
from distrl.param_versions import lags, stored_version
from distrl.replay.age_bound import AgeBound
from distrl.types import Sample, Trajectory

T, B = 3, 2
VERSIONS = [0, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**53]


def trajectory(version):
    parts = {name: np.zeros((T + 1, B)) for name in Trajectory._fields}
    return Trajectory(**parts)._replace(
        version=np.full((T + 1, B), stored_version(version), np.int32)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_lags_at_the_ends_of_int32(version):
    stored = np.array([stored_version(version)], np.int32)  # raises if it does not fit
    for lag in (0, 1, 5, -1):
        np.testing.assert_array_equal(lags(version + lag, stored), [lag])


def test_versions_that_fit_are_stored_as_they_are():
    assert [stored_version(v) for v in (0, 7, 2**31 - 1)] == [0, 7, 2**31 - 1]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lag_that_is_reported(version):
    reported = PolicyLags()
    reported.add(version + 4, trajectory(version), np.ones((T, B), bool))
    counted = LagCounts()
    counted.merge(reported.take()["policy_lags"])
    assert set(counted.columns().values()) == {4.0}


@pytest.mark.parametrize("version", VERSIONS)
def test_an_age_bound_drops_what_is_too_old_and_nothing_else(version):
    class Source:
        is_prioritized = False
        now = version

        def sample(self, timeout):
            stored = trajectory(self.now)
            self.now += 1
            return Sample(
                Trajectory(*(np.zeros(B) if x is None else x for x in stored))._replace(
                    stream_id=np.zeros(B, np.int32), life=np.zeros(B, np.int32)
                ),
                np.zeros(B, np.uint64),
            )

        def discard(self, keys, oldest):
            pass

    bound = AgeBound(Source(), 1, lambda: version + 3)
    sample = bound.sample(5.0)  # the third batch is the first that is young enough
    assert bound.dropped == 2 * B
    np.testing.assert_array_equal(lags(version + 3, sample.trajectory.version), 1)


def test_the_step_that_diverges_is_named():
    params = {"w": np.zeros(2, np.float32)}
    check = UpdateCheck(params, ())

    def step(params, state, batch):
        return jax.tree.map(lambda x: x * np.nan, params), state, {"loss": 0.0}

    record = UpdateCheck.new_record(2**31 - 1)
    _, _, record, _ = jax.jit(check.checked(step))(params, (), record, None)
    assert f"learner step {2**31}: params['w']" in str(check.error(record))
