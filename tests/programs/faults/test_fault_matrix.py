"""Each node, each way to go wrong, each topology and replay: healed or ended, as its rule says.

`make faults` runs the whole matrix and prints a table of it; the quick tests have a few cells.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.commands import ROOT, Command, skip_without_reverb
from tests.support.waiting import until

NODES = ("actor/0", "inferencer/0", "evaluator/0", "learner/0", "monitor/0", "replay/0")
KINDS = ("raise", "exit", "sigkill", "sigsegv", "sigstop", "loop", "block", "constructor")
RESTARTABLE = {"actor", "inferencer", "evaluator", "learner", "replay"}
BOUND_S = 60.0  # on a busy machine; the program's limits are 4, 15 and 2 s

CAUSES = {
    "raise": "RuntimeError: injected",
    "exit": "exited with status 3",
    "sigkill": "was killed by SIGKILL",
    "sigsegv": "was killed by SIGSEGV",
    "sigstop": "was stopped by a signal (SIGSTOP)",
    "loop": "made no progress for",
    "block": "made no progress for",
    "constructor": "RuntimeError: injected",
}


class Cell(NamedTuple):
    """One field of the matrix."""

    topology: str
    backend: str
    node: str
    kind: str
    launch_type: str = "local_mp"
    always: bool = False

    @property
    def restartable(self) -> bool:
        """Whether the program is to go on."""
        label = self.node.partition("/")[0]
        if self.always or (self.launch_type != "local_mp" and self.kind in ("loop", "block")):
            return False
        return label in RESTARTABLE

    @property
    def applies(self) -> bool:
        """Whether there is such a thing."""
        label = self.node.partition("/")[0]
        if label == "inferencer" and self.topology != "light_env":
            return False
        if label == "inferencer" and self.kind == "raise":
            return False  # its callers get the error, and it goes on
        if label == "monitor" and self.kind in ("raise", "block"):
            return False  # the same
        if label == "replay" and self.kind in ("raise", "block", "constructor"):
            return self.kind == "constructor" and self.backend == "shared_memory"
        if label == "replay" and self.kind == "loop":
            return False
        if self.launch_type != "local_mp":
            return self.kind in ("raise", "constructor", "block")
        return True


class Program(Command):
    """The faulty program."""

    def __init__(self, folder: Path, cell: Cell):
        flags = [cell.topology, cell.backend, cell.launch_type, *["always"] * cell.always]
        module = ("tests.programs.faults.faulty_program", "{}", cell.node, cell.kind)
        super().__init__(folder, *flags, module=module)

    def until(self, condition: Callable[[], bool], what: str, timeout: float = BOUND_S) -> float:
        """See `waiting.until`; a failure shows the program's output."""
        return until(condition, lambda: f"{what}\n{self.output}", timeout)


def cells() -> list[Cell]:
    spreads = [(t, b) for t in ("light_env", "heavy_env") for b in ("shared_memory", "reverb")]
    found = [Cell(*spread, node, kind) for spread in spreads for node in NODES for kind in KINDS]
    found += [
        Cell("light_env", "shared_memory", node, kind, "local_mt")
        for node in NODES
        for kind in KINDS
    ]
    found += [
        Cell("light_env", "shared_memory", "actor/0", kind, always=True)
        for kind in ("raise", "constructor", "sigsegv")
    ]
    return [cell for cell in found if cell.applies]


QUICK = {
    Cell("light_env", "shared_memory", "actor/0", "sigstop"),
    Cell("light_env", "shared_memory", "actor/0", "raise", always=True),
}
FULL = {
    Cell("light_env", "shared_memory", "inferencer/0", "loop"),
    Cell("heavy_env", "shared_memory", "actor/0", "block"),
}


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    return [] if cell in QUICK else [pytest.mark.full if cell in FULL else pytest.mark.slow]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "cell",
    [pytest.param(c, marks=marks(c), id="-".join(map(str, c)))
     for c in cells()],
)  # fmt: skip
def test_fault(tmp_path, record_property, cell):
    skip_without_reverb(cell.backend)
    program = Program(tmp_path, cell)
    try:
        outcome, seconds = watch(program, cell)
    finally:
        program.end()
    table = os.environ.get("DISTRL_FAULT_TABLE")
    if table:
        with open(table, "a") as file:
            file.write(json.dumps([*cell, outcome, round(seconds, 1)]) + "\n")


def watch(program: Program, cell: Cell) -> tuple[str, float]:
    """Has the fault happen; returns what came of it, and how soon."""
    label = cell.node.partition("/")[0]
    if cell.kind != "constructor":
        program.until(lambda: program.learner_steps() > 0, "training", 90.0)
        if label == "evaluator":
            program.until(lambda: "evaluation" in program.output, "evaluation", 90.0)
        (program.run_dir / "now").touch()
    cause = CAUSES[cell.kind]
    where = f"{cell.node}: {cause}" if "injected" in cause else f"{cell.node} {cause}"
    if cell.restartable:
        again = re.compile(rf"^distrl: {re.escape(where)}.*: restarting", re.MULTILINE)
        seconds = program.until(lambda: again.search(program.output) is not None, again.pattern)
        # It goes on: the goal is out of reach, and steps are counted again.
        before = program.learner_steps()
        seconds += program.until(lambda: program.learner_steps() > before + 5, "more steps")
        program.process.send_signal(2)
        code = program.process.wait(BOUND_S)
        assert code == 130, program.output
        program.check_nothing_left()
        nodes = json.loads((program.run_dir / "result.json").read_text())["nodes"]
        assert nodes[cell.node]["causes"], nodes
        return "started again", seconds
    begin = time.monotonic()
    code = program.process.wait(90.0 + BOUND_S)
    seconds = time.monotonic() - begin
    assert code == 1, program.output
    result = json.loads((program.run_dir / "result.json").read_text())
    assert result["failed_node"] == cell.node, program.output
    assert cause in result["reason"], result
    assert f"---- {cell.node} failed first: " in program.output
    program.check_nothing_left()
    return "ends, named", seconds


@pytest.mark.full
@pytest.mark.timeout(120)
def test_status_and_stacks_of_a_program_of_which_a_node_is_blocked(tmp_path):
    program = Program(tmp_path, Cell("heavy_env", "shared_memory", "actor/0", "block"))
    try:
        program.until(lambda: program.learner_steps() > 0, "training", 90.0)
        (program.run_dir / "now").touch()
        program.until(lambda: "now: block" in program.output, "the fault")
        found = {
            command: subprocess.run(
                [sys.executable, "-m", "distrl", command, str(program.run_dir), *node],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            ).stdout
            for command, node in (("stacks", ["actor/0"]), ("status", []))
        }
    finally:
        program.end()
    assert "==== actor/0, process" in found["stacks"]
    assert re.search(r"misbehave \(.*faulty_program.py:\d+\)", found["stacks"])
    for node in ("replay/0", "learner/0", "actor/1"):
        assert re.search(rf"^{node} +\d+ up +0 ", found["status"], re.MULTILINE)
