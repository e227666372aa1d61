"""Policy lags that are counted in parts and added up."""

import json

import numpy as np
import pytest

from distrl.metrics.lag_counts import LagCounts

QUANTILES = {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}


def added_up(*parts):
    whole = LagCounts()
    for part in parts:
        counted = LagCounts()
        counted.add(np.array(part, np.int32))
        whole.merge(json.loads(json.dumps(counted.plain())))
    return whole.columns()


def wanted(lags):
    return {
        "policy_lag_mean": np.mean(lags),
        "policy_lag_min": np.min(lags),
        **{f"policy_lag_{name}": np.percentile(lags, q) for name, q in QUANTILES.items()},
        "policy_lag_max": np.max(lags),
    }


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1001])
def test_figures_of_parts_are_those_of_the_whole(count):
    lags = np.random.default_rng(count).integers(0, 256, count)
    figures = added_up(*np.array_split(lags, min(count, 7)))
    assert list(figures) == list(wanted(lags))
    assert figures == pytest.approx(wanted(lags))


def test_what_is_large_is_rounded_and_bounded_in_size():
    """Mean, minimum and maximum stay exact."""
    lags = np.unique(np.geomspace(1, 2**31 - 1, 20_000).astype(np.int64))
    counted = LagCounts()
    counted.add(lags.astype(np.int32))
    assert len(counted.plain()["counts"]) <= 3200
    figures, exact = added_up(lags[::2], lags[1::2]), wanted(lags)
    for name, value in exact.items():
        assert figures[name] == pytest.approx(value, rel=0.01)
    for name in ("mean", "min", "max"):
        assert figures[f"policy_lag_{name}"] == exact[f"policy_lag_{name}"]


@pytest.mark.parametrize("lag", [0, 255, 256, 257, 511, 512, 2**20 + 12345, 2**31 - 1])
def test_equal_lags_are_exact(lag):
    assert set(added_up([lag, lag], [lag]).values()) == {float(lag)}


def test_without_lags_there_are_no_figures():
    assert LagCounts().columns() == {}
