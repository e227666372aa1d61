"""Nodes killed in a round of synchronous collection: the rounds go on, and every step is right."""

import csv
import os
import signal

import pytest

from distrl.launch.commands import actors
from tests.support.commands import EXPERIMENTS, Command
from tests.support.selection import full, slow


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("topology", "name", "node"),
    [
        full("heavy_env", "rounds", "actor/1"),
        slow("heavy_env", "rounds", "actor/0"),
        slow("heavy_env", "rounds", "learner/0"),
        slow("heavy_env", "rounds", "replay/0"),
        slow("light_env", "stateless_rounds", "actor/1"),
        slow("light_env", "stateless_rounds", "inferencer/0"),
    ],
)
def test_rounds_go_on_when_a_node_dies(tmp_path, topology, name, node):
    command = Command(
        tmp_path,
        f"--experiment={EXPERIMENTS / 'checking.py'}:{name}",
        f"--topology={topology}",
        "--max_trained_steps=1000000000",
        "--config.checkpoint.period=1",
    )
    try:
        command.wait_for_training()
        command.wait_for(lambda: "checkpoint 0" in command.output, "checkpoint")
        os.kill(command.pid(node), signal.SIGKILL)
        again = f"{node} was killed by SIGKILL: restarting"
        command.wait_for(lambda: again in command.output, again)
        running = f"{node} is running"
        command.wait_for(
            lambda: running in command.log("supervisor").rpartition(again)[2], f"{node} again"
        )
        for _ in range(2):  # the first updates may be of data from before
            before = command.learner_steps()
            command.wait_for(lambda before=before: command.learner_steps() > before + 3, "rounds")
        command.interrupt()
        assert command.wait(60.0) == 130, command.output
    finally:
        command.end()
    check(command)


@pytest.mark.full
@pytest.mark.timeout(200)
def test_rounds_go_on_with_fewer_actors_than_min_actors(tmp_path):
    command = Command(
        tmp_path,
        f"--experiment={EXPERIMENTS / 'checking.py'}:rounds",
        "--topology=heavy_env",
        "--max_trained_steps=1000000000",
    )
    try:
        command.wait_for_training()
        for wanted in ("1", "3"):
            assert actors.actors(["distrl actors", str(command.run_dir), wanted]) == 0
            before = command.learner_steps()
            command.wait_for(lambda before=before: command.learner_steps() > before + 3, "rounds")
        command.interrupt()
        assert command.wait(60.0) == 130, command.output
    finally:
        command.end()
    check(command)


def check(command):
    """Checks the last row of the metrics."""
    with open(command.run_dir / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    assert not [key for key, value in row.items() if key.startswith("wrong_") and float(value)]
    assert float(row["rounds"]) > 4
    assert float(row["checked"]) == float(row["trained_steps"]) > 0
