"""Environments that are slow beside the timeouts of those who wait for their data."""

import pytest

from tests.support.commands import EXPERIMENTS, Command, skip_without_reverb
from tests.support.selection import full, slow

SLOW = EXPERIMENTS / "slow.py:experiment"


@pytest.fixture
def train(tmp_path):
    commands = []

    def start(*flags: str) -> Command:
        commands.append(Command(tmp_path, f"--experiment={SLOW}", *flags))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


@pytest.mark.parametrize(
    ("topology", "flags"),
    [
        full("heavy_env", ()),
        slow("light_env", ()),
        slow("heavy_env", ("--config.replay.backend=reverb",)),
        slow("heavy_env", ("--config.lockstep=True",)),
        slow("heavy_env", ("--lp_launch_type=local_mt",)),
    ],
)
def test_the_learner_waits_for_actors_that_work(train, topology, flags):
    """A batch takes twice `learner.timeout`, in which actors work."""
    skip_without_reverb(*flags)
    command = train(f"--topology={topology}", *flags)
    assert command.wait(100.0) == 0, command.output
    assert command.result()["status"] == "finished"
    assert all(not node["causes"] for node in command.result()["nodes"].values())
