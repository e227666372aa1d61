"""The statistics, the list and the pages of `benchmarks/learning.py`."""

import json
import sys

import numpy as np
import pytest

from distrl import goal
from tests.support.commands import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import learning
import learning_pages
import learning_tasks
from learning_stats import band, interval, iqm, on_grid


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert iqm([3.0]) == 3.0
    assert iqm([1.0, 2.0, 30.0]) == 11.0  # floor(3 / 4) = 0 left out
    assert iqm([30.0, 2.0, -50.0, 3.0]) == 2.5
    assert iqm([[1.0, 9.0, 2.0], [3.0, 4.0, -7.0]]) == 2.5  # tasks count together


def test_draws_stay_within_their_task():
    """One run a task: whatever is drawn is the same."""
    assert interval([[1.0], [2.0], [6.0], [100.0]]) == (4.0, 4.0)


def test_the_interval_holds_the_share_of_the_draws():
    """Two runs, 0 and 1: means are 0, 1/2 and 1 with the odds 1 : 2 : 1."""
    assert interval([[0.0, 1.0]]) == (0.0, 1.0)
    assert interval([[0.0, 1.0]], confidence=0.4) == (0.5, 0.5)


def test_curves_are_read_between_the_points_they_have():
    grid = [0, 10, 20, 30]
    np.testing.assert_equal(on_grid(grid, [10, 30], [1.0, 3.0]), [np.nan, 1.0, 2.0, 3.0])
    curves = [[np.nan, 1.0, 2.0], [np.nan, 3.0, np.nan], [5.0, 5.0, np.nan]]
    mean, low, high = band(curves)
    np.testing.assert_equal(mean, [np.nan, 3.0, np.nan])  # half of the runs have a value
    assert (low[1], high[1]) == (1.0, 5.0)


def test_runs_have_names_of_their_own():
    jobs = learning.jobs_of("", None, None)
    assert len({job.key for job in jobs}) == len({job.folder for job in jobs}) == len(jobs)
    assert len(jobs) == sum(task.seeds for task in learning_tasks.TASKS)


def test_runs_are_chosen_by_parts_of_their_names():
    jobs = learning.jobs_of("Hopper-v4/ppo", "light_env, reverb", [3, 5])
    assert [job.seed for job in jobs] == [3, 5]
    assert jobs[0].task.flags() == [
        "--env=Hopper-v4", "--agent=ppo", "--topology=light_env", "--max_env_steps=1000000",
        "--config.replay.backend=reverb",
    ]  # fmt: skip
    # A task that is there under three topologies, with three seeds and with five.
    jobs = learning.jobs_of("CartPole-v1/a2c", "single_process", None)
    assert [job.seed for job in jobs] == [0, 1, 2, 3, 4]


def note(**changes):
    made = learning.Note(
        "Pong-v5", "ppo", "", "single_process", 0, "--env=Pong-v5", 18.0, None, True, 1000, 2.0,
        18.5, None, [], None, {},
    )  # fmt: skip
    return made._replace(**changes)


def test_the_curve_of_a_run_is_of_its_last_start(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"code": None, "versions": {}}))
    (tmp_path / "result.json").write_text(json.dumps({"exit_code": 0, "reason": ""}))
    rows = ["seconds,env_steps,mean_return", "1.5,500,1", "3,900,2", "1,600,", "2,700,3", "4,800,4"]
    (tmp_path / "metrics.csv").write_text("\n".join([*rows, ""]))
    made = learning.note_of(learning.jobs_of("", None, None)[0], tmp_path, "")
    assert made.curve == [(2.0, 700, 3.0), (4.0, 800, 4.0)]
    assert (made.steps, made.seconds, made.score) == (800, 4.0, 4.0)


def test_a_row_has_the_command_of_most_of_its_runs():
    runs = [note(command=command, seed=k) for k, command in enumerate(("--x=1", "--y", "--y"))]
    assert learning_pages.command_of(runs) == "--y"


def test_only_seeds_share_a_row_of_goals():
    notes = [note(), note(variant="bfloat16"), note(goal=-15.0), note(seed=1), note(budget=9)]
    rows = learning_pages.goal_table(notes, by_topology=False)[2:]
    assert [row.split(" | ")[:4] for row in rows] == [
        ["| Pong-v5", "ppo", "18", "2 of 2"],
        ["| Pong-v5, bfloat16", "ppo", "18", "1 of 1"],
        ["| Pong-v5", "ppo", "-15", "1 of 1"],
        ["| Pong-v5", "ppo", "18", "1 of 1"],
    ]


@pytest.mark.parametrize(
    ("code", "reason", "ended"),
    [
        (0, "1,000 environment steps", True),
        (1, f"{goal.MISSED}: mean return 3.0 (goal 18) after 1,000 environment steps", True),
        (1, "learner/0: training has diverged", False),
        (130, "SIGINT", False),
    ],
)
def test_a_run_that_failed_has_no_result(tmp_path, code, reason, ended):
    runner = learning.Runner(tmp_path, episodes=0)
    assert not runner._ended(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"exit_code": code, "reason": reason}))
    assert runner._ended(tmp_path) == ended


@pytest.mark.parametrize("agent", sorted(learning_pages.TITLES))
def test_pages_are_those_of_the_notes(agent):
    """Where this fails, run `python benchmarks/learning.py --report`."""
    notes = list(learning.read_notes().values())
    text = (learning_pages.PAGES / f"{agent}.md").read_text("utf-8")
    assert learning_pages.page(notes, agent) == text
    goals = learning_pages.GOALS.read_text("utf-8")
    assert learning_pages.goals_page(goals, notes) == goals
