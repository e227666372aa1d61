"""For all tests."""

import signal
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from distrl.runtime.jax_import import import_jax

import_jax()  # a test that imports it first could crash by the number of tests before

from distrl.learning import compile_ahead  # noqa: E402
from distrl.runtime import working_folder  # noqa: E402
from tests.support.cluster.hosts import Hosts  # noqa: E402
from tests.support.cluster.ray import Ray  # noqa: E402
from tests.support.cluster.slurm import Slurm  # noqa: E402

_COMPILATION_S = 120
LONGEST = ("tests/programs/", "tests/launch/")


def pytest_sessionfinish() -> None:
    """Waits for what is compiled ahead: XLA may crash where it compiles while Python ends."""
    for thread in threading.enumerate():
        if thread.name == compile_ahead.NAME:
            thread.join(_COMPILATION_S)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--share`."""
    parser.addoption("--share", help="K/N: only share K of N of the tests, K from 0 on")


MARKED = {
    name: Path(__file__).with_name(f"{name}.txt").read_text().splitlines()
    for name in ("full", "slow")
}
"""Tests for which others stand in quicker sets, a line each, by mark; see docs/testing.md.

A line without the parameters of a test is for all of them.
"""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names a signal in a test's id alike on every Python; else pytest does."""
    return val.name if isinstance(val, signal.Signals) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is not quick, and puts the longest tests first.

    So no worker ends with a long test while the others are idle.
    """
    if both := sorted(set(MARKED["full"]) & set(MARKED["slow"])):
        raise pytest.UsageError(f"full.txt and slow.txt both list: {both}")
    marks = {test: getattr(pytest.mark, name) for name, tests in MARKED.items() for test in tests}
    for item in items:
        for name in {item.nodeid, _of_all_parameters(item.nodeid)} & marks.keys():
            item.add_marker(marks[name])
        if item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.full)
    if not any("::" in argument for argument in config.args):
        collected = {n for item in items for n in (item.nodeid, _of_all_parameters(item.nodeid))}
        files = {name.partition("::")[0] for name in collected}
        unknown = [n for n in sorted(set(marks) - collected) if n.partition("::")[0] in files]
        if unknown:
            raise pytest.UsageError(f"full.txt or slow.txt list what does not exist: {unknown}")
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))  # stable
    if share := config.getoption("--share"):
        index, count = _share(share)
        parts: list[list[pytest.Item]] = [[], []]
        for item in items:
            parts[zlib.crc32(item.nodeid.encode()) % count == index].append(item)
        others, items[:] = parts
        config.hook.pytest_deselected(items=others)


def _share(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise pytest.UsageError(f"--share={text}: it is K/N, with K from 0 to N - 1, such as 0/3")
    return int(index), int(count)


def _of_all_parameters(nodeid: str) -> str:
    return nodeid.partition("[")[0]


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`tmp_path`, to which the process has gone from its `home`, where the command began."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    with working_folder.kept():
        monkeypatch.chdir(tmp_path)
        yield tmp_path


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


@pytest.fixture
def ray(hosts: Hosts) -> Ray:
    """A Ray cluster whose nodes are the virtual hosts, with which it ends."""
    return Ray(hosts)
