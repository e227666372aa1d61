"""`distrl sweep`, with trials that are small processes of another kind."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from absl.testing import flagsaver

from distrl.errors import ConfigError
from distrl.launch.python import training_client
from distrl.launch.runs.run import Run
from distrl.launch.supervision.result import which_result
from distrl.launch.sweep import fit, ranking, sweep
from distrl.launch.sweep import folder as folder_module
from distrl.launch.sweep.fit import TrialSlots
from distrl.launch.sweep.folder import SweepFolder, make_trials
from distrl.launch.sweep.trials import Runner, ending, start_training
from distrl.runtime.files import write_json
from tests.support.commands import ROOT
from tests.support.waiting import until

LR = "config.agent.learning_rate"
BASE = ("--env=CartPole-v1", "--agent=ppo", "--topology=single_process", "--max_env_steps=1000")

# A trial that writes what `distrl train` writes: its return is 100 x, and the seed.
TRIAL = """
import json, pathlib, signal, sys, time
run, x, seed = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run.mkdir(parents=True, exist_ok=True)
(run / "lives").open("a").write("1")
(run / "config.json").write_text("{}")
code, status, reason = 0, "finished", "1,000 environment steps"
if x == "wait" and (run / "lives").read_text() == "1":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    (run / "waits").touch()
    signal.sigwait([signal.SIGINT])
    code, status, reason = 130, "stopped", "SIGINT"
elif x == "bad":
    code, status, reason = 1, "failed", "ValueError: x"
elif x == "missed":
    code, status, reason = 1, "failed", "the goal was not reached: mean return 3 (goal 9)"
elif x == "silent":
    sys.exit("no such thing")
value = 100 * float(x) + seed if x[0].isdigit() else 1.0
(run / "metrics.csv").write_text(f"seconds,env_steps,mean_return\\n2,1000,{value}\\n")
result = {"status": status, "reason": reason, "exit_code": code}
(run / "result.json").write_text(json.dumps(result))
sys.exit(code)
"""


def make_folder(path, values, seeds=(0,)):
    trials = make_trials([{"x": value} for value in values], seeds)
    return SweepFolder(path, {"jobs": "1", "by": "mean_return"}, [], trials)


def run(folder, jobs="1"):
    lines = []

    def start(trial, environment):
        log = folder.log(trial)
        log.parent.mkdir(exist_ok=True)
        words = [str(folder.run_dir(trial)), trial.settings["x"], str(trial.seed)]
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-S", "-c", TRIAL, *words],
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    runner = Runner(folder, TrialSlots(jobs, 1, 0), start, lines.append)
    runner.run()
    return runner, lines


@pytest.fixture
def opened(monkeypatch):
    """A function that opens a sweep's folder, without the lock that a process keeps."""
    monkeypatch.setattr(folder_module, "lock", lambda path: None)

    def open_(folder):
        folder.open()
        return folder

    return open_


