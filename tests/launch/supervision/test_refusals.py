"""Every operation of a launcher on files, processes and sockets refused, one at a time.

In the quick tests its processes and its clock are simulated; all else is what runs in production.
"""

import contextlib
import gc
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distrl.errors import ConfigError
from distrl.launch.local import launch
from distrl.launch.supervision.requests import send_requests
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.launch.supervision.result import Result
from tests.support.commands import finish
from tests.support.refusals import Refusals
from tests.support.simulated import Kernel, SimulatedProcess, empty_program

GROUPS = ("replay", "monitor", "learner", "actor", "actor")
END_S = 6.0
SAVE_S = 5.0  # more than nodes get that save nothing
TRACEBACK = 'Traceback:\n  File "environment.py", line 3, in step\nKeyError: 3\n'


class Run:
    """A run of six seconds in which an actor dies, one raises, and one is scaled away.

    Attributes:
      result: what `launch` returned; None if it refused to start.
      reached: whether the monitor has asked for the end.
    """

    def __init__(self, run_dir: Path, refusals: Refusals):
        self.run_dir = run_dir
        self.refusals = refusals
        self.kernel = Kernel(self._script)
        self.result: Result | None = None
        self.reached = False

    def _script(self, process: SimulatedProcess) -> None:
        after = self.kernel.after
        process.stops_in = SAVE_S if process.name == "learner/0" else 0.1
        after(0.1, lambda: process.say("running"))
        after(0.2, lambda: process.print("hello\n"))
        if process.name == "monitor/0":
            after(3.0, lambda: send_requests(self.run_dir, {"actor": 1}))
            after(4.0, lambda: send_requests(self.run_dir, {"actor": 2, "stacks": ["learner/0"]}))
            after(END_S, self._reach)
        elif process.name == "actor/0" and process.life == 0:
            after(1.5, lambda: process.end(9))
        elif process.name == "actor/1" and process.life == 0:
            after(2.0, lambda: process.say("failure", "KeyError: 3", traceback=TRACEBACK))
            after(2.1, lambda: process.end(1 << 8))

    def _reach(self) -> None:
        self.reached = True
        self.kernel.of("monitor/0")[-1].say("stop", "goal reached")

    def go(self, monkeypatch: Any) -> None:
        with monkeypatch.context() as patch:
            self.kernel.take_over(patch, self.refusals.pause)
            with self.refusals.counting(patch):
                self.result = launch.launch(
                    empty_program(*GROUPS),
                    run_dir=self.run_dir,
                    terminal="output_to_files",
                    restart_policies={
                        group: RestartPolicy(100) for group in ("replay", "learner", "actor")
                    },
                )

    def check(self, capsys: Any) -> None:
        """Checks that nothing was lost and that the result says the truth."""
        said = capsys.readouterr().err
        assert all(process.status is not None for process in self.kernel.processes)
        if self.result is None:  # the ConfigError is its one line
            assert self.kernel.processes == []
            return
        learner = self.kernel.of("learner/0")
        assert learner[-1].saved, "the learner did not save"
        assert len(learner) == 1, "the learner lost its last updates"
        assert (self.result.exit_code == 0) == (self.result.status == "finished")
        if self.result.status == "finished":
            assert self.reached and self.result.reason == "goal reached"
            assert {
                name: exit_.state for name, exit_ in self.result.nodes.items()
            } == dict.fromkeys(self.result.nodes, "ended")
        assert f"(exit status {self.result.exit_code};" in said
        if "result.json could not be written" not in self.result.reason:
            written = json.loads((self.run_dir / "result.json").read_text())
            assert written["status"] == self.result.status


def descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{fd}"):
            yield fd


def run_refused(folder: Path, number: int | None, monkeypatch: Any, capsys: Any) -> Run:
    """Runs the program with one operation refused, or none, and checks the outcome."""
    run = Run(folder / str(number), Refusals(number))
    before = set(descriptors())
    with contextlib.suppress(ConfigError):
        run.go(monkeypatch)
    run.check(capsys)
    if run.result is None:
        gc.collect()  # it may be the last reference to a socket
    assert set(descriptors()) <= before
    return run


def check_each(
    numbers: Iterable[int], operations: list[str], folder: Path, monkeypatch: Any, capsys: Any
) -> None:
    failures = []
    for number in numbers:
        try:
            run = run_refused(folder, number, monkeypatch, capsys)
            if run.result is not None and run.result.status != "finished":
                assert re.search(r"monitor/0 could not be started|but result", run.result.reason)
        except Exception as error:
            failures.append(f"{number}: {operations[number]}: {type(error).__name__}: {error}")
    assert failures == []


@pytest.fixture
def operations(tmp_path, monkeypatch, capsys) -> list[str]:
    """The operations of a run in which none is refused."""
    run = run_refused(tmp_path, None, monkeypatch, capsys)
    assert run.result is not None and run.result.status == "finished"
    assert len(run.refusals.operations) > 300
    return run.refusals.operations


def test_one_of_each_operation(operations, tmp_path, monkeypatch, capsys):
    """Its last occurrence: once all nodes run, or as they end."""
    last = {operation.partition(" ")[0]: number for number, operation in enumerate(operations)}
    check_each(last.values(), operations, tmp_path, monkeypatch, capsys)


@pytest.mark.timeout(600)  # 40 s on an idle machine
def test_every_operation(operations, tmp_path, monkeypatch, capsys):
    check_each(range(len(operations)), operations, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_each_kind_of_operation_with_real_processes(tmp_path):
    program = [sys.executable, "-m", "tests.launch.supervision.refused_launches", str(tmp_path)]
    done = finish(program, timeout=900.0)
    assert done.returncode == 0, done.stderr
    launches = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(launches) > 60
    lost = [
        each
        for each in launches
        if each["status"] != "refused"
        and not (each.get("saved") and (each["exit_code"] == 0) == (each["status"] == "finished"))
    ]
    assert lost == []
