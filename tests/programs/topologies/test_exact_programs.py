"""Whole programs whose agent and environment check every step: versions, boundaries, state.

The action is the version of the parameters, the environment counts its steps and echoes its
actions, the recurrent state counts the steps since the reset; the learner compares.
"""

import csv
import re
import sys

import pytest

from distrl.seeds import environment_seeds
from tests.support.commands import EXPERIMENTS, finish, skip_without_reverb
from tests.support.selection import full, full_with_launchpad, slow

STEPS = 100_000


def train(tmp_path, name, *flags, steps=STEPS, life=0, limit=110.0, seeds_of=range(2)):
    """Trains, checks the line about each actor's seeds, and returns the last row of metrics.

    Once more it goes on where it was, in the next life. Fails after `limit` seconds.
    """
    command = [
        sys.executable, "-m", "distrl", "train",
        f"--experiment={EXPERIMENTS / 'checking.py'}:{name}",
        f"--run_dir={tmp_path / 'run'}", f"--max_trained_steps={steps}", *flags,
    ]  # fmt: skip
    done = finish(command, limit)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    check_seeds(done.stdout.splitlines(), life, seeds_of)
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    return {key: float(value) for key, value in rows[-1].items() if value}


def check(row, steps=STEPS):
    wrong = {key: value for key, value in row.items() if key.startswith("wrong_") and value}
    assert not wrong
    assert steps <= row["checked"] < steps + 16 * 9  # a batch
    assert row["trained_steps"] == row["checked"]


def check_ages(row, bound, name):
    """No consumed step was older; of a table with sampling, most unrolls become so."""
    assert row["largest_lag"] <= bound
    assert row["unrolls_too_old"] > 0 or name not in ("uniform", "overlapping")


def check_seeds(lines, life=0, actors=range(2)):
    """Both actors' lines, in any topology, name the same seeds."""
    for index in actors:
        own = environment_seeds(0, "actor", index, 8, life)
        (line,) = [one for one in lines if f"actor/{index}: 8 environments" in one]
        assert re.search(rf"in a \w+Pool, seeds {own[0]} to {own[-1]}, life {life}$", line), line


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        full("experiment", "single_process"),
        full("experiment", "heavy_env"),
        full("long_updates", "heavy_env"),
    ],
)
def test_what_goes_on_is_exact(tmp_path, name, topology):
    """Every step is counted once, over two lives, and no sequence mixes them."""
    for life in range(2):
        steps = (1 + life) * STEPS // 4
        row = train(tmp_path, name, f"--topology={topology}", steps=steps, life=life)
        check(row, steps)


@pytest.mark.parametrize(
    "name",
    [
        "experiment",
        full("synchronous"),
        slow("late"),
        slow("late_synchronous"),
        slow("overlapping"),
    ],
)
def test_single_process(tmp_path, name):
    check(train(tmp_path, name, "--topology=single_process"))


