"""Running mean and variance that stay exact over any amount of data, without 64-bit arithmetic.

Every number is the exact sum of a pair of float32: about 14 decimal digits, on any device and for
any x64 setting of JAX. Sums are Knuth's TwoSum and products Dekker's, as in Shewchuk 1997,
"Adaptive precision floating-point arithmetic" (https://doi.org/10.1007/PL00009321). Statistics are
merged as in Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
sample variances", so that the merged statistics are those of all data.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from distrl import specs
from distrl.types import Array, Nest

_MAX_ROWS = 2**24  # rows of a part of a batch: up to here float32 represents every count


class Pair(NamedTuple):
    """The number `hi + lo`, both float32 of one shape; `hi` is the float32 nearest to it."""

    hi: Array
    lo: Array


class Statistics(NamedTuple):
    """Statistics of each element of a nest, over the rows seen so far."""

    rows: Pair  # scalars: number of rows, exact to 2**48
    mean: Nest  # the nest, a Pair for each leaf
    m2: Nest  # likewise: the sum of squared deviations from the mean


def initial(struct: Nest) -> Statistics:
    """Returns the statistics of no rows, as NumPy arrays.

    Args: struct: nest of specs of one row.
    """

    def pair(shape: tuple[int, ...]) -> Pair:
        return Pair(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def zeros() -> Nest:
        return jax.tree.map(lambda s: pair(tuple(s.shape)), struct, is_leaf=specs.is_spec)

    return Statistics(pair(()), zeros(), zeros())


def of_batch(batch: Nest, mask: Array) -> Statistics:
    """Returns the statistics of the rows of one batch.

    Args:
      batch: nest of float `[*leading, ...]`.
      mask: bool `[*leading]`, the rows that count. Values in other rows do not matter.
    """
    mask = jnp.asarray(mask)
    rows = jax.tree.map(lambda leaf: leaf.reshape(mask.size, *leaf.shape[mask.ndim :]), batch)
    mask = mask.reshape(-1)

    def part(start: int) -> Statistics:
        chosen = slice(start, start + _MAX_ROWS)
        return _of_rows(jax.tree.map(lambda leaf: leaf[chosen], rows), mask[chosen])

    return functools.reduce(merge, map(part, range(0, max(1, mask.size), _MAX_ROWS)))


def _of_rows(rows: Nest, mask: Array) -> Statistics:
    """Returns `of_batch` of `_MAX_ROWS` at most. Args: rows: `[n, ...]`. mask: bool `[n]`."""
    count = _pair(jnp.sum(mask).astype(jnp.float32))
    some = Pair(jnp.maximum(count.hi, 1.0), count.lo)

    def moments(leaf: Array) -> tuple[Pair, Pair]:
        keep = mask.reshape(-1, *[1] * (leaf.ndim - 1))
        x = jnp.where(keep, leaf.astype(jnp.float32), 0.0)
        # Deviations from a rough mean are exact in a pair, and so their mean is accurate.
        rough = jnp.sum(x, axis=0) / some.hi
        off = jax.tree.map(lambda part: jnp.where(keep, part, 0.0), _two_sum(x, -rough))
        mean = _add(_divide(_sum(off), some), _pair(rough))
        square = jnp.square(jnp.where(keep, deviation(x, mean), 0.0))
        return mean, _sum(_pair(square))

    leaves, structure = jax.tree.flatten(rows)
    parts = [moments(leaf) for leaf in leaves]
    return Statistics(
        count,
        structure.unflatten([mean for mean, _ in parts]),
        structure.unflatten([m2 for _, m2 in parts]),
    )


def merge(a: Statistics, b: Statistics) -> Statistics:
    """Returns the statistics of the rows of both."""
    count = _add(a.rows, b.rows)
    some = Pair(jnp.maximum(count.hi, 1.0), count.lo)
    share = _divide(b.rows, some)  # b's share of the rows
    weight = _multiply(a.rows, share)

    def moments(mean_a: Pair, mean_b: Pair, m2_a: Pair, m2_b: Pair) -> tuple[Pair, Pair]:
        apart = _add(mean_b, Pair(-mean_a.hi, -mean_a.lo))
        between = _multiply(_multiply(apart, apart), weight)
        return _add(mean_a, _multiply(apart, share)), _add(_add(m2_a, m2_b), between)

    def leaves(nest: Nest) -> list[Pair]:
        return jax.tree.leaves(nest, is_leaf=_is_pair)

    structure = jax.tree.structure(a.mean, is_leaf=_is_pair)
    parts = list(map(moments, *(leaves(nest) for nest in (a.mean, b.mean, a.m2, b.m2))))
    return Statistics(
        count,
        structure.unflatten([mean for mean, _ in parts]),
        structure.unflatten([m2 for _, m2 in parts]),
    )


def update(statistics: Statistics, batch: Nest, mask: Array) -> Statistics:
    """Returns the statistics with the rows of one more batch; see `of_batch`."""
    return merge(statistics, of_batch(batch, mask))


def mean(statistics: Statistics) -> Nest:
    """Returns the means, float32; 0 without rows."""
    return jax.tree.map(lambda pair: pair.hi, statistics.mean, is_leaf=_is_pair)


def variance(statistics: Statistics) -> Nest:
    """Returns the variances (divided by the number of rows), float32; 1 without rows."""
    count = statistics.rows.hi
    return jax.tree.map(
        lambda pair: jnp.where(count > 0, pair.hi / jnp.maximum(count, 1.0), 1.0),
        statistics.m2,
        is_leaf=_is_pair,
    )


def deviation(x: Array, mean: Pair) -> Array:
    """Returns `x - mean`, float32; accurate even if `x` is large and its spread small."""
    return (x - mean.hi) - mean.lo


def _is_pair(nest: Nest) -> bool:
    return isinstance(nest, Pair)


def _pair(x: Array) -> Pair:
    return Pair(x, jnp.zeros_like(x))


def _two_sum(a: Array, b: Array) -> Pair:
    """Returns `a + b` exactly. XLA does not reorder floating-point sums, which tests verify."""
    total = a + b
    rest = total - a
    return Pair(total, (a - (total - rest)) + (b - rest))


def _halves(a: Array) -> tuple[Array, Array]:
    """Splits `a` into the sum of its upper and lower 12 bits of mantissa."""
    bits = jax.lax.bitcast_convert_type(a, jnp.uint32) & np.uint32(0xFFFFF000)
    upper = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return upper, a - upper


def _two_product(a: Array, b: Array) -> Pair:
    """Returns `a * b`, to a relative error of about 2**-46.

    Products of halves are exact, so that it does not matter whether a compiler fuses them with
    sums.
    """
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    first = _two_sum(a1 * b1, a1 * b2)
    second = _two_sum(first.hi, a2 * b1)
    return _two_sum(second.hi, (first.lo + second.lo) + a2 * b2)


def _add(a: Pair, b: Pair) -> Pair:
    upper, lower = _two_sum(a.hi, b.hi), _two_sum(a.lo, b.lo)
    upper = _two_sum(upper.hi, upper.lo + lower.hi)
    return _two_sum(upper.hi, upper.lo + lower.lo)


def _multiply(a: Pair, b: Pair) -> Pair:
    product = _two_product(*jnp.broadcast_arrays(a.hi, b.hi))
    return _two_sum(product.hi, product.lo + (a.hi * b.lo + a.lo * b.hi))


def _divide(a: Pair, b: Pair) -> Pair:
    """Returns `a / b` by long division, in digits of 24 bits."""
    quotient = _pair(a.hi / b.hi)
    for _ in range(2):
        done = _multiply(quotient, b)
        rest = _add(a, Pair(-done.hi, -done.lo))
        quotient = _add(quotient, _pair(rest.hi / b.hi))
    return quotient


def _sum(x: Pair) -> Pair:
    """Sums over the first axis: Ogita, Rump and Oishi's Sum2, https://doi.org/10.1137/030601818.

    It is one reduction, because XLA takes seconds to compile a tree of pairs.
    """

    def add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        total = _two_sum(a[0], b[0])
        return total.hi, (a[1] + b[1]) + total.lo

    if not x.hi.size:  # XLA would never finish compiling this reduction of no elements
        return _pair(jnp.zeros(x.hi.shape[1:], np.float32))
    zero = np.zeros((), np.float32)
    return _two_sum(*jax.lax.reduce((x.hi, x.lo), (zero, zero), add, (0,)))
