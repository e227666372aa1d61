"""Launches with real processes, in each of which one operation of the launcher is refused.

    python refused_launches.py FOLDER

Prints a line of JSON for each: the operation, and what became of the launch.
"""

import contextlib
import io
import json
import os
import pathlib
import signal
import sys

import pytest

from distrl.errors import ConfigError
from distrl.launch.local.launch import launch
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import current_heartbeat
from tests.support.nodes import function_node, new_program
from tests.support.refusals import Refusals

RESTARTED = ("replay", "learner", "actor")


def save(folder: pathlib.Path) -> None:
    """The learner: saves when it is asked to stop."""
    node_context.stop_event().wait()
    (folder / "saved").touch()


def act(die: bool) -> None:
    if die and not current_heartbeat().restarted:
        os.kill(os.getpid(), signal.SIGKILL)
    node_context.stop_event().wait()


def finish() -> None:
    """The monitor: ends the program once an actor has been restarted."""
    node_context.stop_event().wait(0.7)
    node_context.program_stopper()("goal reached")
    node_context.stop_event().wait()


def run(folder: pathlib.Path, refusals: Refusals) -> Result:
    program = new_program("refused")
    for label, function, *arguments in (
        ("replay", act, False),
        ("monitor", finish),
        ("learner", save, folder),
        ("actor", act, True),
        ("actor", act, False),
    ):
        with program.group(label):
            program.add_node(function_node(function, *arguments))
    folder.mkdir()
    policies = {label: RestartPolicy(100) for label in RESTARTED}
    with pytest.MonkeyPatch.context() as patch, refusals.counting(patch):
        return launch(program, run_dir=folder / "run", restart_policies=policies)


def describe(folder: pathlib.Path, number: int) -> dict[str, object]:
    refusals = Refusals(number)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            result = run(folder, refusals)
        except ConfigError:
            return {"operation": refusals.operations[number], "status": "refused"}
        except Exception as error:
            return {"operation": refusals.operations[number], "status": repr(error)}
    return {
        "operation": (*refusals.operations, *["none"] * number)[number],
        "status": result.status,
        "reason": result.reason,
        "exit_code": result.exit_code,
        "saved": (folder / "saved").exists(),
    }


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    refusals = Refusals()
    with contextlib.redirect_stderr(io.StringIO()):
        assert run(folder / "none", refusals).exit_code == 0
    operations = refusals.operations
    last = {operation: number for number, operation in enumerate(operations)}
    for number in last.values():
        print(json.dumps(describe(folder / str(number), number)), flush=True)


if __name__ == "__main__":
    main()
