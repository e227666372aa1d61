"""Whole programs keep a budget exactly, by the count that their environments keep in files."""

import csv
import json
import os
import signal
import sys

import pytest

from tests.support.commands import EXPERIMENTS, Command, finish, skip_without_reverb
from tests.support.experiments.counted import NUM_ENVS, total

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

EXPERIMENT = EXPERIMENTS / "counted.py"
SPEC = 1  # step of an environment that is only asked for its specs
LENGTH, BATCH, ACTORS = 9, 16, 4  # of the experiment
HEAVY, LIGHT, LOCKSTEP = "--topology=heavy_env", "--topology=light_env", "--config.lockstep=True"
REVERB = "--config.replay.backend=reverb"
SHARED = "--config.replay.backend=shared_memory"
UNIFORM = (
    "--config.replay.table=uniform", "--config.replay.min_size_to_sample=32",
    "--config.replay.samples_per_insert=2",
)  # fmt: skip


@pytest.fixture
def counts(tmp_path, monkeypatch):
    folder = tmp_path / "counts"
    folder.mkdir()
    monkeypatch.setenv("DISTRL_COUNTS", str(folder))
    return folder


def last_row(folder):
    with open(folder / "metrics.csv") as file:
        return list(csv.DictReader(file))[-1]


def train(folder, counts, *flags, name="experiment"):
    """Returns the steps that the environments took, and the last row of metrics."""
    command = [
        sys.executable, "-m", "distrl", "train", f"--experiment={EXPERIMENT}:{name}",
        f"--run_dir={folder}", *flags,
    ]  # fmt: skip
    skip_without_reverb(*flags)
    before = total(counts)
    done = finish(command, 200.0)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    row = last_row(folder)
    assert not [name for name in row if name.startswith("wrong_") and float(row[name])]
    return total(counts) - before - SPEC, {
        name: int(row[name])
        for name in ("env_steps", "trained_steps", "learner_steps", "episodes", "unrolls")
    }


@pytest.mark.parametrize("budget", ["env_steps", "episodes"])
@pytest.mark.parametrize(
    "flags",
    [
        (HEAVY, SHARED),
        (HEAVY, REVERB, "--config.replay.num_shards=2"),
        (LIGHT, SHARED, *UNIFORM),
        (LIGHT, REVERB, *UNIFORM),
        (HEAVY, SHARED, "--lp_launch_type=local_mt"),
        (HEAVY, LOCKSTEP),
    ],
    ids=" ".join,
)
def test_what_actors_do_exceeds_the_budget_by_less_than_one_step(tmp_path, counts, flags, budget):
    limit = {"env_steps": 5000, "episodes": 600}[budget]
    true, row = train(tmp_path / "run", counts, *flags, f"--max_{budget}={limit}")
    assert true == row["env_steps"]
    actors = ACTORS if LOCKSTEP in flags else 1
    assert limit <= row[budget] < limit + actors * NUM_ENVS
    # What was made was learned from: less than a batch is left, and the last unroll of a stream.
    streams = ACTORS * NUM_ENVS
    rows = row["env_steps"] + row["episodes"]
    inserted = rows / LENGTH
    ratio = 1.0
    if "--config.replay.table=uniform" in flags:
        ratio, inserted = 2.0, inserted - BATCH  # half of min_diff = 2 * 32 - 2 * 16
    assert -BATCH - ratio * streams <= row["unrolls"] - ratio * inserted <= 0


@pytest.mark.parametrize("topology", [HEAVY, LIGHT])
def test_updates_that_overlap_with_sampling_leave_nothing_and_are_saved(tmp_path, counts, topology):
    flags = topology, SHARED, *UNIFORM, "--max_env_steps=5000"
    true, row = train(tmp_path / "run", counts, *flags, name="long_updates")
    assert true == row["env_steps"]
    inserted = (row["env_steps"] + row["episodes"]) / LENGTH - BATCH
    assert -BATCH - 2.0 * ACTORS * NUM_ENVS <= row["unrolls"] - 2.0 * inserted <= 0
    saved = json.loads((tmp_path / "run" / "result.json").read_text())["saved"]
    assert saved["learner_steps"] == saved["params_learner_steps"] == row["learner_steps"]


@pytest.mark.parametrize("topology", [HEAVY, LIGHT])
def test_every_transition_of_a_budget_is_learned_from(tmp_path, counts, topology):
    flags = "--config.replay.unroll_length=1", "--config.learner.batch_size=1"
    true, row = train(tmp_path / "run", counts, topology, SHARED, *flags, "--max_episodes=200")
    assert true == row["env_steps"] == row["trained_steps"]


def test_a_budget_in_transitions_is_exceeded_by_less_than_a_batch(tmp_path, counts):
    _, row = train(tmp_path / "run", counts, LIGHT, REVERB, "--max_trained_steps=5000")
    assert 5000 <= row["trained_steps"] < 5000 + LENGTH * BATCH


def test_lockstep_with_a_budget_makes_the_same_twice(tmp_path, counts):
    flags = (HEAVY, LOCKSTEP, "--max_env_steps=3000")
    rows = [train(tmp_path / name, counts, *flags)[1] for name in ("one", "two")]
    assert rows[0]["learner_steps"] == rows[1]["learner_steps"] > 10
    assert rows[0]["trained_steps"] == rows[1]["trained_steps"]


def test_killed_actors_and_resuming_do_not_change_it(tmp_path, counts):
    flags = (f"--experiment={EXPERIMENT}:experiment", HEAVY, SHARED)
    command = Command(tmp_path, *flags, "--max_env_steps=60000")
    try:
        command.wait_for_training()
        for actor in ("actor/0", "actor/1"):
            os.kill(command.pid(actor), signal.SIGKILL)
            restarting = f"{actor} was killed by SIGKILL: restarting"
            command.wait_for(lambda what=restarting: what in command.output, restarting)
        assert command.wait(200.0) == 0, command.output[-4000:]
    finally:
        command.end()
    acted = int(last_row(command.run_dir)["env_steps"])
    assert 60_000 <= acted < 60_000 + NUM_ENVS
    # A kill interrupts at most one step of a pool, which is taken but not counted.
    assert 0 <= total(counts) - SPEC - acted <= 2 * NUM_ENVS
    assert json.loads((command.run_dir / "result.json").read_text())["status"] == "finished"
    more, row = train(command.run_dir, counts, HEAVY, SHARED, "--max_env_steps=61000")
    assert 61_000 <= row["env_steps"] == acted + more < 61_000 + NUM_ENVS
