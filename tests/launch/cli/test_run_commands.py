"""`distrl status`, `stacks` and `actors` on the folder of a run, without the run."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from distrl.errors import ConfigError
from distrl.launch.commands import actors, stacks, status, top
from distrl.launch.supervision.requests import Requests
from distrl.launch.supervision.result import RESULT_FILE


def node(state: str = "up", **fields: Any) -> dict[str, Any]:
    pid = os.getpid() if state == "up" else None
    return {"status": state, "host": "", "pid": pid, "life": 0, "restarts": 0, **fields}


def write_status(run_dir: Path, nodes: dict[str, dict[str, Any]], launcher: int = 0) -> None:
    state = {"time": time.time(), "launcher": launcher or os.getpid(), "nodes": nodes}
    part = run_dir / "part"
    part.write_text(json.dumps(state))
    part.replace(run_dir / "status.json")


NODES = {
    "learner/0": node(cores=0.5, resident_mb=100.25, shared_mb=20.0, seconds_since_progress=None),
    "actor/0": node(cores=1.0, resident_mb=50.0, shared_mb=2.0, seconds_since_progress=7.2, life=3),
    "actor/1": node("restarting"),
    "actor/2": node("not started"),
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_status(tmp_path, NODES)
    return tmp_path


def test_status_shows_a_line_for_each_node(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    assert status.status(["distrl status", str(run_dir)]) == 0
    head, *lines, age = capsys.readouterr().out.splitlines()
    assert head.split() == ["node", "pid", "state", "life", "cores", "MB", "shared"]
    pid = str(os.getpid())
    assert [line.split() for line in lines] == [
        ["learner/0", pid, "up", "0", "0.50", "100.2", "20.0"],
        ["actor/0", pid, "up", "3", "1.00", "50.0", "2.0", "no", "progress", "for", "7", "s"],
        ["actor/1", "-", "restarting", "0"],
        ["actor/2", "-", "not", "started", "0"],
    ]
    assert age == "written 0 s ago"


def test_status_and_top_show_what_nodes_do_and_the_bottleneck(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
):
    metrics = {"seconds": 1.0, "env_steps": 7, "learner_steps": 1, "episodes": 0}
    progress = {
        "monotonic": time.monotonic(),
        "metrics": {**metrics, "mean_return": None},
        "rates": {"env_steps": 7.0, "learner_steps": 1.0},
        "progress": [],
        "nodes": {"learner/0": {"compute": 0.75, "sample_wait": 0.25}},
        "bottleneck": "bottleneck: learner (...)",
    }
    (run_dir / "progress.json").write_text(json.dumps(progress))
    assert status.status(["distrl status", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("  compute 75 %  sample wait 25 %")
    assert lines[-2] == "bottleneck: learner (...)"
    assert top.top(["distrl top", str(run_dir)]) == 0  # once: this is no terminal
    lines = capsys.readouterr().out.splitlines()
    assert "env steps 7 (7/s)" in lines[0] and "bottleneck: learner (...)" in lines[-1]


def test_status_names_hosts_where_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_status(tmp_path, {"actor/0": node(host="h2")})
    assert status.status(["distrl status", str(tmp_path)]) == 0
    head, line, _ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["node", "host"] and line.split()[:2] == ["actor/0", "h2"]


@pytest.mark.parametrize("command", [status.status, stacks.stacks])
def test_a_folder_without_a_running_program_is_refused(tmp_path: Path, command: Any):
    with pytest.raises(ConfigError, match=r"^(status|stacks): .*: no status\.json there"):
        command(["distrl", str(tmp_path)])
    write_status(tmp_path, NODES, launcher=2**22 + 1)  # above any pid
    with pytest.raises(ConfigError, match="its program, process 4194305, has ended, without a res"):
        command(["distrl", str(tmp_path)])
    result = {"status": "finished", "reason": "4,002 environment steps", "exit_code": 0}
    (tmp_path / RESULT_FILE).write_text(json.dumps(result))
    with pytest.raises(ConfigError, match=r": finished: 4,002 .* steps \(exit status 0\)$"):
        command(["distrl", str(tmp_path)])
    with pytest.raises(ConfigError, match="run folder, as in"):
        command(["distrl"])


def test_stacks_names_what_it_cannot_show(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(
        ConfigError, match=r"unknown node 'actor/7'; choose from: learner/0, actor/0, "
    ):
        stacks.stacks(["distrl stacks", str(run_dir), "actor/7"])
    write_status(run_dir, {**NODES, "actor/3": node("up", pid=None, host="h2")})
    assert stacks.stacks(["distrl stacks", str(run_dir), "actor/1", "actor/3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "==== actor/1: it is not running (restarting)",
        "==== actor/3: its process is not known yet (up)",
    ]


@pytest.mark.parametrize("number", ["0", "4"])
def test_actors_are_at_least_one_and_at_most_max_actors(run_dir: Path, number: str):
    with pytest.raises(ConfigError, match=rf"scale to {number}; this program can have 1 to 3 "):
        actors.actors(["distrl actors", str(run_dir), number])
    with pytest.raises(ConfigError, match="name a run folder and a number"):
        actors.actors(["distrl actors", str(run_dir), "many"])


def test_actors_of_a_run_in_lockstep_are_not_scaled(run_dir: Path):
    (run_dir / "config.json").write_text(json.dumps({"experiment": {"lockstep": True}}))
    with pytest.raises(ConfigError, match="in lockstep, whose schedule counts on all of its 3 "):
        actors.actors(["distrl actors", str(run_dir), "2"])


def test_actors_waits_until_they_run(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    taken: list[tuple[str, Any]] = []

    def launcher() -> None:
        deadline = time.monotonic() + 20.0
        while not taken and time.monotonic() < deadline:
            taken.extend(Requests(run_dir).take())
            time.sleep(0.01)
        write_status(run_dir, {**NODES, "actor/1": node()})

    thread = threading.Thread(target=launcher)
    thread.start()
    assert actors.actors(["distrl actors", str(run_dir), "2"]) == 0
    thread.join()
    assert taken == [("actor", 2)]
    assert capsys.readouterr().out == "2 actors running\n"


def test_actors_that_do_not_come_are_an_error_of_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actors, "_TIMEOUT_S", 0.1)
    assert actors.actors(["distrl actors", str(run_dir), "2"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "distrl: actors: not scaled to 2 within 0.1 s; running: actor/0; "
        f"see {run_dir}/logs/supervisor.log"
    )


@pytest.mark.parametrize("data", ["", '{"time": 1.0, "nod', "[]", '{"time": 1.0}'])
@pytest.mark.parametrize("command", [status.status, stacks.stacks])
def test_a_damaged_status_is_one_line(run_dir: Path, command: Any, data: str):
    (run_dir / "status.json").write_text(data)
    with pytest.raises(ConfigError, match=r"status\.json is damaged"):
        command(["distrl", str(run_dir)])


@pytest.mark.parametrize("data", ["", '{"time": 1.0, "metr', "[]", '{"time": 1.0}'])
@pytest.mark.parametrize("command", [status.status, top.top])
def test_damaged_figures_are_left_out(
    run_dir: Path, capsys: pytest.CaptureFixture[str], command: Any, data: str
):
    (run_dir / "progress.json").write_text(data)
    assert command(["distrl", str(run_dir)]) == 0
    assert "actor/0 " in capsys.readouterr().out


def test_a_suspended_launcher_is_named(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    with subprocess.Popen(["sleep", "60"]) as launcher:
        try:
            launcher.send_signal(signal.SIGSTOP)
            os.waitpid(launcher.pid, os.WUNTRACED)
            write_status(run_dir, NODES, launcher.pid)
            assert status.status(["distrl status", str(run_dir)]) == 0
            line = capsys.readouterr().out.splitlines()[-1]
            assert line.startswith(f"the launcher, process {launcher.pid}, is suspended")
            with pytest.raises(ConfigError, match=f"`kill -CONT {launcher.pid}` wakes it"):
                actors.actors(["distrl actors", str(run_dir), "2"])
        finally:
            launcher.kill()
