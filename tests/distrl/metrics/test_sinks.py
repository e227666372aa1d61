"""Where metrics go, and how many rows there are."""

import csv
import json
import math

import pytest

from distrl.config import MetricsConfig
from distrl.episodes import EpisodeOutcome
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.metrics import sinks
from distrl.metrics.csv_file import CsvFile, cut_lines
from distrl.metrics.monitor import Monitor
from distrl.metrics.sinks import check_sinks, make_writer

LEARNED = {"learner_steps": 1, "trained_steps": 10, "loss": 0.5}


CSV = MetricsConfig()


def make_monitor(folder, config=CSV, budget=None):
    goal = Goal(mean_return=None, max_env_steps=budget, window=2)
    writer = make_writer(config, folder, print, {"seed": 0}, goal.max_env_steps)
    return Monitor(goal, lambda *_: None, writer, 1e9, lambda line: None)


def act(monitor, calls, steps=100, first=0):
    """Reports `steps` steps a call, each with an episode whose return is the call's number."""
    for k in range(first, first + calls):
        episode = [float(k), steps, EpisodeOutcome.SUCCESS if k % 2 else EpisodeOutcome.TIME_OUT]
        monitor.report("actor/0", k, [{"env_steps": steps, "episodes": [episode]}])


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_follow_the_steps_however_fast_they_came(tmp_path):
    monitor = make_monitor(tmp_path, budget=30_000)
    monitor.report("learner/0", 0, [LEARNED])
    act(monitor, 300)
    monitor.close()
    rows = read(tmp_path / "metrics.csv")
    steps = [int(row["env_steps"]) for row in rows]
    assert steps == [*range(500, 30_001, 500), 30_000]  # and the one at the end
    assert (rows[0]["mean_return"], rows[0]["std_return"]) == ("3.5", "0.5")
    assert (rows[0]["min_return"], rows[0]["max_return"]) == ("3.0", "4.0")


