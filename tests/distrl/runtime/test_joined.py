"""Nests whose small leaves are joined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.runtime import joined
from distrl.runtime.codec import Codec
from distrl.runtime.joined import Joined

NEST = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": (np.float32(7.0), np.zeros((0, 4), np.float32)),
    "count": np.int32(3),
    "key": np.array([1, 2**32 - 1], np.uint32),
    "flags": np.array([[True], [False]]),
    "half": jnp.array([0.1, -0.0, jnp.nan], jnp.bfloat16),
    "none": None,
    "large": np.arange(30_000, dtype=np.float32).reshape(3, -1),
}


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.shape(a) == np.shape(b) and a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_what_is_joined_comes_apart_again():
    made = jax.jit(Joined.of)(NEST)
    same(made.on_host(), NEST)
    same(jax.jit(Joined.split)(made), NEST)
    same(jax.jit(lambda x: Joined.of(x.split()))(made).on_host(), NEST)
    assert sorted(x.dtype.name for x in made.vectors) == [
        "bfloat16", "bool", "float32", "float32", "int32", "uint32",
    ]  # fmt: skip


@pytest.mark.parametrize("nest", [(), {}, 1.5, [jnp.ones(())], {"loss": 2.0, "steps": 3}])
def test_any_nest_can_be_joined(nest):
    same(jax.jit(Joined.of)(nest).on_host(), jax.tree.map(jnp.asarray, nest))


def test_on_the_host_leaves_are_views():
    made = jax.tree.map(np.asarray, jax.jit(Joined.of)(NEST))
    leaves = jax.tree.leaves(made.split())
    assert all(any(np.shares_memory(leaf, x) for x in made.vectors) for leaf in leaves if leaf.size)


def test_a_function_is_compiled_once_for_what_it_returns():
    traced = []

    @jax.jit
    def step(nest):
        traced.append(None)
        return Joined.of(jax.tree.map(lambda x: x + 1, nest.split()))

    nest = {"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}
    made = jax.jit(Joined.of)(nest)
    for _ in range(3):
        made = step(made)
    assert len(traced) == 1
    same(made.on_host(), jax.tree.map(lambda x: x + np.float32(3), nest))


def test_how_large_a_leaf_is_joined(monkeypatch):
    monkeypatch.setattr(joined, "_SMALL", 6)
    made = jax.jit(Joined.of)({"w": NEST["w"], "b": NEST["b"]})
    assert [x.shape for x in made.vectors] == [(1,), (2, 3)]
    same(made.on_host(), {"w": NEST["w"], "b": NEST["b"]})


@pytest.mark.parametrize(
    "widths", [(4, 4), (4, 2), (1, 4)], ids=["in order", "others between", "other order"]
)
def test_runs_are_what_a_codec_copies(widths):
    """Whatever order the leaves have there, and in vectors."""
    types = {4: np.float32, 2: np.float16, 1: np.int8}
    nest = {
        name: np.arange(7 * i, 7 * i + 6).astype(types[widths[i % 2]]).reshape(2, 3)
        for i, name in enumerate("abcd")
    }
    codec, made = Codec(nest, "parameters"), jax.jit(Joined.of)(nest).map(np.asarray)
    memory = np.zeros(codec.row_bytes, np.uint8)
    runs = made.layout.runs(codec.offsets, codec.dtypes)
    for number, start, stop, offset in runs:
        part = made.vectors[number][start:stop].view(np.uint8)
        memory[offset : offset + len(part)] = part
    assert memory.tobytes() == codec.pack(jax.tree.map(lambda x: x[None], nest), 1)
    assert len(runs) == len(set(widths))
