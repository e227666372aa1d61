"""`distrl launch`: Launchpad's own examples, programs of each kind of node, and refusals."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, distrl

pytest.importorskip("launchpad")  # here: `status_of` removes the flags that a command defines

PROGRAMS = ROOT / "tests" / "support" / "programs"
OWN, MIXED = str(PROGRAMS / "own.py"), str(PROGRAMS / "mixed.py")
EXAMPLES = "launchpad.examples"


def result(folder: Path) -> dict:
    (run,) = (folder / "runs").iterdir()
    return json.loads((run / "result.json").read_text())


def test_hello_world(tmp_path):
    done = distrl(tmp_path, "launch", f"{EXAMPLES}.hello_world.launch:make_program")
    assert done.returncode == 0, done.stderr
    assert "[hello_printer/0] Hello World!!!" in done.stdout
    ended = result(tmp_path)
    assert (ended["status"], ended["reason"]) == ("finished", "all nodes have returned")
    assert ended["nodes"]["hello_printer/0"]["state"] == "ended"


@pytest.mark.full
def test_hello_world_in_threads(tmp_path):
    done = distrl(tmp_path, "launch", f"{EXAMPLES}.hello_world.launch", "--lp_launch_type=local_mt")
    assert (done.returncode, result(tmp_path)["status"]) == (0, "finished"), done.stderr


@pytest.mark.full
@pytest.mark.parametrize("mode", ["local_mp", "local_mt"])
def test_consumer_producers(tmp_path, mode):
    """With a flag of the program's, written as absl allows."""
    options = ("--num_producers", "3", f"--lp_launch_type={mode}")
    done = distrl(tmp_path, "launch", f"{OWN}:producers", *options)
    assert (done.returncode, result(tmp_path)["status"]) == (0, "finished"), done.stderr
    assert (done.stdout + done.stderr).count("Results: [0, 1, 2]") == 10


@pytest.mark.full
def test_program_wait(tmp_path):
    """Its nodes take two seconds to clean up after the stop."""
    done = distrl(tmp_path, "launch", f"{OWN}:waiting")
    assert (done.returncode, result(tmp_path)["status"]) == (0, "finished"), done.stderr
    for name in ("_sleep", "_wait_for_stop", "_stop_event", "_register_stop_handler"):
        assert f"Clean termination of {name} node" in done.stderr + done.stdout
    assert {node["state"] for node in result(tmp_path)["nodes"].values()} == {"ended"}


@pytest.mark.full
def test_termination_notice_is_launchpads(tmp_path):
    """Nodes that take two seconds to end are killed after one."""
    done = distrl(tmp_path, "launch", f"{OWN}:waiting", "--lp_termination_notice_secs=1")
    assert done.returncode == 0, done.stderr
    assert "did not stop within 1 s" in done.stderr


