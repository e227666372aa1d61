"""`distrl list`, `logs`, `stop`, `eval`, `plot` and `compare`, on folders of runs."""

import fcntl
import json
import os
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from distrl.errors import ConfigError
from distrl.launch.commands import compare, evaluate, list_runs, logs, plot, report, stop
from distrl.launch.runs import evaluation, text_table
from distrl.launch.runs.run import load_run
from distrl.launch.supervision.log_file import LogFile
from tests.support.waiting import until

pytest.importorskip("matplotlib")


def make_run(folder, seed=0, rate=1e-3, rows=5, status="finished", agent="PPO", **more):
    folder.mkdir(parents=True)
    experiment = {
        "seed": seed,
        "environment": {"name": "CartPole-v1"},
        "agent": {"learning_rate": rate, "network": {"hidden_sizes": [32]}, **more},
    }
    config = {
        "command": [], "topology": "single_process", "experiment": experiment,
        "classes": {"agent": f"{agent}Config"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    lines = ["seconds,env_steps,mean_return"]
    lines += [f"{k},{1000 * (k + 1)},{10 * k + seed}" for k in range(rows)]
    (folder / "metrics.csv").write_text("\n".join([*lines, "9,9"]))  # a row that is being written
    if status:
        (folder / "result.json").write_text(json.dumps({"status": status, "reason": "so"}))
    (folder / "lock").write_text(f"{os.getpid()}\n")
    return folder


@pytest.fixture
def locked():
    """A function that locks a run's folder, as its program does, and returns what unlocks it."""
    descriptors = []

    def lock(folder):
        descriptor = os.open(folder / "lock", os.O_RDWR)
        descriptors.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)

    yield lock
    for descriptor in descriptors:
        os.close(descriptor)


def test_list_shows_each_run_and_whether_it_is_in_progress(tmp_path, capsys, locked):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", status="", rows=0)
    locked(make_run(tmp_path / "c", status=""))
    make_run(tmp_path / "d")
    (tmp_path / "d" / "config.json").write_text("{")
    (tmp_path / "no run").mkdir()
    assert list_runs.list_runs(["distrl list", str(tmp_path)]) == 0
    head, *lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: [cell.strip() for cell in line if cell.strip()] for line in lines}
    assert [cell.strip() for cell in head if cell.strip()][:3] == ["run", "status", "topology"]
    assert rows["a"][1:5] == ["finished", "single_process", "5,000", "40.0"]
    assert rows["b"][1:5] == ["unfinished", "single_process", "-", "-"]
    assert rows["c"][1] == "running"
    assert rows["d"][1] == "damaged"
    with pytest.raises(ConfigError, match=r"^list: no folder .*/nowhere; name the one"):
        list_runs.list_runs(["distrl list", str(tmp_path / "nowhere")])


def test_logs_of_a_node(tmp_path, capsys, locked):
    run = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="single_process prints to its own terminal"):
        logs.logs(["distrl logs", str(run)])
    (run / "logs").mkdir()
    (run / "logs" / "actor-0.log").write_text("first\n")
    with pytest.raises(ConfigError, match=r"name a node of .*: actor-0$"):
        logs.logs(["distrl logs", str(run), "actor/1"])
    assert logs.logs(["distrl logs", str(run), "actor/0"]) == 0
    assert capsys.readouterr().out == "first\n"
    unlock, printed = locked(run), []

    def is_printed(text):
        printed.append(capsys.readouterr().out)
        return "".join(printed) == text

    thread = threading.Thread(target=logs.logs, args=(["logs", str(run), "actor/0", "-f"],))
    thread.start()
    until(lambda: is_printed("first\n"), "the first line")
    with open(run / "logs" / "actor-0.log", "a") as file:
        file.write("second\n")
    unlock()
    thread.join(10.0)
    assert not thread.is_alive()
    assert is_printed("first\nsecond\n")


def test_a_log_is_followed_where_it_goes_on_in_a_new_file(tmp_path, monkeypatch, capsys):
    path, lines = tmp_path / "actor-0.log", [f"line {number:030}" for number in range(300)]
    log, left = LogFile(path, 3 * 4096), list(lines)

    def is_running(run_dir):
        some, left[:20] = left[:20], []
        log.write("".join(f"{line}\n" for line in some).encode())
        return bool(left)

    monkeypatch.setattr(logs, "is_running", is_running)
    monkeypatch.setattr(logs, "_POLL_S", 0.0)
    logs._print(path, tmp_path, follow=True)
    assert capsys.readouterr().out.splitlines() == lines
    assert len(path.read_text().splitlines()) < len(lines)  # the others are elsewhere


