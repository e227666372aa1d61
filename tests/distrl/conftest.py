"""For all tests of the parts."""

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def quick_to_compile():
    """These tests spend their time in XLA's compiler, for functions that run once or twice."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