def test_a_run_without_an_update_has_a_row(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.report("learner/0", 0, [{"learner_steps": 0, "trained_steps": 0}])
    monitor.close()
    assert read(tmp_path / "metrics.csv") == []  # nothing has happened
    monitor = make_monitor(tmp_path)
    act(monitor, 7)
    monitor.close()
    (row,) = read(tmp_path / "metrics.csv")
    assert (row["env_steps"], row["episodes"], row["learner_steps"]) == ("700", "7", "0")
    assert (row["mean_return"], "loss" in row) == ("5.5", False)

    state = monitor.state()
    monitor = make_monitor(tmp_path)  # it is resumed, and learns
    monitor.restore(state)
    monitor.report("learner/0", 1, [LEARNED])
    act(monitor, 7, first=7)
    monitor.close()
    rows = [(row["env_steps"], row["loss"]) for row in read(tmp_path / "metrics.csv")]
    assert rows == [("700", ""), ("1200", "0.5"), ("1400", "0.5")]


def test_an_agent_without_a_loss_has_rows(tmp_path):
    config = MetricsConfig(json_lines=True)
    monitor = make_monitor(tmp_path, config)
    monitor.report("learner/0", 0, [{"learner_steps": 1, "trained_steps": 10, "policy_loss": 0.5}])
    act(monitor, 7)
    monitor.close()
    rows = [(row["env_steps"], row["policy_loss"]) for row in read(tmp_path / "metrics.csv")]
    assert rows == [("500", "0.5"), ("700", "0.5")]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_column_that_comes_with_a_resume_is_added(tmp_path):
    state = None
    for k, more in enumerate([{}, {"rho": 1.0}]):
        monitor = make_monitor(tmp_path)
        if state is not None:
            monitor.restore(state)
        monitor.report("learner/0", k, [{**LEARNED, **more}])
        act(monitor, 5, first=5 * k)
        monitor.close()
        state = monitor.state()
    rows = [(row["env_steps"], row["rho"]) for row in read(tmp_path / "metrics.csv")]
    assert rows == [("500", ""), ("500", ""), ("1000", "1.0"), ("1000", "1.0")]


def test_an_old_file_keeps_the_meaning_of_its_columns(tmp_path):
    (tmp_path / "metrics.csv").write_text("env_steps,env_steps_acted\n10,100\n")
    monitor = make_monitor(tmp_path)
    monitor.report("learner/0", 0, [LEARNED])
    act(monitor, 10)
    monitor.close()
    rows = read(tmp_path / "metrics.csv")
    assert [(row["env_steps"], row["env_steps_acted"]) for row in rows] == [
        ("10", "100"), ("10", "500"), ("10", "1000"), ("10", "1000"),
    ]  # fmt: skip
    assert "trained_steps" not in rows[0] and rows[-1]["loss"] == "0.5"


def test_a_large_budget_has_as_many_rows(tmp_path):
    monitor = make_monitor(tmp_path, budget=10**7)
    monitor.report("learner/0", 0, [LEARNED])
    act(monitor, 100, steps=10**5)
    monitor.close()
    assert len(read(tmp_path / "metrics.csv")) == 101


def test_every_episode_has_a_row_also_over_two_programs(tmp_path):
    state = None
    for program in range(2):
        monitor = make_monitor(tmp_path)
        if state is not None:
            monitor.restore(state)
        act(monitor, 7, first=7 * program)
        monitor.close()
        state = monitor.state()
    rows = read(tmp_path / "episodes.csv")
    assert [float(row["return"]) for row in rows] == [*range(14)]
    assert {row["node"] for row in rows} == {"actor/0"}
    assert [row["outcome"] for row in rows[:2]] == ["time_out", "success"]
    assert list(rows[0]) == ["seconds", "env_steps", "node", "return", "length", "outcome"]
    monitor = make_monitor(tmp_path / "none", MetricsConfig(episodes=False))
    act(monitor, 3)


def test_a_run_that_lost_steps_goes_on_in_the_same_curves(tmp_path):
    config = MetricsConfig(json_lines=True)
    state = None
    for _ in range(3):
        monitor = make_monitor(tmp_path, config, budget=20_000)
        if state is not None:
            monitor.restore(state)
        first = monitor.acted // 100
        monitor.report("learner/0", 0, [LEARNED])
        act(monitor, 20, first=first)
        state = monitor.state()
        act(monitor, 13, first=first + 20)  # is killed before the next checkpoint
        # As if killed: nothing is closed.
    seconds = [read(tmp_path / name) for name in ("metrics.csv", "episodes.csv")]
    seconds.append([json.loads(line) for line in (tmp_path / "metrics.jsonl").open()])
    for rows in seconds:
        steps = [int(row["env_steps"]) for row in rows]
        assert steps == sorted(steps) and 6800 < steps[-1] <= 7300
    returns = [float(row["return"]) for row in seconds[1]]
    assert returns == [*range(len(returns))]


def test_a_line_that_a_kill_has_cut_off_goes_with_what_is_beyond(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 1}\n{"env_steps": 2}\n{"env_steps": 3}\n{"env_st')
    cut_lines(path, lambda line: json.loads(line)["env_steps"] > 2)
    assert path.read_text() == '{"env_steps": 1}\n{"env_steps": 2}\n'
    cut_lines(path, lambda line: True, keep=1)
    assert path.read_text() == '{"env_steps": 1}\n'


def test_json_lines_go_on_in_a_new_line_where_nothing_is_resumed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 900}\n{"env_st')
    monitor = make_monitor(tmp_path, MetricsConfig(json_lines=True))
    monitor.report("learner/0", 0, [LEARNED])
    act(monitor, 5)
    monitor.close()
    rows = [json.loads(line) for line in path.open()]
    assert [row["env_steps"] for row in rows][:2] == [900, 500]


def test_a_file_of_rows_has_a_limit(tmp_path):
    lines = []
    file = CsvFile(tmp_path / "rows.csv", lines.append, max_bytes=100)
    for k in range(100):
        file.extend(["k"], f"{k}\r\n{k}\r\n")
    file.close()
    assert 100 <= (tmp_path / "rows.csv").stat().st_size < 120
    assert len(lines) == 1 and lines[0].endswith("no further rows")


@pytest.mark.parametrize("components", [0, 2])
def test_many_episodes_are_written_in_their_order(tmp_path, components):
    monitor = make_monitor(tmp_path)
    outcomes = [
        EpisodeOutcome.END,
        EpisodeOutcome.TIME_OUT,
        EpisodeOutcome.FAILURE,
        EpisodeOutcome.SUCCESS,
    ]
    episodes = [
        [k / 3, k, float(outcomes[k % 4]), *[k / 7] * components] for k in range(10_000)
    ]  # a pool's outcomes are its discounts, and floats
    monitor.report("actor/0", 0, [{"env_steps": 60, "episodes": episodes[:6000]}])
    monitor.report("actor/1", 0, [{"env_steps": 40, "episodes": episodes[6000:]}])
    monitor.close()
    rows = read(tmp_path / "episodes.csv")
    names = ["end", "time_out", "failure", "success"]
    parts = [f"return_{i}" for i in range(components)]
    assert list(rows[0]) == ["seconds", "env_steps", "node", "return", "length", "outcome", *parts]
    for k, row in enumerate(rows):
        assert (row["env_steps"], row["node"]) == (
            ("60", "actor/0") if k < 6000 else ("100", "actor/1")
        )
        assert (float(row["return"]), row["length"], row["outcome"]) == (
            k / 3,
            str(k),
            names[k % 4],
        )
        assert all(float(row[part]) == k / 7 for part in parts)
    assert len(rows) == 10_000
    # A file of another program may have other columns.
    (tmp_path / "episodes.csv").write_text("node,more,return\nactor/7,1,2.0\n")
    monitor = make_monitor(tmp_path)
    monitor.report("actor/0", 0, [{"env_steps": 60, "episodes": episodes[:2]}])
    monitor.close()
    rows = read(tmp_path / "episodes.csv")
    assert [row["node"] for row in rows] == ["actor/7", "actor/0", "actor/0"]
    assert [float(row["return"]) for row in rows] == [2.0, 0.0, 1 / 3]
    assert [row["outcome"] for row in rows] == ["", "end", "time_out"]


def test_a_full_file_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "_EPISODES_BYTES", 100)
    monitor = make_monitor(tmp_path)
    act(monitor, 10)
    size = (tmp_path / "episodes.csv").stat().st_size
    assert size >= 100

    no_outcome = 99  # which has no name: no row is made
    episodes = [[1.0, 1, no_outcome]]
    monitor.report("actor/0", 10, [{"env_steps": 10, "episodes": episodes}])
    monitor.close()
    assert monitor.episodes == 11 and (tmp_path / "episodes.csv").stat().st_size == size


def test_json_lines_have_no_number_that_is_none(tmp_path):
    monitor = make_monitor(tmp_path, MetricsConfig(json_lines=True))
    monitor.report("learner/0", 0, [{**LEARNED, "loss": math.nan}])
    act(monitor, 5)
    monitor.close()
    first, *_ = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert first["loss"] is None
    assert (first["env_steps"], first["mean_return"]) == (500, 3.5)


def test_tensorboard_reads_the_event_files_of_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = MetricsConfig(tensorboard=True)
    monitor = make_monitor(tmp_path, config)
    monitor.report("learner/0", 0, [LEARNED])
    act(monitor, 7)
    checkpoint = {**monitor.state(), "seen": {}}
    act(monitor, 3, first=7)
    monitor.close()
    monitor = make_monitor(tmp_path, config)
    monitor.restore(checkpoint)
    monitor.report("learner/0", 0, [LEARNED])
    act(monitor, 10, first=100)
    monitor.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = [(each.step, each.value) for each in events.Scalars("mean_return")]
    assert points[0] == (500, 3.5)
    # What the first program wrote beyond its checkpoint is taken back.
    assert [step for step, _ in points] == [500, 1200, 1700, 1700]
    assert {"loss", "learner_steps", "std_return"} <= set(events.Tags()["scalars"])


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^metrics.wandb needs wandb: pip install wandb$"):
        check_sinks(MetricsConfig(wandb=True))
    check_sinks(MetricsConfig())
