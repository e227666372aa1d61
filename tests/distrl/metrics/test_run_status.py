"""Times of nodes, progress to a goal, and the file with both."""

import json

import pytest

from distrl.goal import Goal
from distrl.metrics.monitor import Monitor
from distrl.metrics.node_times import NodeTimes, columns
from distrl.metrics.progress_line import FILE_NAME, is_progress_line
from distrl.metrics.reports import first_number
from distrl.metrics.run_status import RunStatus, progress
from distrl.shared_memory.process import boot_id

_S = 10**9  # ns in a second


def test_times_of_all_lives_of_a_node_add_up():
    times = NodeTimes()
    times.add("actor/0", 0, {"time": {"env_step": 10}})
    times.begin()
    times.add("actor/0", 0, {"time": {"env_step": 100}})  # mostly before
    times.add("actor/1", 0, {"time": {"env_step": 5, "other": 5}})
    mark = times.mark()
    times.add("actor/0", 0, {"time": {"env_step": 130}})
    times.add("actor/0", 1, {"time": {"inference": 10}})  # it was killed, and has restarted
    times.add("actor/0", 1, {"time": {"inference": 30, "env_step": 40}})
    times.add("actor/1", 0, {"time": {"env_step": 15, "other": 35}})
    assert times.nodes(mark) == {
        "actor/0": {"env_step": 0.7, "inference": 0.3},
        "actor/1": {"env_step": 0.25, "other": 0.75},
    }
    group = times.groups({})["actor"]  # not before `begin`
    assert group.size == 2 and group.shares["env_step"] == pytest.approx(0.475)
    assert group.seconds == pytest.approx((100 + 40) / 2 / 1e9)  # of 30 + 70 ns, and of 40 ns
    assert columns(times.groups(mark))["time_inference"] == pytest.approx(0.15)


def test_batches_are_fitted():
    times = NodeTimes()
    rows, seconds = [1, 2, 3], [0.3, 0.4, 0.5]  # 0.2 s, and 0.1 s a row
    sums = [
        3, sum(rows), sum(r * r for r in rows), sum(seconds),
        sum(r * s for r, s in zip(rows, seconds)),
    ]  # fmt: skip
    times.add("inferencer/0", 0, {"time": {"inference": 1}, "batches": [6, *sums]})
    group = times.groups({})["inferencer"]
    assert group.requests == 2 and group.growth == pytest.approx(0.5)  # 0.2 of 0.4 s


def test_progress_has_what_is_wanted_and_the_time_left():
    metrics = {"mean_return": 40.0, "env_steps": 300, "seconds_learning": 4.0}
    rates = {"env_steps": 10.0, "learner_steps": 0.0, "episodes": 0.0, "trained_steps": 0.0}
    goal = Goal(mean_return=50, max_env_steps=1000, max_learner_steps=7, max_seconds=60)
    assert progress(goal, metrics, rates) == [
        {"name": "mean_return", "value": 40.0, "wanted": 50},
        {"name": "max_env_steps", "value": 300, "wanted": 1000, "seconds_left": 70.0},
        {"name": "max_learner_steps", "value": 0, "wanted": 7, "seconds_left": None},
        {"name": "max_seconds", "value": 4.0, "wanted": 60, "seconds_left": 56.0},
    ]


def test_a_monitor_tells_how_its_run_is(tmp_path):
    goal, lines = Goal(mean_return=None, max_env_steps=100), []
    status = RunStatus(goal, tmp_path, lines.append)
    monitor = Monitor(goal, lambda *end: None, printer=lines.append, status=status)
    learner = {"learner_steps": 1, "trained_steps": 1, "loss": 0.0}
    monitor.report("learner/0", 0, [{**learner, "time": {"compute": 50 * _S}}])
    more = {**learner, "learner_steps": 2, "time": {"compute": 60 * _S, "sample_wait": 90 * _S}}
    monitor.report("learner/0", first_number(0) + 1, [more])
    for number, times in enumerate([10, 30], 1):
        acted = {"env_steps": 5, "episodes": [], "time": {"env_step": times * _S}}
        monitor.report("actor/0", number, [acted])
        served = {"time": {"idle": 9 * times, "inference": times}, "batches": [0] * 6}
        monitor.report("inferencer/0", number, [served])
        waited = {"time": {"serving": times, "idle": 3 * times}}
        monitor.report("replay/0", number, [waited])
    row = monitor.snapshot()
    assert row["env_steps"] == 10 and "time" not in row
    assert row["time_compute"] == 0.1 and row["time_sample_wait"] == 0.9
    assert row["time_inference"] == 0.1 and row["time_env_step"] == 1.0
    monitor.close()
    assert is_progress_line(lines[-2]) and lines[-1].startswith("bottleneck: environments (100 %")
    written = json.loads((tmp_path / FILE_NAME).read_text())
    assert written["nodes"]["learner/0"] == {"compute": 0.1, "sample_wait": 0.9}
    assert written["nodes"]["replay/0"] == {"serving": 0.25, "idle": 0.75}
    assert written["bottleneck"] == lines[-1]
    assert written["progress"][0]["value"] == 10
    assert written["boot"] == boot_id()
