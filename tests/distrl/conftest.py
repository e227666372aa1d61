"""For all tests of the parts."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def quick_to_compile():
    """These tests spend their time in XLA's compiler, for functions that run once or twice."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """`elsewhere(function, *args, **popen)` runs it in an interpreter of its own.

    A fork would take what JAX's and Reverb's threads hold at that moment with it, without the
    threads: a child of pytest's process has crashed by that.
    """
    started: list[subprocess.Popen[bytes]] = []

    def run(function: Callable[..., Any], *args: Any, **popen: Any) -> "subprocess.Popen[bytes]":
        for name, module in list(sys.modules.items()):
            if name.startswith("tests."):  # cannot be imported there
                cloudpickle.register_pickle_by_value(module)
        code = "import pickle, sys; function, args = pickle.load(sys.stdin.buffer); function(*args)"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, **popen)
        started.append(child)
        assert child.stdin is not None
        child.stdin.write(cloudpickle.dumps((function, args)))
        child.stdin.close()
        return child

    yield run
    for child in started:
        child.kill()
        child.wait(10.0)