def test_a_folder_that_may_not_be_searched_is_refused(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")

    def exists(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(run), "exists", exists)  # which a mode does not do to root
    with pytest.raises(ConfigError, match=r"^stop: .*/run cannot be read: Permission denied$"):
        stop.stop(["distrl stop", str(run)])


@pytest.mark.parametrize(
    "last", [0, signal.SIGCONT, signal.SIGINT], ids=["check", "first", "second"]
)
def test_stop_of_a_program_that_ends_just_then(tmp_path, capsys, locked, monkeypatch, last):
    run = make_run(tmp_path / "run", status="finished")
    unlock = locked(run)

    def kill(pid, number):
        if number == last:
            unlock()
            raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(os, "kill", kill)
    if last:
        assert stop.stop(["distrl stop", str(run)]) == 0
        assert capsys.readouterr().out == "run: finished: so\n"
    else:
        with pytest.raises(ConfigError, match=r"^stop: the program in .*/run "):
            stop.stop(["distrl stop", str(run)])


def test_stop_interrupts_the_program_and_waits(tmp_path, capsys, locked, monkeypatch):
    run = make_run(tmp_path / "run", status="stopped")
    with pytest.raises(ConfigError, match=r"^stop: .*/run is not running$"):
        stop.stop(["distrl stop", str(run)])
    unlock = locked(run)
    sent = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    assert stop.stop(["distrl stop", str(run), "--timeout=0.1"]) == 1
    assert "has not ended within 0.1 s" in capsys.readouterr().err
    monkeypatch.setattr(os, "kill", lambda *_: unlock())
    assert stop.stop(["distrl stop", str(run)]) == 0
    assert capsys.readouterr().out == "run: stopped: so\n"
    unlock = locked(run)
    (run / "result.json").unlink()  # as of a program that could not write it
    assert stop.stop(["distrl stop", str(run)]) == 0
    assert capsys.readouterr().out == "run: ended, without a result\n"
    signals = [number for _, number in sent if number]  # 0 asks whether it may be signalled
    assert signals == [signal.SIGCONT, signal.SIGINT]
    assert {pid for pid, _ in sent} == {os.getpid()}
    monkeypatch.undo()  # there is no such process to be signalled
    locked(run)
    (run / "lock").write_text("99999999\n")
    with pytest.raises(ConfigError, match="runs on another machine"):
        stop.stop(["distrl stop", str(run)])


def test_compare_names_what_differs(tmp_path, capsys):
    paths = [make_run(tmp_path / "a", rate=1e-3), make_run(tmp_path / "b", seed=7, rate=1e-4)]
    assert compare.compare(["distrl compare", *map(str, paths)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["a", "b"]
    assert ["agent.learning_rate", "0.001", "0.0001"] in lines
    assert ["seed", "0", "7"] in lines
    assert not [line for line in lines if line[0] == "topology"]
    assert ["at", "the", "end:", "mean_return", "40", "47"] in lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2_216_437, "2,216,437"), (999_999.7, "1,000,000"), (1_234.5678, "1,234.57"),
        (0.25, "0.25"), (-3e9, "-3,000,000,000"), (1e30, "1e+30"), (1e-9, "1e-09"),
        (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_numbers_of_tables_have_all_digits_of_counts(value, text):
    assert text_table.number(value) == text


def test_compare_names_the_algorithms(tmp_path, capsys):
    paths = [make_run(tmp_path / name, agent=name) for name in ("TD3", "DDPG")]
    assert compare.compare(["distrl compare", *map(str, paths)]) == 0
    assert ["agent", "TD3", "DDPG"] in [
        line.split() for line in capsys.readouterr().out.split("\n")
    ]


def test_labels_tell_all_curves_apart(tmp_path):
    def labels(*paths):
        runs = [load_run(path) for path in paths]
        return [curve.label for curve in plot.make_curves(runs, "env_steps", "mean_return")]

    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", rate=1e-4)
    c = make_run(tmp_path / "c", agent="DQN", p=1, q=2, r=3, s=4, t=5)
    assert labels(a, b, c) == ["PPO, learning_rate=0.001", "PPO, learning_rate=0.0001", "DQN"]
    grid = [make_run(tmp_path / f"{x}{y}", rate=x, x=0, y=y) for x in (1, 2) for y in (1, 2)]
    assert labels(*grid[:2]) == ["y=1", "y=2"]
    assert labels(*grid) == [f"learning_rate={x}, y={y}" for x in (1, 2) for y in (1, 2)]
    long = [make_run(tmp_path / word, inputs=50 * word) for word in "de"]
    assert labels(*long) == ["d", "e"]


def test_a_curve_has_the_name_of_a_folder_that_the_locale_could_not_decode(tmp_path):
    path = make_run(tmp_path / "läuf".encode().decode("ascii", "surrogateescape"))
    out = tmp_path / "c.svg"
    assert plot.plot(["distrl plot", str(path), f"--out={out}"]) == 0
    assert "<!-- läuf -->" in out.read_text("utf-8")


def test_a_curve_is_the_mean_over_seeds(tmp_path, capsys):
    paths = [make_run(tmp_path / f"a{k}", seed=k) for k in range(3)]
    paths.append(make_run(tmp_path / "b", rate=1e-4, rows=3))
    curves = plot.make_curves([load_run(path) for path in paths], "env_steps", "mean_return")
    assert [curve.num_runs for curve in curves] == [3, 1]
    three, one = curves
    assert (three.x[0], three.x[-1], one.x[-1]) == (1000, 5000, 3000)
    np.testing.assert_allclose(three.mean, (three.x / 1000 - 1) * 10 + 1)
    np.testing.assert_allclose(three.most - three.least, 2.0)
    assert three.label == "learning_rate=0.001"
    for name in ("c.png", "c.svg"):
        assert plot.plot(["distrl plot", *map(str, paths), f"--out={tmp_path / name}"]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert "2 curves of 4 runs" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"has no column 'los'; it has seconds, env_steps, "):
        plot.plot(["distrl plot", str(paths[0]), "--y=los"])
    with pytest.raises(ConfigError, match=r"name a \.png, \.svg or \.pdf file"):
        plot.plot(["distrl plot", str(paths[0]), "--out=c.doc"])


def test_runs_of_other_code_are_other_curves_and_a_seed_counts_once(tmp_path, capsys):
    paths = [make_run(tmp_path / f"{name}{k}", seed=k // 2) for name in "ab" for k in range(3)]
    for path in paths[3:]:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "functions": {"agent.f": "12ab"}}))
    curves = plot.make_curves([load_run(path) for path in paths], "env_steps", "mean_return")
    assert [(c.label, c.num_runs, c.num_seeds) for c in curves] == [
        ("f (code)=-", 3, 2), ("f (code)=12ab", 3, 2),
    ]  # fmt: skip
    assert capsys.readouterr().err.splitlines()[0] == (
        f"distrl: f (code)=-: 2 runs have the seed 0: {paths[0]}, {paths[1]}"
    )


def test_a_plot_leaves_out_what_has_no_rows_and_says_where_a_curve_is_cut(tmp_path, capsys):
    short = str(make_run(tmp_path / "short", rows=1))
    with pytest.raises(ConfigError, match=r"^plot: no run has two rows with env_steps and mean_"):
        plot.plot(["distrl plot", short])
    whole, cut = make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, rows=3, status="failed")
    capsys.readouterr()
    words = ["distrl plot", short, str(whole), str(cut), f"--out={tmp_path / 'c.svg'}"]
    assert plot.plot(words) == 0
    out, err = capsys.readouterr()
    assert "1 curves of 2 runs" in out
    assert err.splitlines() == [
        f"distrl: {short} is left out: it has fewer than two rows with env_steps and mean_return",
        f"distrl: a: the curve ends at env_steps 3,000 of 5,000, where {cut} does, which is failed",
    ]
    (cut / "result.json").write_text('{"status": "finished"}')
    assert plot.plot(words) == 0 and "ends at" not in capsys.readouterr().err


def listed(folder, capsys):
    """Returns the words of each line of `distrl list` by the run's name."""
    assert list_runs.list_runs(["distrl list", str(folder)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {line[0]: line for line in lines}


def test_damaged_metrics_cost_list_a_word_and_other_commands_a_line(tmp_path, capsys):
    good, bad = make_run(tmp_path / "good"), make_run(tmp_path / "bad")
    (bad / "metrics.csv").write_text("seconds,env_steps,mean_return\n1,abc,3\n")
    rows = listed(tmp_path, capsys)
    assert rows["bad"][:5] == ["bad", "finished", "single_process", "damaged", "-"]
    assert rows["good"][:4] == ["good", "finished", "single_process", "5,000"]
    damaged = f"^{bad / 'metrics.csv'} is damaged: could not convert string to float: 'abc'$"
    for command in (
        lambda: compare.compare(["distrl compare", str(good), str(bad)]),
        lambda: report.report(["distrl report", str(bad)]),
        lambda: plot.plot(["distrl plot", str(bad)]),
        lambda: load_run(bad).rows,
    ):
        with pytest.raises(ConfigError, match=damaged):
            command()


def test_damaged_names_of_columns(tmp_path, capsys):
    good, bad = make_run(tmp_path / "good"), make_run(tmp_path / "bad")
    for content in (b"sec\xff\x00\n1,2", b"seconds,env_st\xffs\n1,2\n"):
        (bad / "metrics.csv").write_bytes(content)
        assert listed(tmp_path, capsys)["bad"][3] == "damaged"
        assert compare.compare(["distrl compare", str(good), str(bad)]) == 0
        assert report.report(["distrl report", str(bad)]) == 0
        with pytest.raises(ConfigError, match="has no column 'env_steps'; it has sec"):
            plot.plot(["distrl plot", str(bad)])
        capsys.readouterr()


def test_a_damaged_cell_in_mid_file(tmp_path):
    path = make_run(tmp_path / "a")
    rows = [(k, "x" if k == 3 else 2 * k) for k in range(9)]
    write_rows(path, ("env_steps", "evaluation_return"), rows)
    damaged = f"^{path / 'metrics.csv'} is damaged: could not convert string to float: 'x'$"
    with pytest.raises(ConfigError, match=damaged):
        plot.make_curves([load_run(path)], "env_steps", "evaluation_return")
    with pytest.raises(ConfigError, match=damaged):
        report.report(["distrl report", str(path)])


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff", b'"so"'])
def test_damaged_settings_cost_list_a_word_and_other_commands_a_line(tmp_path, capsys, content):
    make_run(tmp_path / "good")
    bad = make_run(tmp_path / "bad")
    (bad / "config.json").write_bytes(content)
    rows = listed(tmp_path, capsys)
    assert rows["bad"][1] == "damaged" and rows["good"][1] == "finished"
    with pytest.raises(ConfigError, match=f"^plot: {bad / 'config.json'} cannot be read: "):
        plot.plot(["distrl plot", str(bad)])


def write_rows(path, names, rows):
    lines = [",".join(map(str, row)) for row in [names, *rows]]
    (path / "metrics.csv").write_text("\n".join([*lines, ""]))


def test_a_plot_refuses_an_x_that_falls(tmp_path):
    path = make_run(tmp_path / "a")
    names = ("env_steps", "mean_return", "mean_length", "loss")
    write_rows(path, names, [(1, 0, 6, 0.5), (2, 1, 6, ""), (3, 3, 7.5, 0.75), (4, 9, 5.5, 1)])
    with pytest.raises(ConfigError) as error:
        plot.plot(["distrl plot", str(path), "--x=mean_length"])
    assert str(error.value) == (
        f"plot: --x=mean_length: it falls in {path}, from 7.5 to 5.5; name a column that only "
        "rises: env_steps, seconds, learner_steps, episodes, trained_steps"
    )
    (curve,) = plot.make_curves([load_run(path)], "loss", "mean_return")  # it happens to rise
    assert (curve.x[0], curve.x[-1], curve.mean[0], curve.mean[-1]) == (0.5, 1, 0, 9)


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([(5, 50), (9, 90), (2, 1), (4, 3), (4, 5), (6, 7)], (2, 6, 1, 7)),  # from the beginning
        ([(5, 50), (9, 90), (8, 1), (10, 3)], (5, 10, 50, 3)),  # from a checkpoint
    ],
)
def test_a_plot_takes_what_a_run_has_done_again(tmp_path, rows, ends):
    path = make_run(tmp_path / "a")
    write_rows(path, ("learner_steps", "mean_return"), rows)
    (curve,) = plot.make_curves([load_run(path)], "learner_steps", "mean_return")
    assert (curve.x[0], curve.x[-1], curve.mean[0], curve.mean[-1]) == ends


def test_a_curve_has_nothing_of_a_program_that_left_no_checkpoint(tmp_path):
    path = make_run(tmp_path / "a")
    rows = [(500, 5, 1), (900, 9, 5), (700, 7, 50), (1100, 11, 60)]
    write_rows(path, ("env_steps", "learner_steps", "mean_return"), rows)
    for x, ends in (("env_steps", (700, 1100)), ("learner_steps", (7, 11))):
        (curve,) = plot.make_curves([load_run(path)], x, "mean_return")
        assert (curve.x[0], curve.x[-1], curve.mean[0], curve.mean[-1]) == (*ends, 50, 60)


@pytest.mark.parametrize(
    ("ranges", "out"),
    [
        ([(100, 500), (2000, 4000)], [0]),
        ([(100, 500), (200, 600), (2000, 4000)], [2]),
        ([(100, 500), (2000, 4000), (2100, 5000)], [0]),
        ([(10, 20), (30, 45), (40, 60), (42, 50)], [0]),
        ([(100, 500), (500, 600)], []),  # they have one point in common
    ],
)
def test_a_plot_leaves_out_runs_whose_x_does_not_overlap(tmp_path, ranges, out):
    paths = [make_run(tmp_path / f"r{k}", seed=k) for k in range(len(ranges))]
    for path, (begin, end) in zip(paths, ranges):
        write_rows(path, ("env_steps", "mean_return"), [(begin, begin), (end, end)])
    lines = []
    (curve,) = plot.make_curves(map(load_run, paths), "env_steps", "mean_return", lines.append)
    kept = [each for k, each in enumerate(ranges) if k not in out]
    assert (curve.x[0], curve.x[-1]) == (max(b for b, _ in kept), min(e for _, e in kept))
    np.testing.assert_allclose(curve.mean, curve.x)  # no run has a value elsewhere than its own
    np.testing.assert_allclose(curve.least, curve.most)
    assert curve.num_runs == curve.num_seeds == len(kept)
    left_out = [
        f"{curve.label}: {paths[k]} is left out: its env_steps, {ranges[k][0]:,} to "
        f"{ranges[k][1]:,}, does not overlap with that of other runs"
        for k in out
    ]
    assert [line for line in lines if "left out" in line] == left_out


@pytest.mark.parametrize(
    ("command", "function"),
    [("plot", plot.plot), ("compare", compare.compare), ("eval", evaluate.evaluate_run)],
)
def test_bad_arguments_are_one_line(tmp_path, command, function):
    with pytest.raises(ConfigError, match=rf"^{command}: .*; see `distrl {command} --help`$"):
        function([f"distrl {command}"])
    if command == "eval":
        with pytest.raises(ConfigError, match=r"argument --seed: expected a whole number from 0"):
            function(["distrl eval", str(tmp_path), "--seed=-1"])
    no_run = rf"^{command}: {tmp_path} is not the folder of a run: it has no config.json$"
    with pytest.raises(ConfigError, match=no_run):
        function([f"distrl {command}", str(tmp_path), *[str(tmp_path)] * (command != "eval")])


def test_the_pool_is_made_before_the_policy_is_loaded():  # a pool of processes forks
    events = []

    class Pool(SimpleNamespace):
        def close(self):
            events.append("close")

    class Recorded(SimpleNamespace):
        def spec(self):
            raise AssertionError("the policy's is compared when it is loaded")

        def make_pool(self, num_envs, wait_num, seeds):
            events.append("pool")
            return Pool()

    def load():
        events.append("policy")
        raise ConfigError("no policy today")

    with pytest.raises(ConfigError, match="no policy today"):
        evaluation.evaluate(load, Recorded(name="Recorded"))
    assert events == ["pool", "policy", "close"]
