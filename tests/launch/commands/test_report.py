"""The report: a page that is valid, needs nothing else, and says what the run folder has."""

import html.parser
import json
import re
import sys

import numpy as np
import pytest

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.commands import report
from distrl.launch.run_dir.config_diff import describe
from distrl.launch.runs import charts, report_curves
from distrl.launch.runs.run import load_run
from distrl.presets import experiment as preset

VOID = {"meta", "img", "br", "line", "polyline", "polygon"}
COLUMNS = (
    "seconds,env_steps,learner_steps,episodes,mean_return,std_return,evaluation_return,"
    "time_out_rate,time_compute,time_idle,policy_lag_max,loss"
)


class Checker(html.parser.HTMLParser):
    """Sees that every element ends, and collects what the page refers to."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.links, self.text, self.seen = [], [], [], set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert len({name for name, _ in attributes}) == len(attributes)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check(page):
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    assert page.startswith("<!DOCTYPE html>")
    return checker, " ".join(checker.text)


def make_run(folder, rows=30):
    folder.mkdir()
    usual = preset("CartPole-v1", "ppo")
    config = {"command": ["distrl train", "--env=<b>"], "topology": "heavy_env", **describe(usual)}
    config["experiment"]["learner"]["batch_size"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    lines = [COLUMNS]
    for k in range(rows):
        evaluation = 10 * (k // 10) if k >= 10 else ""
        lines.append(f"{k},{100 * k},{k},{2 * k},{k},1.5,{evaluation},0.5,0.7,0.3,{k},{-k}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return load_run(folder)


def test_a_page_of_a_run(tmp_path):
    pytest.importorskip("envpool")
    run = make_run(tmp_path / "run")
    nodes = {
        "actor/0": {"state": "ended", "causes": ["ValueError: <bad>"], "error": None},
        "actor/1": {"state": "ended", "causes": []},
    }
    result = {"status": "failed", "reason": "so & so", "nodes": nodes, "failed_node": "actor/0"}
    (run.path / "result.json").write_text(json.dumps(result))
    progress = {"bottleneck": "The learner.", "nodes": {"learner/0": {"compute": 0.8, "idle": 0.2}}}
    (run.path / "progress.json").write_text(json.dumps(progress))
    (run.path / "clip.gif").write_bytes(b"GIF89a")
    assert report.report(["distrl report", str(run.path)]) == 0
    checker, text = check((run.path / "report.html").read_text("utf-8"))
    assert [link[:22] for link in checker.links] == ["data:image/gif;base64,"]
    assert "script" not in checker.seen
    for words in (
        "PPO · CartPole-v1 · heavy_env", "failed: so & so", "The learner.", "ValueError: <bad>",
        "actor/0 failed first.", "learner.batch_size", "These differ from `distrl train "
        "--env=CartPole-v1 --agent=ppo`:", "distrl train '--env=<b>'", "80 %", "share of time by",
        "policy lag, in learner steps", "loss",
    ):  # fmt: skip
        assert words in text, words
    assert "out rate" not in text  # time_out_rate is no state, and no figure of the learner's
    evaluations = text.partition("Evaluations")[2].partition("Faults")[0]
    assert [word for word in evaluations.split() if word in ("10", "20")] == ["10", "20"]


def test_evaluations_with_equal_scores_count(tmp_path):
    run = make_run(tmp_path / "run", rows=0)

    def shown(*rows):
        lines = ["env_steps,evaluations,evaluation_return", *rows, ""]
        (run.path / "metrics.csv").write_text("\n".join(lines))
        found, total = report._evaluations_of(run)
        return [row[1:3] for row in found], total

    same = ("10,,", "20,1,5.0", "30,1,5.0", "40,2,5.0", "50,3,5.0", "60,3,5.0")
    assert shown(*same) == ([["20", "5"], ["40", "5"], ["50", "5"]], 3)
    # Two between rows; one of which no episode ended in time.
    assert shown("10,1,5.0", "20,3,5.0", "30,4,", "40,5,5.0") == (
        [["10", "5"], ["20", "5"], ["40", "5"]], 5,
    )  # fmt: skip
    # An older version's rows have no number, and neither have those of a resumed run at first.
    assert shown("10,,5.0", "20,,5.0", "30,,6.0", "40,1,6.5") == (
        [["10", "5"], ["30", "6"], ["40", "6.5"]], 3,
    )  # fmt: skip
    shown(*(f"{k},{k},5.0" for k in range(1, 26)))
    _, text = check(report.make_report(run))
    assert "25 evaluations; the last 20 in metrics.csv:" in text


def test_each_policy_has_its_evaluations_and_all_share_their_environments(tmp_path):
    run = make_run(tmp_path / "run", rows=0)
    for task, evaluations in (("blue", 30), ("red", 25), ("white", 2)):
        folder = run.path / "tasks" / task
        folder.mkdir(parents=True)
        lines = ["env_steps,evaluations,evaluation_return,env_restarts,updates_skipped"]
        lines += [f"{k},{k},{k},3,2" for k in range(1, evaluations + 1)]
        (folder / "metrics.csv").write_text("\n".join([*lines, ""]))
    page = report.make_report(run)
    shown = {task: page.count(f"<td>{task}</td>") for task in ("blue", "red", "white")}
    assert shown == {"blue": 20, "red": 20, "white": 2}
    _, text = check(page)
    assert "57 evaluations; of each policy the last in metrics.csv, 20 at most:" in text
    assert "environments rebuilt: 3" in text and "updates skipped: 6" in text


def test_curves_and_evaluations_begin_where_the_run_last_started(tmp_path):
    run = make_run(tmp_path / "run", rows=0)
    rows = ("500,1,5.0", "900,2,6.0", "700,1,7.0", "1100,2,8.0")
    lines = ["env_steps,evaluations,evaluation_return", *rows, ""]
    (run.path / "metrics.csv").write_text("\n".join(lines))
    assert [row["env_steps"] for row in report_curves._rows(run)] == [700, 1100]
    assert [row[1:3] for row in report._evaluations_of(run)[0]] == [["700", "7"], ["1,100", "8"]]


def test_a_run_without_rows_has_a_page(tmp_path):
    run = make_run(tmp_path / "run", rows=0)
    _, text = check(report.make_report(run))
    assert "There are no metrics yet." in text and "Settings" in text
    with pytest.raises(ConfigError, match=r"--video=.* is no \.mp4 or \.gif file"):
        report.report(["distrl report", str(run.path), "--video=nothing.mp4"])


def test_names_that_a_locale_could_not_decode_are_utf8(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    config = json.loads((run.path / "config.json").read_text())
    name = "läuf".encode().decode("ascii", "surrogateescape")
    config["command"] = ["distrl train", f"--run_dir={name}"]
    (run.path / "config.json").write_text(json.dumps(config))
    assert report.report(["distrl report", str(run.path)]) == 0
    assert "--run_dir=läuf" in (run.path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("text", ["", '{"status": "fin', "[]", "null"])
def test_a_damaged_result_costs_a_line(tmp_path, capsys, text):
    run = make_run(tmp_path / "run")
    (run.path / "result.json").write_text(text)
    assert (run.status, run.result) == ("damaged", {}) and "status='damaged'" in repr(run)
    assert report.report(["distrl report", str(run.path)]) == 0
    err = capsys.readouterr().err
    assert err == f"distrl: {run.path}/result.json is damaged: the page lacks it\n"


def test_settings_of_an_experiment_without_names(tmp_path):
    run = make_run(tmp_path / "run")
    config = run.config
    config["classes"]["environment"] = "Mine"
    changed, than = report.changed_settings(config)
    assert than == "the defaults"
    known = {name for name, _, _ in changed}
    assert "environment.name" not in known
    assert all(hasattr(Experiment, name.partition(".")[0]) for name in known)


@pytest.mark.parametrize("kind", ["NativeEnvironment", "PythonEnvironment"])
def test_a_module_that_a_run_names_is_not_imported(tmp_path, monkeypatch, kind):
    run = make_run(tmp_path / "a-run")
    (run.path / "code.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    config, name = run.config, "a-run.code:Mine-v0"
    config["classes"] |= {"environment": kind, "environment.builder": "GymBuilder"}
    config["experiment"]["environment"] = {
        "name": f"gym:{name}" if kind == "NativeEnvironment" else name,
        "builder": {"suite": "gym", "name": name},
    }
    _, than = report.changed_settings(config)
    assert than == "the defaults"
    assert "a-run.code" not in sys.modules


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12_500, "12.5k"), (3e6, "3M"), (0.00025, "0.00025"), (-7, "-7")]
)
def test_short_numbers(value, text):
    assert charts.short(value) == text


def test_ticks_are_round():
    assert charts._ticks(0, 10) == [0, 5, 10]
    assert charts._ticks(-1, 1) == [-1, -0.5, 0, 0.5, 1]


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (1000, 1001, ["1k", "1.0005k", "1.001k"]),
        (20_000, 20_003, ["20k", "20.001k", "20.002k", "20.003k"]),
        (0, 4000, ["0", "2k", "4k"]),
        (-0.25, 0.25, ["-0.2", "0", "0.2"]),
        (1_234_567, 1_234_567.5, [f"1.234567{k}M" for k in ("", 2, 4)]),
        (1.0, np.nextafter(1.0, 2.0), ["1"] * 5),  # there is nothing between them
        (-99_999.5, -99_999, ["-99.9994k", "-99.9992k", "-99.999k"]),
    ],
)
def test_the_texts_of_an_axis_differ(low, high, texts):
    y = np.array([low, high], float)
    figure = charts.chart("", [charts.ChartLine("a", np.arange(2.0), y)], "env steps")
    assert re.findall(r'text-anchor="end">([^<]*)<', figure) == texts
