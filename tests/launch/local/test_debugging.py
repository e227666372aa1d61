"""Breakpoints, pdb at the first failure, and the stacks of a running program."""

import bdb
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.errors import ConfigError, EnvironmentFault
from distrl.launch.local import debugging
from distrl.launch.local.debugging import Debug
from tests.support.commands import EXPERIMENTS, ROOT
from tests.support.selection import full, slow

EXPERIMENT = EXPERIMENTS / "debugged.py"


def train(folder: Path, typed: str, *flags: str) -> tuple[int, str]:
    """Runs the command with these lines at its prompt; exit status and output."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "distrl",
            "train",
            f"--run_dir={folder / 'run'}",
            *flags,
        ],
        cwd=ROOT,
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    return done.returncode, done.stdout


SPREADS = {
    "single_process": ("--topology=single_process",),
    "one node": ("--topology=light_env", "--debug=actor/0"),
    "threads": ("--topology=heavy_env", "--lp_launch_type=local_mt", "--debug=all"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "spread",
    ["single_process", full("one node"),
     slow("threads")],
)  # fmt: skip
def test_a_breakpoint_in_an_environment_is_hit(tmp_path, spread):
    code, output = train(
        tmp_path,
        "p 'steps', self.steps\nimport os\nos._exit(7)\n" if spread != "one node" else
        "p 'steps', self.steps\ncontinue\n",
        f"--experiment={EXPERIMENT}:stopping", *SPREADS[spread],
    )  # fmt: skip
    # Other nodes' lines come between a prompt and what is printed there.
    assert "(Pdb) " in output and "('steps', 20)" in output, output
    # What ends the program's process in the middle of its work has not succeeded.
    assert code == (0 if spread == "one node" else 1), output


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "spread",
    ["single_process", full("threads"),
     slow("one node")],
)  # fmt: skip
def test_the_first_failure_opens_pdb_where_it_was_raised(tmp_path, spread):
    flags = SPREADS[spread] + (("--debug=all",) if spread == "single_process" else ())
    code, output = train(
        tmp_path,
        "p 'shelf is', self.shelf\nquit\n",
        f"--experiment={EXPERIMENT}:failing", *flags,
    )  # fmt: skip
    assert "KeyError" in output
    assert "(Pdb) " in output and "('shelf is', 'empty')" in output, output
    assert code == 1, output


def test_what_cannot_be_debugged_is_refused():
    assert Debug.parse("actor/0") == Debug("actor/0")
    assert Debug.parse("actor/0:5678") == Debug("actor/0", 5678)
    for text in ("", ":5678", "actor/0:x:y"):
        with pytest.raises(ConfigError, match="write NODE or NODE:PORT"):
            Debug.parse(text)


def test_a_node_without_a_terminal_skips_breakpoints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    debugging.skip_breakpoints("actor/1")
    for _ in range(3):
        breakpoint()
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "test_debugging.py:" in err
    assert err.endswith("breakpoint() is skipped: to stop here, start with --debug=actor/1\n")
    hook = object()
    monkeypatch.setattr(sys, "breakpointhook", hook)
    monkeypatch.setenv("PYTHONBREAKPOINT", "ipdb.set_trace")
    debugging.skip_breakpoints("actor/1")
    assert sys.breakpointhook is hook


def test_pdb_without_a_terminal_is_refused(monkeypatch, capsys):
    debugging.check_terminal("all", in_nodes=False)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.setattr(debugging, "_has_terminal", True)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    debugging.use_no_terminal()
    breakpoint()
    remedy = "run `distrl train --experiment=FILE.py` with --debug=all\n"
    assert capsys.readouterr().err.endswith(f"breakpoint() is skipped: to stop here, {remedy}")
    for flag, in_nodes in (("all", False), ("actor/0:5678", False), ("actor/0", True)):
        with pytest.raises(ConfigError, match=f"--debug={flag}: there is no terminal for pdb here"):
            debugging.check_terminal(flag, in_nodes)
    debugging.check_terminal("actor/0:5678", in_nodes=True)
    debugging.check_terminal(None, in_nodes=False)


def test_an_editors_debugger_stops_where_there_is_no_terminal(monkeypatch):
    stops = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(True))
    monkeypatch.setattr(debugging, "_has_terminal", True)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    debugging.use_no_terminal()
    breakpoint()
    assert stops == [True]


def test_a_debugger_that_was_quit_names_the_flag():
    fault = EnvironmentFault("own: failed")
    fault.original = bdb.BdbQuit()
    for error in (bdb.BdbQuit(), fault):
        assert "--debug=NODE runs a node in yours" in debugging.explain_quit(error)
    assert debugging.explain_quit(ValueError("x")) == ""
    debugging.post_mortem(bdb.BdbQuit())  # opens nothing: there is no input here


def test_the_editors_configurations_are_those_of_the_commands():
    text = (ROOT / ".vscode" / "launch.json").read_text()
    configurations = json.loads(text)["configurations"]
    assert {each["type"] for each in configurations} == {"debugpy"}
    words = [word for each in configurations for word in each.get("args", ())]
    assert words[0] == "train" and "--topology=single_process" in words
