"""Counts, returns and the monitor."""

import csv
import itertools
import json

import numpy as np
import pytest

from distrl.config import MetricsConfig
from distrl.envs import PythonEnvironment
from distrl.episodes import EpisodeOutcome, EpisodeStatistics
from distrl.errors import SpecError
from distrl.goal import Goal
from distrl.learning.policy_lag import PolicyLags
from distrl.metrics.monitor import Monitor
from distrl.metrics.reports import SPENT, first_number
from distrl.metrics.sinks import make_writer
from distrl.testing import CountingEnvironment
from distrl.types import Trajectory


@pytest.mark.parametrize("wait_num", [5, 2])
def test_statistics_equal_the_environments_own(wait_num):
    """Episodes of 3, 4, 5, 6, 7 steps with rewards 1, 2, 3, ...; resets are not counted."""
    pool = PythonEnvironment(CountingEnvironment).make_pool(5, wait_num, seeds=range(64))
    statistics = EpisodeStatistics(5)
    pool.start()
    transitions = 0
    for _ in range(300):
        step = pool.recv()
        transitions += int((step.step_type != 0).sum())
        statistics.add(step, step.env_id if pool.is_async else None)
        pool.send(np.zeros(wait_num, np.int32), step.env_id)
    report = statistics.take()
    assert report["env_steps"] == transitions
    assert len(report["episodes"]) > 50
    for episode_return, length, outcome in report["episodes"]:
        assert length in (3, 4, 5, 6, 7)
        assert episode_return == length * (length + 1) / 2
        assert outcome == (EpisodeOutcome.TIME_OUT if length % 2 else EpisodeOutcome.END)
    assert statistics.take() == {"env_steps": 0, "episodes": [], "env_restarts": 0}


