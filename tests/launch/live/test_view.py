"""The status as lines of a terminal."""

import json
import re
import time
from pathlib import Path

import pytest

from distrl.launch.live.progress import duration_text, read_progress, time_text
from distrl.launch.live.view import View, render

METRICS = {
    "seconds": 3723.4,
    "env_steps": 812_160,
    "learner_steps": 635,
    "episodes": 9031,
    "mean_return": 402.13,
    "std_return": 12.0,
    "evaluation_return": 410.0,
    "loss": 0.25,
    "success_rate": 0.85,
    "policy_lag_mean": 1.42,
    "policy_lag_p95": 3.0,
    "policy_lag_max": 4.0,
    "table_size": 12,
}
SENTENCE = (
    "bottleneck: environments (62 % of the actors' time; the learner waits for samples 40 % of its "
    "time). One more actor: +50 % steps/s; a learner twice as fast: +0 % steps/s"
)


def progress(**changes):
    return {
        "monotonic": time.monotonic(),
        "metrics": METRICS,
        "rates": {"env_steps": 131_000.0, "learner_steps": 4.25},
        "table_max": 64,
        "progress": [
            {"name": "mean_return", "value": 402.1, "wanted": 475.0},
            {
                "name": "max_env_steps",
                "value": 812_160,
                "wanted": 1_000_000,
                "seconds_left": 130.0,
            },
        ],
        "nodes": {
            "actor/0": {"env_step": 0.6, "inference": 0.3, "replay_write": 0.1},
            "actor/1": {"env_step": 0.4, "inference": 0.6},
            "learner/0": {"sample_wait": 0.4, "compute": 0.599, "publish": 0.001},
        },
        "bottleneck": SENTENCE,
        **changes,
    }


def node(state="up", **facts):
    return {"status": state, "life": 0, "cores": 0.98, "resident_mb": 210.4, **facts}


STATUS = {
    "nodes": {
        "learner/0": node(seconds_since_progress=None),
        "actor/0": node(seconds_since_progress=12.0),
        "actor/1": {"status": "restarting", "life": 2},
    }
}


@pytest.mark.parametrize("width", [79, 159])
def test_no_line_is_wider_than_the_terminal(width):
    lines = render(STATUS, {"": progress()}, width, 30, coloured=False)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "1:02:03   env steps 812,160 (131,000/s)   updates 635 (4.2/s)" in text
    assert "return 402.1 +- 12.0   evaluation 410   loss 0.25   success 85 %" in text
    assert "mean return 402.1 of 475" in text
    assert "env steps 812,160 of 1,000,000, 81 %, 0:02:10 left" in text
    assert re.search(r"actor/1 +restarting +2 +- +- +env step 40 %", text) is None  # 60 % is more
    assert re.search(r"actor/1 +restarting +2 +- +- +inference 60 %  env step 40 %", text)
    assert "no progress for 12 s" in text
    assert " ".join(SENTENCE.split()) in " ".join(text.split())  # wrapped by words, and whole
    if width == 159:
        assert "lag 1.4 (p95 3, max 4)   table 12 of 64 unrolls" in text
        assert "compute 60 %  sample wait 40 %" in text and "publish" not in text


def test_nodes_without_room_are_shown_as_groups():
    lines = render(STATUS, {"": progress()}, 120, 9, coloured=False)
    assert len(lines) <= 9
    (actors,) = [line for line in lines if line.startswith("actor ")]
    assert "1 restarting, 1 up" in actors
    assert "env step 50 %  inference 45 %  replay write 5 %" in actors


def test_a_program_that_has_said_nothing_yet_has_its_nodes():
    lines = render(STATUS, {}, 80, 24, coloured=False)
    assert [line.split()[0] for line in lines] == ["node", "learner/0", "actor/0", "actor/1"]
    assert render({}, {}, 80, 24)  # not even its nodes


DAMAGED = ["", "\0" * 8, '{"time": 1.0, "metr', "[]", '{"time": 1.0}']


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, data: str):
    """As after a power cut: the resumed program has not written it again at its first tick."""
    (tmp_path / "progress.json").write_text(data)
    assert read_progress(tmp_path) == {}
    lines = View(tmp_path).lines(STATUS, 80, 24)
    assert lines == View(tmp_path / "none yet").lines(STATUS, 80, 24)


def test_a_damaged_file_of_one_task_leaves_the_others(tmp_path: Path):
    for task, data in (("a", ""), ("b", json.dumps(progress()))):
        (tmp_path / "tasks" / task).mkdir(parents=True)
        (tmp_path / "tasks" / task / "progress.json").write_text(data)
    assert list(read_progress(tmp_path)) == ["b"]


def test_old_figures_are_marked():
    old = progress(monotonic=time.monotonic() - 100)
    assert any("these figures are 100 s old" in line for line in render({}, {"": old}, 80, 24))


@pytest.mark.parametrize("clock", [0.0, 1e9])
@pytest.mark.parametrize("age", [0.0, 1000.0])
def test_the_age_of_figures_is_right_on_another_host(tmp_path: Path, clock: float, age: float):
    """Of a shared folder, or after a restart of this host: its clock since boot is another."""
    written = progress(monotonic=clock, boot="another", time=time.time() - age)
    (tmp_path / "progress.json").write_text(json.dumps(written))
    text = "\n".join(View(tmp_path).lines({}, 80, 24))
    said = re.search(r"these figures are (\d+) s old", text)
    assert age <= (0 if said is None else int(said[1])) < age + 900


def test_unknown_figures_are_left_out_or_dashes():
    metrics = {**dict.fromkeys(METRICS), "seconds": 1.0, "env_steps": 0, "learner_steps": 0}
    metrics["episodes"] = 0
    parts = [{"name": "max_seconds", "value": 0.0, "wanted": 60, "seconds_left": None}]
    task = progress(metrics=metrics, progress=parts, bottleneck=None, nodes={})
    lines = render({}, {"": task}, 80, 24, coloured=False)
    assert lines[1] == "return -"
    assert "seconds 0 of 60, 0 %" in lines[2] and "left" not in lines[2]


def test_texts():
    assert duration_text(59.6) == "0:01:00" and duration_text(200_000) == "2 d 7:33:20"
    assert time_text({"a_b": 0.2, "c": 0.795, "d": 0.005}) == "c 80 %  a b 20 %"
