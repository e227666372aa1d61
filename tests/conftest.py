"""For all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrl.runtime.jax_import import import_jax

import_jax()  # a test that imports it first could crash by the number of tests before

from tests.support.cluster.hosts import Hosts  # noqa: E402
from tests.support.cluster.slurm import Slurm  # noqa: E402

LONGEST = ("tests/programs/", "tests/launch/")


FULL = Path(__file__).with_name("full.txt")
"""Tests of seconds each for which others stand in `make test`, a line each; see docs/testing.md."""


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is not quick, and puts the longest tests first.

    So no worker ends with a long test while the others are idle.
    """
    listed = set(FULL.read_text().splitlines())
    for item in items:
        if item.nodeid in listed or item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.full)
    if not any("::" in argument for argument in config.args):
        collected = {item.nodeid for item in items}
        files = {name.partition("::")[0] for name in collected}
        unknown = [n for n in sorted(listed - collected) if n.partition("::")[0] in files]
        if unknown:
            raise pytest.UsageError(f"{FULL.name} lists tests that do not exist: {unknown}")
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))  # stable


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Three virtual hosts, or as many as `parametrize("hosts", [N], indirect=True)` says."""
    with Hosts(getattr(request, "param", 3)) as made:
        yield made


@pytest.fixture
def slurm(hosts: Hosts) -> Iterator[Slurm]:
    """A Slurm whose nodes are the virtual hosts."""
    with Slurm(hosts) as made:
        yield made
