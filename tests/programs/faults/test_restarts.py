"""Nodes killed in training: every step that is trained on is right, and every counter true."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distrl.checkpointing.store import Checkpoint, Checkpoints
from tests.support.commands import EXPERIMENTS, ROOT, Command, skip_without_reverb
from tests.support.experiments.counted import NUM_ENVS, total

EXPERIMENT = EXPERIMENTS / "counted.py"


@pytest.fixture
def start(tmp_path, monkeypatch):
    commands = []
    (tmp_path / "counts").mkdir()
    monkeypatch.setenv("DISTRL_COUNTS", str(tmp_path / "counts"))

    def begin(*flags: str) -> Command:
        commands.append(Command(tmp_path, *flags))
        return commands[-1]

    yield begin
    for command in commands:
        command.end()


def kill(command: Command, node: str) -> None:
    """Kills the node, and waits until it is restarted and training continues."""
    said = command.output.count(f"{node} was killed by SIGKILL: restarting")
    os.kill(command.pid(node), signal.SIGKILL)
    again = f"{node} was killed by SIGKILL: restarting"
    command.wait_for(lambda: command.output.count(again) > said, again)
    command.wait_for(
        lambda: f"{node} is running" in command.log("supervisor").rpartition(again)[2],
        f"{node} again",
    )
    before = command.learner_steps()
    command.wait_for(lambda: command.learner_steps() > before + 3, "training")


def check(command: Command, folder: Path, kills_of_actors: int, ends: int = 4) -> None:
    """Stops the program, and compares what it counted with what the environments did.

    Args:
      ends: of lives of actors, that were asked to end.
    """
    command.interrupt()
    assert command.wait(60.0) == 130
    with open(command.run_dir / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    wrong = {name: row[name] for name in row if name.startswith("wrong_") and float(row[name])}
    assert not wrong
    assert float(row["checked"]) == float(row["trained_steps"]) > 1000
    true = total(folder / "counts")
    counted = int(row["env_steps"])
    print(
        f"acted {counted}, the environments' own count {true}, told late "
        f"{row['env_steps_unreported']}"
    )
    # Not counted: a step that a kill interrupts, and one that began when a life was asked to end.
    assert 0 <= true - counted <= (ends + 2 * kills_of_actors) * NUM_ENVS
    command.check_nothing_left()


@pytest.mark.full
@pytest.mark.timeout(200)
def test_counters_stay_true_and_no_unroll_mixes_two_lives(start, tmp_path):
    command = start(
        f"--experiment={EXPERIMENT}:recurrent",
        "--topology=light_env",
        "--config.actors.max_actors=5",
    )
    command.wait_for_training()
    for node in ("actor/1", "replay/0", "actor/2"):
        kill(command, node)
    for wanted in (2, 5):  # three leave, the fifth joins, and two come back
        ask = [
            sys.executable,
            "-m",
            "distrl",
            "actors",
            str(command.run_dir),
            str(wanted),
        ]
        done = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, timeout=70, check=True)
        assert done.stdout == f"{wanted} actors running\n"
        before = command.learner_steps()
        command.wait_for(lambda before=before: command.learner_steps() > before + 3, "training")
    check(command, tmp_path, 2, ends=4 + 2 + 1)


@pytest.mark.full
@pytest.mark.timeout(200)
def test_no_step_is_lost_with_the_monitor(start, tmp_path):
    """The last checkpoint counts what the actors did, though the monitor cannot tell any more."""
    command = start(f"--experiment={EXPERIMENT}", "--topology=heavy_env")
    command.wait_for_training()
    heard = command.learner_steps()
    command.wait_for(lambda: command.learner_steps() > heard, "reports")
    os.kill(command.pid("monitor/0"), signal.SIGKILL)
    assert command.wait(60.0) == 1
    manifest = Checkpoints(command.run_dir).latest().manifest
    counted, true = manifest["monitor"]["env_steps_acted"], total(tmp_path / "counts")
    print(f"saved {counted}, the environments' own count {true}")
    assert manifest["env_steps"] <= counted
    assert 0 <= true - counted <= 4 * NUM_ENVS  # a step of each actor that its end interrupts
    with open(command.run_dir / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    assert int(row["env_steps"]) <= counted
    assert manifest["monitor"]["episodes"] > 0  # of which the learner had heard


@pytest.mark.full
@pytest.mark.timeout(200)
def test_no_checkpoint_has_the_score_of_parameters_that_were_lost(start):
    command = start(
        f"--experiment={EXPERIMENT}",
        "--topology=heavy_env",
        "--config.evaluator.num_evaluators=1",
        "--config.evaluator.interval=0.1",
        "--config.evaluator.episodes=1",
        "--config.evaluator.num_envs=1",
        "--config.checkpoint.period=3",
        "--config.checkpoint.keep=1000",
    )

    def scored(life: int) -> list[dict[str, Any]]:
        """Returns the manifests of a life's checkpoints that have a score."""
        paths = Checkpoints(command.run_dir).paths()
        manifests = [Checkpoint.read_manifest(path) for path in paths]
        return [
            m for m in manifests if m["lives"]["learner/0"] == life and "evaluated_version" in m
        ]

    command.wait_for_training()
    command.wait_for(lambda: scored(1), "a checkpoint with a score")
    kill(command, "learner/0")
    command.wait_for(lambda: scored(2), "another one")
    for life in (1, 2):
        for manifest in scored(life):
            evaluation = manifest["monitor"]["evaluation"]
            assert evaluation["learner_life"] == life - 1
            assert evaluation["version"] == manifest["evaluated_version"] <= manifest["version"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["served", "reverb"])
