"""Gradient workers as nodes: killed in training, and moved between policies."""

import csv
import os
import re
import signal

import pytest

from tests.support.commands import CARTPOLE, EXPERIMENTS, Command


@pytest.fixture
def start(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setenv("DISTRL_SHIFT", str(tmp_path / "shift"))

    def begin(*flags: str) -> Command:
        commands.append(Command(tmp_path, *flags))
        return commands[-1]

    yield begin
    for command in commands:
        command.end()


def last_row(command: Command, folder: str = ".") -> dict[str, str]:
    with open(command.run_dir / folder / "metrics.csv") as file:
        return list(csv.DictReader(file))[-1]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("topology", ["heavy_env", "light_env"])
def test_a_worker_is_killed_and_comes_back(start, topology):
    command = start(
        *CARTPOLE,
        "--agent=impala",
        f"--topology={topology}",
        "--config.actors.num_envs=4",
        "--config.learner.batch_size=8",
        "--config.learner.num_gradient_workers=2",
    )
    command.wait_for_training()
    os.kill(command.pid("gradient_worker/0"), signal.SIGKILL)
    restarting = "gradient_worker/0 was killed by SIGKILL: restarting"
    command.wait_for(lambda: restarting in command.output, restarting)
    before = command.learner_steps()
    command.wait_for(lambda: command.learner_steps() > before + 20, "training")
    ready = lambda: last_row(command)["gradient_workers_ready"] == "2"  # noqa: E731
    command.wait_for(ready, "both workers")
    command.interrupt()
    assert command.wait(60.0) == 130
    assert float(last_row(command)["gradient_workers"]) == 2
    computed = [
        int(re.findall(r"computed (\d+) shares", command.log(f"gradient_worker-{index}"))[-1])
        for index in range(2)
    ]
    steps = float(last_row(command)["learner_steps"])
    assert computed[0] > 0 and computed[1] > steps / 3
    command.check_nothing_left()


@pytest.mark.full
@pytest.mark.timeout(500)
def test_workers_follow_the_load(start, tmp_path):
    command = start(f"--experiment={EXPERIMENTS / 'shifting.py'}", "--topology=heavy_env")
    there = "gradient_worker/2 moves from late to early: early is busy with updates for"
    command.wait_for(lambda: there in command.output, there, 200.0)
    (tmp_path / "shift").touch()
    back = "gradient_worker/2 moves from early to late: late is busy with updates for"
    command.wait_for(lambda: back in command.output, back, 120.0)
    late = lambda: last_row(command, "tasks/late")["gradient_workers"]  # noqa: E731
    command.wait_for(lambda: late() == "2", "the metrics")
    print("\n".join(line for line in command.output.splitlines() if " moves from " in line))
    command.interrupt()
    assert command.wait(60.0) == 130