HEAVY, LIGHT = "--topology=heavy_env", "--topology=light_env"
MP, MT, TEST_MT = (f"--lp_launch_type={name}" for name in ("local_mp", "local_mt", "test_mt"))
SHARED, SERVED, REVERB = (
    f"--config.replay.backend={name}" for name in ("shared_memory", "served", "reverb")
)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("experiment", (HEAVY, MP, REVERB)),
        full("sharded", (HEAVY, MP, REVERB)),
        full("late", (LIGHT, MP, SHARED)),
        full("synchronous", (LIGHT, MT, SHARED)),
        full_with_launchpad("experiment", (HEAVY, MP, SHARED)),
        full("sharded", (HEAVY, MP, SERVED)),
        full("long_updates", (HEAVY, MP, SHARED)),
        full("long_updates", (LIGHT, MP, REVERB)),
        full("long_uniform", (HEAVY, MP, SERVED)),
    ],
)
def test_programs(tmp_path, name, flags):
    skip_without_reverb(*flags)
    check(train(tmp_path, name, *flags, steps=20_000), 20_000)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        full("uniform", ("--topology=single_process",)),
        full("experiment", ("--topology=single_process",)),
        full("overlapping", (HEAVY, MP, SHARED)),
        full("uniform", (LIGHT, MP, REVERB)),
    ],
)
def test_a_bound_on_age(tmp_path, name, flags):
    skip_without_reverb(*flags)
    row = train(tmp_path, name, *flags, "--config.learner.max_policy_lag=1", steps=10_000)
    check(row, 10_000)
    check_ages(row, 1, name)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        full("rounds", (HEAVY, MP, SHARED, "--config.actors.round_grace=0.05")),
        full("stateless_rounds", (LIGHT, MP, REVERB, "--config.actors.late_data=drop")),
    ],
)
def test_rounds_with_a_straggler(tmp_path, name, flags):
    skip_without_reverb(*flags)
    row = train(tmp_path, name, *flags, steps=4_000, seeds_of=())
    assert not [key for key, value in row.items() if key.startswith("wrong_") and value]
    assert row["rounds"] > 1
    late = row["unrolls_late_kept"], row["unrolls_late_dropped"]
    assert late.index(0) == (name == "rounds")
    # A round's unrolls are learned from before the next one begins: at most three updates. Only
    # unrolls that were kept are of an earlier round; of which, depends on how late they were.
    if name == "stateless_rounds":
        assert row["policy_lag_max"] <= 3


@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["experiment", "uniform", "overlapping"])
@pytest.mark.parametrize(
    "flags",
    [
        ("--topology=single_process",),
        (HEAVY, MP, SHARED),
        (HEAVY, MP, REVERB),
        (LIGHT, MP, SHARED),
        (LIGHT, MP, REVERB),
        (HEAVY, MP, SERVED),
        ("--topology=multi_machine", "--hosts=a:address=localhost,b:address=localhost"),
    ],
)
def test_a_bound_on_age_over_many_steps(tmp_path, name, flags):
    skip_without_reverb(*flags)
    row = train(tmp_path, name, *flags, "--config.learner.max_policy_lag=2", limit=380.0)
    check(row)
    check_ages(row, 2, name)


@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("experiment", (HEAVY, MP, REVERB)),
        ("experiment", (HEAVY, MP, SHARED)),
        ("experiment", (LIGHT, MP, REVERB)),
        ("experiment", (LIGHT, MP, SHARED, "--config.inference.num_inferencers=2")),
        ("experiment", (LIGHT, MP, SHARED)),
        ("experiment", (HEAVY, MP, SERVED)),
        ("experiment", (LIGHT, MT, SERVED)),
        ("late", (HEAVY, MP, SHARED)),
        ("late_synchronous", (LIGHT, MP, REVERB)),
        ("synchronous", (LIGHT, MT, REVERB)),
        ("synchronous", (LIGHT, MT, SHARED)),
        ("synchronous", (HEAVY, MP, REVERB)),
        ("experiment", (HEAVY, TEST_MT, REVERB)),
        ("experiment", (HEAVY, TEST_MT, SHARED)),
        ("sharded", (HEAVY, TEST_MT, REVERB)),
        ("sharded", (LIGHT, MP, REVERB, "--config.replay.table=uniform")),
        ("sharded", (LIGHT, MP, SERVED, "--config.replay.table=uniform")),
        ("overlapping", (HEAVY, MP, SERVED)),
        ("uniform", (LIGHT, MP, REVERB)),
        ("uniform", (LIGHT, MP, SHARED)),
        ("overlapping", (HEAVY, MP, REVERB)),
        ("overlapping", (LIGHT, MP, SHARED)),
    ],
)
def test_many_steps_of_programs(tmp_path, name, flags):
    skip_without_reverb(*flags)
    check(train(tmp_path, name, *flags, limit=380.0))
