"""Nodes killed in a run of several policies: no step is lost track of, or another policy's."""

import csv
import os
import signal

import pytest

from distrl.checkpointing.store import Checkpoints, generation_of
from tests.support.commands import EXPERIMENTS, Command, skip_without_reverb
from tests.support.selection import full, slow

NUM_ACTORS, NUM_ENVS = 2, 4


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("topology", "name", "steps", "kills"),
    [
        full("heavy_env", "experiment", 12_000, ("actor/1",)),
        full("light_env", "experiment", 12_000, ("actor/0", "learner/1")),
        slow("heavy_env", "experiment", 100_000, ("actor/0", "learner/0", "actor/1")),
        slow("heavy_env", "reverb", 100_000, ("actor/0", "actor/1")),
        slow("light_env", "experiment", 100_000, ("actor/0", "inferencer/1", "learner/1")),
        slow("light_env", "asynchronous", 100_000, ("actor/0", "replay/1", "actor/1")),
        # Not inferencer/0: with it, the states of episodes in progress are lost, as they must be.
        slow("light_env", "reverb", 100_000, ("actor/1", "inferencer/1")),
        slow("single_process", "experiment", 100_000, ()),
    ],
)
def test_every_step_is_exact_although_nodes_die(tmp_path, topology, name, steps, kills):
    skip_without_reverb(name)
    command = Command(
        tmp_path,
        f"--experiment={EXPERIMENTS / 'agents.py'}:{name}",
        f"--topology={topology}",
        f"--max_env_steps={steps}",
        "--config.checkpoint.period=2",
    )
    try:
        command.wait_for_training()
        for node in kills:
            again = f"{node} was killed by SIGKILL: restarting"
            said = command.output.count(again)
            os.kill(command.pid(node), signal.SIGKILL)
            command.wait_for(
                lambda again=again, said=said: command.output.count(again) > said, again
            )
        assert command.wait(600.0) == 0, command.output
    finally:
        command.end()
    assert command.result()["status"] == "finished"
    for task in ("outer", "inner"):
        with open(command.run_dir / "tasks" / task / "metrics.csv") as file:
            row = list(csv.DictReader(file))[-1]
        assert not [key for key, value in row.items() if key.startswith("wrong_") and float(value)]
        assert steps <= int(row["env_steps"]) < steps + NUM_ACTORS * NUM_ENVS
        assert float(row["checked"]) > steps / 2 / (1 + len(kills))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_learner_that_is_done_holds_up_nobody_after_its_restart(tmp_path):
    command = Command(
        tmp_path,
        f"--experiment={EXPERIMENTS / 'agents.py'}:limited",
        "--topology=heavy_env",
        "--config.policies.inner.goal.max_learner_steps=400",
    )
    try:
        command.wait_for(lambda: "5 updates" in command.output, "the end of outer's updates")
        os.kill(command.pid("learner/0"), signal.SIGKILL)
        assert command.wait(200.0) == 0, command.output
    finally:
        command.end()
    assert "learner/0 was killed by SIGKILL: restarting" in command.output
    for task, updates in (("outer", 5), ("inner", 400)):
        with open(command.run_dir / "tasks" / task / "metrics.csv") as file:
            assert int(list(csv.DictReader(file))[-1]["learner_steps"]) == updates


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_restarted_learner_leaves_one_checkpoint_in_each_generation(tmp_path):
    command = Command(
        tmp_path,
        f"--experiment={EXPERIMENTS / 'agents.py'}:experiment",
        "--topology=heavy_env",
        "--max_env_steps=1000000000",
        "--config.checkpoint.period=15",
    )
    folders = [command.run_dir / "tasks" / task for task in ("outer", "inner")]

    def generations():
        return [[generation_of(path) for path in Checkpoints(each).paths()] for each in folders]

    try:
        command.wait_for_training()
        command.wait_for(lambda: all(generations()), "the first generation")
        os.kill(command.pid("learner/0"), signal.SIGKILL)
        again = len(generations()[0]) + 1
        command.wait_for(lambda: len(generations()[0]) >= again, "a checkpoint of learner/0")
        command.wait_for(lambda: len(generations()[1]) > 1, "the second generation")
        for saved in generations():
            assert sorted(set(saved)) == saved
    finally:
        command.end()
