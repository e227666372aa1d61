"""For all tests."""

from collections.abc import Iterator

import pytest

from distrl.runtime.jax_import import import_jax

import_jax()  # a test that imports it first could crash by the number of tests before

from tests.support.cluster.hosts import Hosts  # noqa: E402
from tests.support.cluster.slurm import Slurm  # noqa: E402

LONGEST = ("tests/programs/", "tests/launch/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest tests first, so that no worker ends with one while the others are idle."""
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
