"""Fixtures: counting streams, and a replay of each kind."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distrl.replay.buffer import ReplayBuffer, ReplayConfig
from distrl.types import Sample, Trajectory
from tests.support.replay import Replay, Streams
from tests.support.selection import full


@pytest.fixture(scope="session")
def make_streams() -> type[Streams]:
    return Streams


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture(params=["local", "shared", full("served"), full("served-tcp"), "reverb"])
def make_replay(request: pytest.FixtureRequest) -> Iterator[Callable[..., Replay]]:
    """Returns `make_replay(config, batch_size, per_item=1)`; its replays close after the test."""
    if request.param == "reverb" and importlib.util.find_spec("reverb") is None:
        pytest.skip("dm-reverb is not installed (it has wheels for Python 3.10 at most)")
    with contextlib.ExitStack() as stack:

        def make(
            config: ReplayConfig,
            batch_size: int,
            per_item: int = 1,
            saved: Path | None = None,
            struct: Trajectory | None = None,
        ) -> Replay:
            replay = Replay(request.param, config, batch_size, per_item, saved, struct)
            stack.callback(replay.close)
            return replay

        yield make


@pytest.fixture
def take() -> Callable[[ReplayBuffer, int], list[Sample]]:
    """Returns a function that takes samples and checks each value."""

    def take(buffer: ReplayBuffer, count: int) -> list[Sample]:
        samples = [buffer.sample(10.0) for _ in range(count)]
        for sample in samples:
            Streams.check(sample.trajectory)
        return samples

    return take