def learner(steps, **more):
    return {"learner_steps": steps // 10, "trained_steps": steps, "loss": 0.5, **more}


def lags(*consumed):
    """What a learner reports that has consumed steps of these policy lags."""
    noted = PolicyLags()
    version = np.append(-np.array(consumed, np.int32), 0)[:, None]  # the last one is not consumed
    trajectory = Trajectory(*[None] * len(Trajectory._fields))._replace(version=version)
    noted.add(0, trajectory, np.ones((len(consumed), 1), bool))
    return noted.take()


def monitor(goal, tmp_path=None, **kwargs):
    ends = []
    writer = make_writer(MetricsConfig(), tmp_path, print, {}, goal.max_env_steps)
    made = Monitor(goal, lambda *end: ends.append(end), writer, printer=lambda line: None, **kwargs)
    return made, ends


def test_goal_is_the_mean_of_a_full_window():
    made, ends = monitor(Goal(mean_return=10.0, window=4))
    episodes = {"env_steps": 5, "episodes": [[20.0, 5, EpisodeOutcome.END]]}
    made.report("actor/0", 0, [episodes])
    assert not ends  # the window is not full
    made.report("actor/0", 1, [episodes, episodes])
    made.report("actor/1", 0, [{"env_steps": 5, "episodes": [[0.0, 5, EpisodeOutcome.END]]}])
    assert len(ends) == 1 and ends[0][1] is True and "15.0" in ends[0][0]


def test_a_repeated_report_is_counted_once():
    made, _ = monitor(Goal(mean_return=None))
    for _ in range(3):
        made.report("actor/0", 0, [{"env_steps": 5, "episodes": []}])
    made.report("actor/0", 1, [{"env_steps": 5, "episodes": []}])
    assert made.snapshot()["env_steps"] == 10


def test_counts_never_fall_when_a_life_begins():
    made, ends = monitor(Goal(mean_return=None, max_env_steps=20))
    made.report("actor/0", first_number(3), [{"env_steps": 10, "episodes": []}])
    assert made.close_books("actor/0", 3, 0) == 10
    assert made.close_books("actor/0", 3, 12) == 12
    made.report("actor/0", first_number(3) + 1, [{"env_steps": 2, "episodes": []}])  # late
    row = made.snapshot()
    assert (row["env_steps"], row["env_steps_unreported"]) == (12, 2)
    assert made.state()["env_steps_acted"] == 12
    made.report("actor/0", first_number(4), [{"env_steps": 5, "episodes": []}])
    assert made.close_books("actor/0", 3, 12) == made.acted == 17  # the call arrives once more
    assert not ends


def test_what_was_never_reported_counts_when_the_books_are_closed():
    lines = []
    made = Monitor(Goal(mean_return=None), lambda *_: None, printer=lines.append)
    made.close_books("actor/0", 2, 0)
    made.report("actor/0", first_number(3), [{"env_steps": 100, "episodes": [[1.0, 1, 0]]}])
    made.close_books("actor/1", 0, 0)  # it never acted
    for _ in range(2):
        made.close_books("actor/0", 3, 250)
        assert made.state()["env_steps_acted"] == made.acted_by("actor/0") == 250
    made.report("actor/0", first_number(3) + 1, [{"env_steps": 150, "episodes": []}])  # late
    assert made.close_books("actor/0", 3, 250) == 250
    made.report("actor/0", first_number(4), [{"env_steps": 5, "episodes": []}])
    row = made.snapshot()
    assert (row["env_steps"], row["env_steps_unreported"], row["episodes"]) == (255, 150, 1)
    made.close_books("actor/0", 4, 254)  # the count of steps is one behind a report
    assert made.acted == 255
    made.close()
    assert "env steps        255 " in lines[-1] and "  unreported steps 150" in lines[-1]


def test_budget_without_a_goal_is_success_and_with_one_is_not():
    made, ends = monitor(Goal(mean_return=None, max_trained_steps=100))
    made.report("learner/0", 0, [learner(90)])
    assert not ends
    made.report("learner/0", 1, [learner(100)])
    assert ends == [("100 transitions trained on", True)]
    made, ends = monitor(Goal(mean_return=5.0, max_trained_steps=100))
    made.report("learner/0", 0, [learner(100)])
    assert ends[0][1] is False and "not reached" in ends[0][0]


def test_a_budget_of_acting_is_spent_when_the_learner_has_used_what_was_made():
    made, ends = monitor(Goal(mean_return=None, max_env_steps=100))
    made.report("actor/0", 0, [{"env_steps": 103, "episodes": []}])
    made.report("learner/0", 0, [learner(800)])
    assert not ends
    made.report("learner/0", 1, [{**learner(900), SPENT: (100, None)}])
    assert ends == [("103 environment steps", True)]
    # What was spent is part of the state: the same budget ends the run again, a larger one not.
    state = json.loads(json.dumps(made.state()))
    for budget, ended in ((100, True), (200, False)):
        again, ends = monitor(Goal(mean_return=None, max_env_steps=budget))
        again.restore(state)
        again.judge()
        assert bool(ends) is ended


def test_a_file_in_which_env_steps_were_trained_on_keeps_that_meaning(tmp_path):
    (tmp_path / "metrics.csv").write_text("env_steps,env_steps_acted\n80,90\n")
    made, _ = monitor(Goal(mean_return=None), tmp_path, interval=0.0)
    made.restore({**made.state(), "env_steps_acted": 90})
    made.report("actor/0", 0, [{"env_steps": 40, "episodes": []}])
    made.report("learner/0", 0, [learner(100)])
    made.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    steps = [(row["env_steps"], row["env_steps_acted"]) for row in rows]
    assert steps == [("80", "90"), *[("100", "130")] * 2]
    assert "trained_steps" not in rows[0]


def test_metrics_file(tmp_path):
    made, _ = monitor(Goal(mean_return=None), tmp_path, interval=0.0)
    made.report("learner/0", 0, [learner(100, **lags(1, 2))])
    made.report("learner/0", 1, [learner(200, **lags(0, 2))])
    made.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [row["trained_steps"] for row in rows] == ["100", "200", "200"]
    assert [row["env_steps"] for row in rows] == ["0", "0", "0"]
    # Without an update since the row before, its lags are those of that row.
    assert [row["policy_lag_mean"] for row in rows] == ["1.5", "1.0", "1.0"]
    assert [row["policy_lag_min"] for row in rows] == ["1.0", "0.0", "0.0"]


def test_a_row_has_the_lags_of_all_reports_since_the_row_before(tmp_path):
    """There are many of them: a learner reports ten times a second, and a row is written in two."""
    made, _ = monitor(Goal(mean_return=None, max_env_steps=1_000_000), tmp_path, interval=1e9)
    seen = [[0, 7, 1], [2], [1, 1, 400], [0], [5, 5]]
    numbers = itertools.count()

    def row_due():
        made.report("actor/0", next(numbers), [{"env_steps": 5_000, "episodes": []}])

    for consumed in seen[:3]:
        made.report("learner/0", next(numbers), [learner(100, **lags(*consumed))])
    row_due()
    made.report("learner/0", next(numbers), [learner(200)])  # of an update whose data has no lag
    for number, consumed in enumerate(seen[3:]):
        for _ in range(2):  # the second time, it is dropped
            made.report("learner/0", first_number(1) + number, [learner(200, **lags(*consumed))])
    row_due()
    made.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    wanted = [np.concatenate(seen[:3]), np.concatenate(seen[3:])]
    assert len(rows) == 3
    for row, all_lags in zip(rows, [*wanted, wanted[-1]]):
        figures = {name: float(v) for name, v in row.items() if name.startswith("policy_lag")}
        quantiles = dict(zip(("p5", "p25", "p50", "p75", "p95"), (5, 25, 50, 75, 95)))
        assert figures == pytest.approx({
            "policy_lag_mean": all_lags.mean(),
            "policy_lag_min": all_lags.min(),
            **{f"policy_lag_{name}": np.percentile(all_lags, q) for name, q in quantiles.items()},
            "policy_lag_max": all_lags.max(),
        })  # fmt: skip


def test_a_monitor_continues_from_the_state_of_another():
    old, _ = monitor(Goal(mean_return=10.0, window=4))
    old.report("actor/0", 0, [{"env_steps": 9, "episodes": [[4.0, 9, 0]], "env_restarts": 1}])
    old.report("learner/0", 0, [{"learner_steps": 3, "trained_steps": 8, "loss": 1.0}])
    old.close_books("actor/0", 0, 12)
    state = json.loads(json.dumps(old.state()))
    new, ends = monitor(Goal(mean_return=4.0, window=4))
    new.restore(state)
    before, after = old.snapshot(), new.snapshot()
    assert after.pop("seconds") >= 0.0 and before.pop("seconds") >= 0.0
    assert after == before
    for _ in range(2):  # a repeated report counts once
        new.report("actor/0", first_number(1), [{"env_steps": 5, "episodes": [[4.0, 1, 0]] * 3}])
    row = new.snapshot()
    assert (row["env_steps"], row["env_steps_unreported"], row["env_restarts"]) == (17, 3, 1)
    assert len(ends) == 1


def test_older_states_call_trained_steps_env_steps():
    old, _ = monitor(Goal(mean_return=10.0))
    old.report("actor/0", 0, [{"env_steps": 9, "episodes": []}])
    old.report("learner/0", 0, [learner(80)])
    state = old.state()
    state["learner"]["env_steps"] = state["learner"].pop("trained_steps")
    # Checkpoints have both once the learner's count was put in: `monitor_states`.
    for totals in (state["learner"], {**state["learner"], "env_steps": 70, "trained_steps": 80}):
        new, _ = monitor(Goal(mean_return=10.0))
        new.restore({**state, "learner": totals})
        row = new.snapshot()
        assert (row["env_steps"], row["trained_steps"]) == (9, 80)


def test_a_node_may_have_had_more_lives_in_the_program_before():
    """With one learner's node for two tasks, both report by its life; with two, each by its own."""
    old, _ = monitor(Goal(mean_return=None))
    old.report("learner/1", first_number(5), [learner(100)])
    state = json.loads(json.dumps(old.state()))
    for saved in (state, {**state, "seen": {"learner/1": first_number(5)}}):  # as it was formerly
        new, _ = monitor(Goal(mean_return=None))
        new.restore(saved)
        new.report("learner/1", first_number(2), [learner(200)])
        assert new.snapshot()["trained_steps"] == 200


@pytest.mark.parametrize(("budget", "ended"), [(90, True), (100, True), (104, True), (105, False)])
def test_a_run_has_ended_if_it_has_more_than_the_budget_of_now(budget, ended):
    made, _ = monitor(Goal(max_env_steps=100))
    made.report("actor/0", 0, [{"env_steps": 104, "episodes": []}])
    made.report("learner/0", 0, [learner(100, **{SPENT: (100, None)})])
    again, ends = monitor(Goal(max_env_steps=budget))
    again.restore(made.state())
    again.judge()
    assert [reached for _, reached in ends] == [True] * ended
    # A larger one is spent as soon as the learner says so, not when it is acted.
    again.report("actor/0", 1, [{"env_steps": 100, "episodes": []}])
    assert len(ends) == ended


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"probe_value": 3, "time": {"other": 1}}, "probe_value: no known report"),
        ({}, None),
        ({"time": {"other": 1}, "batches": [1, 1, 1, 1, 1.0, 1.0]}, None),
        ({"evaluation_return": 99.0}, "'evaluation_return', as only evaluator nodes may"),
        ({"env_steps": 99, "episodes": []}, "'env_steps', as only actor nodes may"),
        ({"learner_steps": 99, "trained_steps": 99}, "'learner_steps', as only learner nodes may"),
        ({"metrics": {"size": "3"}}, "the metric 'size' must be a number or None, got '3'"),
    ],
)
def test_reports_of_no_known_kind_and_those_of_other_nodes_are_refused(report, told):
    made, ends = monitor(Goal(mean_return=None, evaluation_return=90.0, max_learner_steps=90))
    made.report("evaluator/0", 0, [{"evaluation_return": 1.0, "evaluation_episodes": 1}])
    if told is None:
        made.report("probe/0", 0, [report])
    else:
        with pytest.raises(SpecError, match=f"^probe/0.*{told}"):
            made.report("probe/0", 0, [{"metrics": {"size": 1}}, report])
    state = made.snapshot()
    assert (state["env_steps"], state["learner_steps"], state["evaluation_return"]) == (0, 0, 1.0)
    assert "probe/0/size" not in state and not ends