def test_a_shard_of_the_replay_is_killed(start, tmp_path, backend):
    skip_without_reverb(backend)
    command = start(
        f"--experiment={EXPERIMENT}:recurrent",
        "--topology=heavy_env",
        f"--config.replay.backend={backend}",
        "--config.replay.num_shards=2",
        "--config.checkpoint.period=2",
    )
    command.wait_for_training()
    for node in ("replay/1", "replay/0", "replay/1"):
        kill(command, node)
    check(command, tmp_path, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("topology", "name", "backend", "nodes"),
    [
        ("light_env", "experiment", "auto", ["actor", "actor", "actor", "inferencer", "replay"]),
        ("light_env", "recurrent", "auto", ["actor", "actor", "replay"]),
        ("heavy_env", "recurrent", "auto", ["actor", "actor", "replay"]),
        ("heavy_env", "recurrent", "served", ["actor", "actor", "replay"]),
    ],
)
def test_many_kills(start, tmp_path, topology, name, backend, nodes):
    command = start(
        f"--experiment={EXPERIMENT}:{name}",
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
    )
    command.wait_for_training()
    chosen = random.Random(1)
    of_actors = 0
    end = time.monotonic() + 90.0
    while time.monotonic() < end:
        label = chosen.choice(nodes)
        of_actors += label == "actor"
        kill(command, f"actor/{chosen.randrange(4)}" if label == "actor" else f"{label}/0")
    print(f"{of_actors} kills of actors")
    check(command, tmp_path, of_actors)


CHAOS_S = 180.0
OTHERS = {
    30: "inferencer/0",
    60: "learner/0",
    90: "inferencer/0",
    120: "replay/0",
    150: "inferencer/0",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cartpole_is_solved_in_chaos(start, tmp_path):
    """An actor is killed every two seconds for three minutes, and all the others now and then."""
    command = start(f"--experiment={EXPERIMENT}:cartpole", "--topology=light_env")
    command.wait_for_training()
    chosen, others = random.Random(2), dict(OTHERS)
    began, of_actors = time.monotonic(), 0
    while (now := time.monotonic() - began) < CHAOS_S:
        nodes = [f"actor/{chosen.randrange(4)}"]
        nodes += [others.pop(due) for due in list(others) if due <= now]
        for node in nodes:
            try:
                os.kill(command.pid(node), signal.SIGKILL)
            except ValueError:  # it is just being started again
                continue
            of_actors += node.startswith("actor")
        time.sleep(2.0)
        assert command.process.poll() is None, command.output[-4000:]
    assert not others
    before = command.learner_steps()
    command.wait_for(lambda: command.learner_steps() > before + 200, "training in peace")

    def best() -> float:
        with open(command.run_dir / "metrics.csv") as file:
            return max(float(row["mean_return"] or 0) for row in csv.DictReader(file))

    deadline = time.monotonic() + 300.0
    while best() < 475:
        assert time.monotonic() < deadline, f"the best mean return is {best()}"
        time.sleep(1.0)
    command.interrupt()
    assert command.wait(60.0) == 130
    with open(command.run_dir / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    true, counted = total(tmp_path / "counts"), int(row["env_steps"])
    print(
        f"{of_actors} kills of actors; acted {counted}, the environments' own count {true}, told "
        f"late {row['env_steps_unreported']}; best mean return {best():.1f}"
    )
    assert 0 <= true - counted <= (4 + 2 * of_actors) * NUM_ENVS
    command.check_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_stopping_one_program_leaves_another_alone(start, tmp_path):
    flags = (f"--experiment={EXPERIMENT}", "--topology=light_env")
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    one, other = (Command(folder, *flags) for folder in folders)
    try:
        one.wait_for_training()
        other.wait_for_training()
        one.interrupt()
        assert one.wait(30.0) == 130
        before = other.learner_steps()
        other.wait_for(lambda: other.learner_steps() > before + 20, "the other's training")
        other.interrupt()
        assert other.wait(30.0) == 130
        assert "restarting" not in other.output
        one.check_nothing_left()
        other.check_nothing_left()
    finally:
        one.end()
        other.end()