def test_trials_that_fail_are_told_and_the_others_run(tmp_path, opened, capsys):
    folder = opened(make_folder(tmp_path / "sweep", ["3", "bad", "silent", "missed", "4"], (0, 2)))
    runner, lines = run(folder, "3")
    assert runner.stopped_by is None
    assert {trial.name: trial.status for trial in folder.trials} == {
        f"{index:03d}-seed-{seed}": status
        for seed in (0, 2)
        for index, status in enumerate(["finished", "failed", "failed", "missed", "finished"])
    }
    text = "\n".join(lines)
    assert "001-seed-0 failed after" in text and "ValueError: x; its output: " in text
    assert folder.trials[2].reason == "no such thing"
    sweep._print(SweepFolder.read(folder.path), "mean_return")
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["x", "mean_return", "seeds", "env_steps", "seconds"]
    assert table[1] == ["1", "4", "401", "±", "1.41", "2/2", "1,000", "2"]
    assert table[2] == ["2", "3", "301", "±", "1.41", "2/2", "1,000", "2"]
    assert table[3][:2] + table[3][-2:] == ["3", "missed", "2", "missed"]
    assert table[4][:3] + table[4][-2:] == ["-", "bad", "1", "2", "failed"]  # nothing is done
    assert table[5] == ["-", "silent", "-", "0/2", "-", "-", "2", "failed"]
    assert table[6] == ["best:", "--x=4"]
    ranking.write_table(folder)
    with open(folder.path / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    returns = "300.0 1.0 - 1.0 400.0 302.0 1.0 - 1.0 402.0"
    assert [row["mean_return"] or "-" for row in rows] == returns.split()
    # Again: only those that failed. One has the result of a program before, and writes none.
    before = {"exit_code": 1, "reason": "ValueError: y"}
    write_json(folder.run_dir(folder.trials[2]) / "result.json", before)
    again = opened(make_folder(folder.path, ["3", "bad", "silent", "missed", "4"], (0, 2)))
    _, lines = run(again)
    starts = [line for line in lines if " starts: " in line]
    assert [line.split()[1:3] for line in starts] == [
        ["1/4", "001-seed-0"], ["2/4", "002-seed-0"], ["3/4", "001-seed-2"], ["4/4", "002-seed-2"],
    ]  # fmt: skip
    assert [trial.reason for trial in again.trials[1:3]] == ["ValueError: x", "no such thing"]


def test_an_interrupt_stops_all_and_the_sweep_resumes(tmp_path, opened):
    folder = opened(make_folder(tmp_path / "sweep", ["wait", "1"], (0, 1)))

    def interrupt():
        until(lambda: len(list(folder.path.glob("*/waits"))) == 2, "two trials that wait")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    runner, lines = run(folder, "2")  # the second waits for its slot until the first has ended
    thread.join()
    assert runner.stopped_by == signal.SIGINT
    assert any(line.startswith("distrl: stopping 2 trials, which save;") for line in lines)
    assert [trial.status for trial in folder.trials] == ["stopped", "finished", "stopped", ""]
    kept = opened(SweepFolder.read(folder.path))
    runner, _ = run(kept, "2")
    assert runner.stopped_by is None
    assert [trial.status for trial in kept.trials] == ["finished"] * 4
    lives = {path.parent.name: path.read_text() for path in kept.path.glob("*/lives")}
    assert lives == {
        "000-seed-0": "11", "001-seed-0": "1", "000-seed-1": "11", "001-seed-1": "1",
    }  # fmt: skip


def test_a_search_may_grow_and_its_folders_stay(tmp_path, opened):
    folder = opened(make_folder(tmp_path / "sweep", ["1", "2"]))
    run(folder)
    grown = make_folder(folder.path, ["3", "2"], (0, 1))
    opened(grown)
    assert [(t.name, t.settings["x"], t.wanted, t.status) for t in grown.trials] == [
        ("000-seed-0", "1", False, "finished"),
        ("002-seed-0", "3", True, ""),
        ("001-seed-0", "2", True, "finished"),
        ("002-seed-1", "3", True, ""),
        ("001-seed-1", "2", True, ""),
    ]
    longer = make_folder(folder.path, ["2"])
    longer.words = ["--max_env_steps=5"]
    opened(longer)  # a larger budget: all run on
    assert [t.status for t in longer.trials if t.wanted] == [""]
    other = make_folder(folder.path, ["2"])
    other.words = ["--max_env_steps=5", "--agent=dqn"]
    with pytest.raises(ConfigError, match="has a sweep with other flags: --agent=dqn;"):
        opened(other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is not empty and has no sweep"):
        opened(make_folder(tmp_path / "full", ["1"]))


def test_ends_of_trials(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\nlast line\n\n")
    (tmp_path / "result.json").write_text(json.dumps({"exit_code": 0, "reason": "old"}))
    old = which_result(tmp_path)
    assert ending(tmp_path, old, log, 2, stopped=False) == ("failed", "last line")
    assert ending(tmp_path, old, log, 0, stopped=False) == ("finished", "old")
    none = tmp_path / "none"
    assert ending(tmp_path, old, none, -9, stopped=False) == ("failed", "exit status -9")
    assert ending(tmp_path, old, log, 130, stopped=True) == ("stopped", "last line")
    write_json(tmp_path / "result.json", {"exit_code": 1, "reason": "ValueError: x"})
    assert ending(tmp_path, old, log, 1, stopped=False) == ("failed", "ValueError: x")
    old = which_result(tmp_path)
    assert ending(tmp_path, old, log, 1, stopped=False) == ("failed", "last line")
    (tmp_path / "result.json").write_text('{"exit_co')
    assert ending(tmp_path, old, log, 0, stopped=False) == (
        "finished", "last line (result.json is damaged)",
    )  # fmt: skip


def test_a_trial_runs_where_the_sweep_was_started(moved, monkeypatch):
    command = [sys.executable, "-S", "-c", "import os; print(os.getcwd())"]
    monkeypatch.setattr(training_client, "python_command", lambda module: command)
    folder = make_folder(moved / "sweep", ["1"])
    folder.path.mkdir()
    assert start_training(folder)(folder.trials[0], {}).wait(60.0) == 0
    assert folder.log(folder.trials[0]).read_text() == f"{moved}/home\n"


def test_the_order_of_the_table(tmp_path):
    folder = make_folder(tmp_path, ["1", "2", "3"])
    for trial, seconds in zip(folder.trials, (5, 3, None), strict=True):
        folder.run_dir(trial).mkdir()
        if seconds:
            text = f"seconds,mean_return\n{seconds},nan\n"
            (folder.run_dir(trial) / "metrics.csv").write_text(text)
    order = [each.settings["x"] for each in ranking.standings(folder, "-seconds")]
    assert order == ["2", "1", "3"]
    with pytest.raises(ConfigError, match=r"^--by=loss: the runs have no column 'loss'; they have"):
        ranking.standings(folder, "loss")


def test_equal_values_are_one_line(tmp_path):
    folder = make_folder(tmp_path, ["1e-3", "3e-4"], (0,))
    folder.trials += make_folder(tmp_path, ["0.001", "3e-4"], (1,)).trials
    table = ranking.standings(folder, "mean_return")
    assert [[trial.name for trial in each.trials] for each in table] == [
        ["000-seed-0", "000-seed-1"], ["001-seed-0", "001-seed-1"],
    ]  # fmt: skip


def test_damaged_metrics_cost_a_trial_its_figures(tmp_path, capsys):
    folder = make_folder(tmp_path, ["1", "2"])
    for trial, value in zip(folder.trials, ("5", "five"), strict=True):
        folder.run_dir(trial).mkdir()
        text = f"seconds,mean_return\n1,{value}\n"
        (folder.run_dir(trial) / "metrics.csv").write_text(text)
        trial.status = "finished"
    folder.write()
    assert sweep.sweep(["distrl sweep", f"--show={tmp_path}"]) == 0
    damaged, *_, best = capsys.readouterr().out.splitlines()
    assert damaged.startswith(f"distrl: {folder.run_dir(folder.trials[1])}/metrics.csv is damaged")
    assert best == "best: --x=1"
    ranking.write_table(folder)
    rows = (tmp_path / "trials.csv").read_text().splitlines()
    assert rows[1].endswith(",5.0") and rows[2].endswith(",")


def test_columns_of_a_node_are_no_policys(tmp_path):
    folder = make_folder(tmp_path, ["1"])
    folder.run_dir(folder.trials[0]).mkdir()
    text = "seconds,mean_return,actor/0/speed\n1,2,3\n"
    (folder.run_dir(folder.trials[0]) / "metrics.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"they have seconds, mean_return, actor/0/speed$"):
        ranking.standings(folder, "loss")


def test_several_policies_are_ranked_by_their_mean_or_by_one_of_them(tmp_path):
    folder = make_folder(tmp_path, ["1", "2"])
    for trial, returns in zip(folder.trials, ((5, 1), (2, 8)), strict=True):
        for policy, value, more in zip(("pa", "pb"), returns, ("", "lag"), strict=True):
            path = folder.run_dir(trial) / "tasks" / policy
            path.mkdir(parents=True)
            lines = ("seconds,mean_return,lag", f"3,{value},{4 if more else ''}")
            (path / "metrics.csv").write_text("\n".join(lines) + "\n")

    def table(by):
        return [(each.settings["x"], each.mean) for each in ranking.standings(folder, by)]

    assert table("mean_return") == [("2", 5.0), ("1", 3.0)]
    assert table("pa/mean_return") == [("1", 5.0), ("2", 2.0)]
    assert table("-pb/mean_return") == [("1", 1.0), ("2", 8.0)]
    assert table("lag") == [("1", 4.0), ("2", 4.0)]
    message = "they have seconds, mean_return, lag; of one policy, as in pa/seconds"
    with pytest.raises(ConfigError, match=rf"no column 'pc/mean_return'; {message}$"):
        table("pc/mean_return")
    ranking.write_table(folder)
    with open(tmp_path / "trials.csv") as file:
        first, second = csv.DictReader(file)
    assert (first["mean_return"], first["pa/mean_return"], first["pb/mean_return"]) == (
        "3.0", "5.0", "1.0",
    )  # fmt: skip
    assert second["pb/mean_return"] == "8.0" and second["pa/lag"] == ""


def test_the_best_is_of_trials_that_are_done_and_ranked_as_the_sweep_says(tmp_path, opened, capsys):
    folder = make_folder(tmp_path / "sweep", ["1", "2", "3"], (0, 1))
    folder.command["by"] = "-seconds"
    opened(folder)
    statuses = ("finished", "failed", "finished", "finished", "failed", "")
    for trial, status, seconds in zip(folder.trials, statuses, (5, 1, 2, 7, 1, 99), strict=True):
        trial.status = status
        folder.run_dir(trial).mkdir()
        text = f"seconds,mean_return\n{seconds},{seconds}\n"
        (folder.run_dir(trial) / "metrics.csv").write_text(text)
    folder.write()
    for words, best in ([], "3"), (["--by=-seconds"], "3"), (["--by=mean_return"], "1"):
        assert sweep.sweep(["distrl sweep", f"--show={folder.path}", *words]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"best: --x={best}"


def test_short_names():
    assert ranking.short_names(["config.a.rate", "config.b.rate", "seed", "agent", "x.agent"]) == [
        "a.rate", "b.rate", "seed", "agent", "x.agent",
    ]  # fmt: skip


def test_the_cores_of_a_trial():
    experiment = SimpleNamespace(
        actors=SimpleNamespace(largest_num_actors=3),
        inference=SimpleNamespace(num_inferencers=2),
        acting_tasks=("a",),
        learner_nodes=(("a",), ("learns from a",)),
    )
    cores = {"single_process": 1, "heavy_env": 3 + 2, "light_env": 3 + 2 + 2}
    assert {name: fit.busy_cores(experiment, name) for name in cores} == cores


def test_as_many_as_fit(monkeypatch):
    monkeypatch.setattr(fit, "usable_cores", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert TrialSlots("auto", 3, 0).count == 2
    assert TrialSlots("auto", 9, 0).count == 1
    slots = TrialSlots("auto", 1, 1)
    assert [slots.environment(k)["CUDA_VISIBLE_DEVICES"] for k in range(slots.count)] == [*"456"]
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert TrialSlots("1", 1, 0).environment(0) == {}
    assert TrialSlots("2", 1, 0).environment(0) == {"JAX_PLATFORMS": "cpu"}  # for `auto`
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert TrialSlots("2", 1, 0).environment(0) == {}
    with pytest.raises(ConfigError, match=r"^--jobs=2: each trial needs 2 GPUs, .* shows 3"):
        TrialSlots("2", 1, 2)
    with pytest.raises(ConfigError, match=r"^--jobs=many: expected a number of trials, or auto"):
        TrialSlots("many", 1, 0)
    little = TrialSlots("auto", 1, 0, room=lambda: 3 << 30)
    assert little.has_room([]) and little.has_room([1]) and not little.has_room([4 << 30])
    assert TrialSlots("8", 1, 0).has_room([1 << 60])
    assert fit.free_memory() > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "sweep: say what to try; see `distrl sweep --help`"),
        (["--dir=nowhere"], "--dir: nowhere has no sweep to resume; say what to try"),
        (["--show=nowhere"], "--show: nowhere has no sweep"),
        ([*BASE, "--grid", "config.agent.learning_rat=1"], "Did you mean: config.agent.learning_r"),
        ([*BASE, f"--grid={LR}=1e-3,-1"], f"sweep: --{LR}=-1: agent.learning_rate: expected"),
        ([*BASE, "--random", f"{LR}=uniform:-1:0", "--trials=1"], "agent.learning_rate: expected"),
        ([*BASE, "--seeds=x"], "--seeds=x: expected a number of seeds, or seeds with commas"),
        ([*BASE, "--seeds=0"], "--seeds must be 1 or more, got 0"),
        ([*BASE, "--seeds=-1,2"], "--seeds=-1,2: a seed must be 0 or more, got -1"),
        ([*BASE, "--seeds=--1"], "--seeds=--1: expected a number of seeds, or seeds with commas"),
        ([*BASE, "--seed=-3", "--seeds=2"], "--seed=-3: a seed must be 0 or more, got -3"),
        ([*BASE, "--seed=abc"], "--seed=abc: expected a whole number"),
        ([*BASE, "--grid", "seed=1,2"], "sweep: --seed: for seeds of the trials use --seeds=3"),
        ([*BASE, "--grid", "config.seed=3,4"], "sweep: --config.seed: for seeds of the trials"),
        ([*BASE, "--config.seed=7"], "sweep: --config.seed: for seeds of the trials use --seeds=3"),
        ([*BASE, "--random", "config.seed=int:1:9", "--trials=2"], "sweep: --config.seed: for"),
        ([*BASE, "--grid", "agent=ppo,dqn"], "--agent is both given for all trials and tried"),
        (
            [*BASE, "--grid", "config.goal.max_env_steps=1000,2000"],
            "--config.goal.max_env_steps is both given for all trials and tried",
        ),
        (
            [*BASE[:3], "--config.goal.max_env_steps=9", "--grid", "max_env_steps=1000,2000"],
            "--max_env_steps is both given for all trials and tried",
        ),
        ([*BASE, "--run_dir=x"], "sweep: --run_dir is not for a sweep: a sweep names its trials'"),
        ([*BASE[:3], "--seeds=2"], "a trial whose goal is out of reach would never end; give all"),
        ([*BASE, "--config.learner.num_gpus=1"], "JAX_PLATFORMS=cpu hides them; unset it"),
        ([*BASE, "--jobs=some"], "--jobs=some: expected a number of trials, or auto"),
    ],
)
def test_bad_sweeps_are_refused_before_anything_starts(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    from absl import flags

    with flagsaver.flagsaver(), pytest.raises((ConfigError, flags.Error)) as caught:
        sweep.sweep(["distrl sweep", *words])
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path):
    """A function that returns the sweep that flags describe."""

    def make(*words):
        values = sweep._define_flags()
        words = values(["distrl sweep", f"--dir={tmp_path / 's'}", *words], known_only=True)[1:]
        with flagsaver.flagsaver():
            return sweep._folder(values, words)

    return make


@pytest.mark.parametrize("words", [["-seed=3"], ["--seed=1", "--config.a.b", "4", "--seed", "3"]])
def test_the_first_seed_however_it_is_written(folder, words):
    made = folder(*BASE, *words, "--seeds=2")
    assert [trial.seed for trial in made.trials] == [3, 4]
    assert not any("seed" in word for word in made.words)


def test_flags_mend_what_a_file_has(folder):
    file = f"{ROOT}/tests/support/experiments/refused.py:more_shards_than_actors"
    words = (f"--experiment={file}", "--topology=heavy_env", "--substrate=builtin", BASE[-1])
    with flagsaver.flagsaver(), pytest.raises(ConfigError, match="num_shards=3 is more than"):
        sweep.check(folder(*words))
    with flagsaver.flagsaver():
        assert sweep.check(folder(*words, "--config.replay.num_shards=2")).gpus == 0


def test_a_sweep_is_extended_by_its_own_flags_alone(tmp_path, folder):
    first = folder(*BASE, f"--grid={LR}=1e-3,2e-3", "--seed=5", "--seeds=2", "--jobs=2")
    (tmp_path / "s").mkdir()
    first.write()
    more = folder("--seeds=3")
    assert more.words == first.words
    assert more.command == {**first.command, "seeds": "3"}
    assert {trial.seed for trial in more.trials} == {5, 6, 7} and len(more.trials) == 6
    other = folder(f"--grid={LR}=0.001,4e-3")
    assert [each.settings[LR] for each in other.trials] == ["0.001", "4e-3"] * 2
    other._take_up(first)
    names = [trial.name for trial in other.trials if trial.wanted]
    assert names == ["000-seed-5", "002-seed-5", "000-seed-6", "002-seed-6"]


@pytest.mark.parametrize("data", [{"seed": 7}, {"config": {"seed": 7}}])
def test_a_seed_in_a_file_of_settings_is_refused(tmp_path, data):
    (tmp_path / "own.json").write_text(json.dumps(data))
    words = ["distrl sweep", *BASE, f"--config_file={tmp_path}/own.json", f"--dir={tmp_path}/s"]
    with flagsaver.flagsaver(), pytest.raises(ConfigError, match="has a seed: for seeds of the"):
        sweep.sweep(words)
    assert not (tmp_path / "s").exists()


@pytest.mark.full
def test_a_sweep_of_two_trials(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "distrl sweep", "--env", "CartPole-v1", "--agent=a2c", "--topology=single_process",
        "--max_env_steps=600", "--grid", f"{LR}=1e-3,3e-3", "--jobs=auto", "--dir=sweep",
    ]  # fmt: skip
    assert sweep.sweep(words) == 0
    out = capsys.readouterr().out
    assert "2 trials, 0 of them done" in out and "best: --config.agent.learning_rate=" in out
    for name, rate in (("000-seed-0", 1e-3), ("001-seed-0", 3e-3)):
        trial = Run(tmp_path / "sweep" / name)
        assert trial.status == "finished"
        assert trial.config["experiment"]["agent"]["learning_rate"] == rate
        assert trial.last_rows[0]["env_steps"] >= 600