def test_evaluations_are_counted_over_the_programs_of_a_run():
    goal = Goal(mean_return=None)
    made, _ = monitor(goal)
    assert made.snapshot()["evaluations"] is None
    for number in range(2):  # equal scores, which nothing else tells apart
        made.report("evaluator/0", number, [{"evaluation_return": 5.0}])
    assert made.snapshot()["evaluations"] == 2
    again, _ = monitor(goal)
    again.restore(json.loads(json.dumps(made.state())))
    assert again.snapshot()["evaluations"] == 2 and again.evaluations.count == 0
    again.report("evaluator/0", 0, [{"evaluation_return": 5.0}])
    assert again.snapshot()["evaluations"] == 3 and again.evaluations.count == 1


def test_a_node_has_columns_of_its_own(tmp_path):
    made, _ = monitor(Goal(mean_return=None), tmp_path)
    made.report("probe/0", 0, [{"metrics": {"size": np.int64(3), "loss": 7.0}}])
    made.report("learner/0", 0, [learner(10, metrics={"size": 4})])
    made.report("probe/1", 0, [{"metrics": {"size": None}, "time": {"other": 1}}])
    made.report("probe/0", 1, [{"metrics": {"size": 5}}])
    made.close()
    (row, *_) = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    assert row["probe/0/size"] == "5.0" and row["probe/0/loss"] == "7.0"
    assert row["learner/0/size"] == "4.0" and row["probe/1/size"] == ""
    assert row["loss"] == "0.5" and "metrics" not in row
