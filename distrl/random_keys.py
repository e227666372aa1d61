"""Random keys: the one way to derive them, so that no two parts draw the same numbers.

A key is used in one way only: numbers are drawn from it, or it is the parent of keys with a purpose
(`derive`), or of numbered keys (`numbered`). Nothing else splits keys or folds numbers into them:
mixing those gives equal keys (in JAX, `split(key, 1)[0]`, `split(key)[0]` and `fold_in(key, 0)` are
one and the same).
"""

import zlib

import jax


def root(seed: int) -> jax.Array:
    """Returns the key of a seed, the parent of keys with a purpose; uint32 [2]."""
    return jax.random.PRNGKey(seed)


def derive(key: jax.Array, purpose: str) -> jax.Array:
    """Returns the child of a key with a purpose, unrelated to those with others.

    Args:
      key: raw key (uint32 [2]); nothing may be drawn from it, nor may it have numbered children.
      purpose: what the child is for; each of a key's children has its own.
    """
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def numbered(key: jax.Array, number: jax.typing.ArrayLike) -> jax.Array:
    """Returns the child of a key with a number, for as many as are needed over time or in a loop.

    Args:
      key: raw key (uint32 [2]); nothing may be drawn from it, nor may it have children by purpose.
      number: a 32-bit integer, different for each child.
    """
    return jax.random.fold_in(key, number)
