"""How agents' functions are compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents import compiling
from distrl.specs import EnvironmentSpec

ACTION = dm_specs.DiscreteArray(2, np.int32)


def options(*shape, dtype=np.float32):
    return compiling.compiler_options(EnvironmentSpec(dm_specs.Array(shape, dtype), ACTION))


@pytest.mark.skipif(not compiling._HAS_BOTH, reason="this JAX has one runtime only")
def test_vectors_have_the_older_runtime_and_large_images_the_newer_one():
    assert options(4) == {"xla_cpu_use_thunk_runtime": False}
    assert options(7, 7, 3, dtype=np.uint8) == {"xla_cpu_use_thunk_runtime": False}
    assert options(84, 84, 4, dtype=np.uint8) is None


def test_gpus_have_no_options(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert options(4) is None


def test_jax_takes_the_options():
    double = jax.jit(lambda x: jnp.sum(2 * x), compiler_options=options(4))
    assert double(np.ones(4, np.float32)) == 8
