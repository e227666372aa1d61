"""Running statistics against NumPy's in float64 over the pooled data."""

import jax
import numpy as np
import pytest

from distrl.transforms import statistics as running

# Mean and standard deviation of each column: ordinary, badly scaled, and large against its spread.
MEANS = np.array([0.0, 1e4, -3e5, 1e-3, 5e-7])
SPREADS = np.array([1.0, 1e-2, 1e-1, 1e3, 1e-8])
STRUCT = jax.ShapeDtypeStruct((5,), np.float32)

update, merge = jax.jit(running.update), jax.jit(running.merge)


def exact(pair):
    return np.asarray(pair.hi, np.float64) + np.asarray(pair.lo, np.float64)


def rows(rng, shape):
    return (rng.normal(size=(*shape, 5)) * SPREADS + MEANS).astype(np.float32)


def check(statistics, data):
    """Against rows [N, 5]. A mean is right to 1e-6 of itself or of the spread, if that is less."""
    data = data.astype(np.float64)
    assert exact(statistics.rows) == len(data)
    variance, spread = data.var(axis=0), data.std(axis=0)
    np.testing.assert_allclose(running.variance(statistics), variance, rtol=1e-6)
    np.testing.assert_allclose(running.mean(statistics), data.mean(axis=0), rtol=1e-6)
    assert (np.abs(exact(statistics.mean) - data.mean(axis=0)) < 1e-6 * spread).all()


@pytest.fixture(scope="module")
def fed():
    """Statistics after each of 2,000 masked batches, and the 10**6 rows that count."""
    rng = np.random.default_rng(0)
    statistics, data = running.initial(STRUCT), []
    for _ in range(2000):
        batch, mask = rows(rng, (7, 80)), rng.random((7, 80)) < 0.9
        statistics = update(statistics, np.where(mask[..., None], batch, 1e9), mask)
        data.append(batch[mask])
    return statistics, np.concatenate(data)


def test_a_million_rows_in_thousands_of_batches(fed):
    statistics, data = fed
    assert len(data) > 10**6
    check(statistics, data)


def test_the_compiler_keeps_the_compensation(fed):
    """The sum of the pair is right far beyond what one float32 holds (6e-8)."""
    statistics, data = fed
    mean = data.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(exact(statistics.mean), mean, rtol=1e-12)
    assert np.any(np.asarray(statistics.mean.lo) != 0)


def test_without_compensation_the_test_would_fail(fed):
    """The same data through plain float32, so that the tolerances above mean something."""
    _, data = fed
    statistics = running.initial(STRUCT)
    for batch in data[: 500 * 2000].reshape(2000, 500, 5):
        statistics = update(statistics, batch, np.ones(500, bool))
        statistics = jax.tree.map(
            lambda p: running.Pair(p.hi, np.zeros_like(p.lo)),
            statistics,
            is_leaf=lambda p: isinstance(p, running.Pair),
        )
    with pytest.raises(AssertionError):
        check(statistics, data[: 500 * 2000])


def test_merging_in_any_order_is_pooling():
    rng = np.random.default_rng(1)
    parts, data = [], []
    for size in (1, 2, 1000, 30_000, 0, 17):
        batch, mask = rows(rng, (30_000,)), np.arange(30_000) < size
        parts.append(update(running.initial(STRUCT), batch, mask))
        data.append(batch[:size])
    pooled = np.concatenate(data)
    for order in (range(6), reversed(range(6)), (4, 3, 0, 5, 1, 2)):
        whole = running.initial(STRUCT)
        for i in order:
            whole = merge(whole, parts[i])
        check(whole, pooled)
    a = merge(merge(parts[0], parts[1]), merge(parts[2], parts[3]))
    check(merge(a, merge(parts[4], parts[5])), pooled)


@pytest.mark.parametrize("size", [7, 11])
def test_a_batch_larger_than_a_count_in_float32_is_pooled_from_its_parts(monkeypatch, size):
    monkeypatch.setattr(running, "_MAX_ROWS", 7)
    rng = np.random.default_rng(3)
    batch, mask = rows(rng, (2, size)), rng.random((2, size)) < 0.7
    mask[0] = True
    mask[1, -7:] = False  # a part without rows that count
    statistics = jax.jit(running.of_batch)(np.where(mask[..., None], batch, 1e9), mask)
    check(statistics, batch[mask])


def test_counts_are_exact_far_beyond_float32():
    one = update(running.initial(STRUCT), np.ones((3, 5), np.float32), np.ones(3, bool))
    whole = one
    for _ in range(38):
        whole = merge(whole, whole)
    assert exact(whole.rows) == 3 * 2**38
    for k in range(1, 6):
        whole = merge(whole, one)
        assert exact(whole.rows) == 3 * 2**38 + 3 * k
    np.testing.assert_array_equal(running.mean(whole), 1)
    np.testing.assert_array_equal(running.variance(whole), 0)


def test_nothing_seen():
    nothing = running.initial(STRUCT)
    np.testing.assert_array_equal(running.mean(nothing), 0)
    np.testing.assert_array_equal(running.variance(nothing), 1)
    masked = update(nothing, np.full((4, 5), 7.0, np.float32), np.zeros(4, bool))
    jax.tree.map(np.testing.assert_array_equal, masked, nothing)


def test_a_nest_of_any_shapes():
    rng = np.random.default_rng(2)
    batch = {
        "a": rng.normal(size=(6, 3)).astype(np.float32),
        "b": {"c": rng.normal(size=(6, 3, 2, 4)).astype(np.float16)},
    }
    mask = rng.random((6, 3)) < 0.5
    struct = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], np.float32), batch)
    statistics = update(running.initial(struct), batch, mask)
    for got, want in (
        (running.mean(statistics), lambda x: x[mask].astype(np.float64).mean(axis=0)),
        (running.variance(statistics), lambda x: x[mask].astype(np.float64).var(axis=0)),
    ):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got,
                     jax.tree.map(want, batch))  # fmt: skip