@pytest.mark.full
def test_each_kind_of_node(tmp_path, monkeypatch):
    """Some return, one is restarted first, and others serve until the program is stopped."""
    monkeypatch.setenv("PROGRAM_FOLDER", str(tmp_path / "run"))
    options = (f"--run_dir={tmp_path / 'run'}", "--restart=failing=2,table")
    done = distrl(tmp_path, "launch", MIXED, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("caller: returns", "sampled 3.0", "second life returns", "counter: cleaned up"):
        assert text in done.stdout, text
    ended = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (ended["reason"], len(ended["nodes"])) == ("last/0 asked to stop", 6)
    assert ended["nodes"]["failing/0"]["causes"] == ["ValueError: the first life"]


@pytest.mark.full
def test_a_failure_ends_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PROGRAM_FOLDER", str(tmp_path))
    done = distrl(tmp_path, "launch", MIXED)
    assert done.returncode == 1, done.stderr
    assert result(tmp_path)["reason"] == "failing/0: ValueError: the first life"


@pytest.mark.full
def test_resources_and_flags_of_the_program(tmp_path):
    """The file imports a module beside it; its flag has the name of one of ours."""
    options = ("--local_resources=RESOURCES", "--", "--restart=its")
    done = distrl(tmp_path, "launch", f"{OWN}:printer", *options)
    assert done.returncode == 0, done.stderr
    assert "[printer/0] hello 3 its neighbour" in done.stdout


def test_what_lies_beside_the_program_hides_no_module(tmp_path):
    """Neither ours nor others: its folder comes last on the path."""
    for name in ("distrl", "launch", "programs", "launchpad", "reverb", "json"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')")
    text = "import json, launchpad as lp, mine\nprogram = lp.Program(mine.NAME)\n"
    (tmp_path / "own.py").write_text(f"{text}program.add_node(lp.PyNode(print, 'ran'), 'a')\n")
    (tmp_path / "mine.py").write_text("NAME = 'beside'")
    (tmp_path / "elsewhere").mkdir()
    done = distrl(tmp_path / "elsewhere", "launch", "../own.py:program")
    assert done.returncode == 0, done.stderr
    assert "[a/0] ran" in done.stdout


REFUSED = {
    "no program": ([], "launch: name a program, as in `distrl launch FILE.py:NAME`"),
    "no file": (["nowhere.py:f"], "launch: no file 'nowhere.py'"),
    "no module": (["nowhere.own:f"], "launch: no module 'nowhere', and 'nowhere.own' is no .py"),
    "no name": ([f"{OWN}:wating"], "defines no 'wating'"),
    "no program under the name": ([f"{OWN}:nothing"], "must be an lp.Program or a function"),
    "arguments": ([f"{OWN}:with_arguments"], "with_arguments of"),
    "flag": ([f"{OWN}:printer", "--num_producer=3"], "Did you mean: num_producers"),
    "value": ([f"{OWN}:producers", "--num_producers=x"], "flag --num_producers=x"),
    "argument": ([f"{OWN}:printer", "x"], "unexpected argument 'x'"),
    "launch type": (
        [f"{OWN}:printer", "--lp_launch_type=vertex_ai"],
        "<local_mp|local_mt|test_mt>",
    ),
    "the value of a flag is no program": (
        ["--lp_launch_type", "local_mt", f"{OWN}:printer", "--local_resources=RESOURCES"],
        "--lp_launch_type=local_mt runs nodes as threads, which share one environment",
    ),
    "group": ([f"{OWN}:printer", "--restart=print"], "--restart: no group 'print'; the program's"),
    "restarts": ([f"{OWN}:printer", "--restart=printer=x"], "--restart=printer=x: expected a num"),
    "node": ([f"{OWN}:printer", "--debug=print/0"], "no such node; the nodes are printer/0"),
    "resources in threads": (
        [f"{OWN}:printer", "--local_resources=RESOURCES", "--lp_launch_type=local_mt"],
        "--lp_launch_type=local_mt runs nodes as threads, which share one environment",
    ),
    "arguments of a process": (
        [f"{OWN}:printer", "--local_resources=ARGUMENTS"],
        "local_resources['printer'].args: nodes are forked and take no arguments; use env",
    ),
    "no resources": ([f"{OWN}:printer", "--local_resources=nothing"], "must be a mapping"),
    "colocation": (
        [f"{OWN}:in_processes"],
        "group/0: MultiProcessingColocation starts processes that are not supervised; add its",
    ),
    "folder": ([f"{OWN}:printer", f"--run_dir={PROGRAMS}"], "is not empty and not the folder"),
}


@pytest.fixture
def as_new(monkeypatch):
    """Undoes what a program's file leaves in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield
    for name in {"own", "neighbour"} - modules:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("as_new")
@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(status_of, capfd, arguments, message):
    assert status_of("launch", *arguments) == 2
    error = capfd.readouterr().err
    assert message in error
    assert (error.count("\n"), error[:8]) == (1, "distrl: "), error


def test_the_folder_of_a_run_is_refused(status_of, capfd, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"topology": "heavy_env", "experiment": {}}')
    assert status_of("launch", f"{EXAMPLES}.hello_world.launch", "--run_dir=run") == 2
    assert "is not empty and not the folder of such a program" in capfd.readouterr().err
