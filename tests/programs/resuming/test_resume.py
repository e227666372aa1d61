"""Programs that are killed or stopped at any time, and go on by the same command."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.errors import ConfigError
from distrl.programs.nodes.learner import LearnerNode
from distrl.programs.nodes.task_learner import LearnerSetup
from tests.support.commands import EXPERIMENTS, ROOT, processes_with, skip_without_reverb
from tests.support.selection import full, slow

STOPPING = EXPERIMENTS / "stopping.py"
FOREVER = ("--max_env_steps=1000000000", "--config.goal.mean_return=None")
OFTEN = ("--config.checkpoint.period=0.5", "--config.checkpoint.keep=2")
WAIT_S = 100.0


class Run:
    """The command in a session of its own, again and again in one run folder."""

    def __init__(self, folder: Path, *flags: str):
        self.run_dir = folder / "run"
        self._flags = flags
        self._output = folder / "output"
        self._mark = uuid.uuid4().hex
        self.process: subprocess.Popen | None = None

    def start(self, *flags: str) -> None:
        command = [sys.executable, "-m", "distrl", "train", f"--run_dir={self.run_dir}"]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *self._flags, *flags],
                cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
                # The longer a checkpoint takes, the more kills come in the middle of one.
                env={
                    **os.environ, "DISTRL_CHECKPOINT_REST": "0.02",
                    "DISTRL_TEST": self._mark,
                },
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, what: str | Callable[[], bool]) -> None:
        found = what if callable(what) else lambda: what in self.output
        deadline = time.monotonic() + WAIT_S
        while not found():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no sign of {what}:\n{self.output}")
            time.sleep(0.02)

    def end(self, number: int) -> int:
        """Sends a signal, to the launcher alone; gives the exit status.

        Nodes end a moment after a launcher that was killed, and may complete a checkpoint first.
        """
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(60.0)
        deadline = time.monotonic() + 60.0
        while left := processes_with(self._mark):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.02)
        return status

    def resumed(self) -> dict:
        """What the program loaded, once all of it is loaded."""
        path = self.run_dir / "resumed.json"
        parts = {"checkpoint", "learner", "table", "monitor"}
        self.wait_for(lambda: path.exists() and parts <= json.loads(path.read_text()).keys())
        return json.loads(path.read_text())

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def run(tmp_path):
    runs = []

    def make(*flags: str) -> Run:
        runs.append(Run(tmp_path, *flags))
        return runs[-1]

    yield make
    for made in runs:
        made.close()


def check_resumed(run: Run, manifest: dict, reverb: bool = False) -> None:
    """What was loaded is what the manifest says: of all parts."""
    found = run.resumed()
    for name in ("version", "env_steps", "consumed", "params_checksum", "learner_checksum"):
        assert found["learner"][name] == manifest[name], name
    if not reverb:  # actors insert at once
        assert found["table"] == manifest["table"]
    assert found["table"]["inserts"] >= manifest["table"]["inserts"]
    for name in ("env_steps_acted", "episodes", "recent", "env_restarts"):
        assert found["monitor"][name] == manifest["monitor"][name], name
    assert found["monitor"]["seconds"] >= manifest["monitor"]["seconds"]


def kill_and_resume(run: Run, kills: int, longest: float, reverb: bool = False) -> None:
    rng = random.Random(0)
    run.start()
    run.wait_for("first learner step")
    counters = [0, 0]
    for kill in range(kills):
        store = Checkpoints(run.run_dir)
        run.wait_for(lambda store=store: bool(store.paths()))
        time.sleep(rng.uniform(0.0, longest))
        run.end(signal.SIGKILL)
        latest = store.latest()
        assert latest is not None
        manifest = latest.manifest
        now = [manifest["env_steps"], manifest["monitor"]["episodes"]]
        assert now >= counters
        counters = now
        run.start()
        run.wait_for("everything is written to")
        check_resumed(run, manifest, reverb)
        assert f"resuming from checkpoint {latest.path.name}: " in run.output
        lives = json.loads((run.run_dir / "lives.json").read_text())
        assert max(lives.values()) >= kill + 2
    run.wait_for(lambda: Checkpoints(run.run_dir).paths()[-1].name > latest.path.name)
    assert run.end(signal.SIGTERM) == 143
    last = Checkpoints(run.run_dir).latest()
    assert last.manifest["env_steps"] >= counters[0]
    assert not list(last.path.parent.glob(".new-*"))
    rows = (run.run_dir / "metrics.csv").read_text().splitlines()
    assert len({row.count(",") for row in rows}) == 1 and rows[0].startswith("seconds,")
    assert sum(row.startswith("seconds,") for row in rows) == 1


@pytest.mark.parametrize("kills", [1, full(2)])
def test_one_process_is_killed(run, kills):
    made = run("--topology=single_process", "--env=CartPole-v1", *FOREVER, *OFTEN)
    kill_and_resume(made, kills, 2.0)


@pytest.mark.full
def test_a_program_is_killed(run):
    flags = ("--topology=light_env", "--env=CartPole-v1", "--transforms=observation_normalizer")
    kill_and_resume(run(*flags, *FOREVER, *OFTEN), 1, 2.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("topology", "kills", "backend"),
    [
        ("single_process", 20, "auto"),
        ("light_env", 20, "auto"),
        ("heavy_env", 3, "reverb"),
        ("heavy_env", 3, "served"),
    ],
)
def test_killed_at_random_times(run, topology, kills, backend):
    """With a prioritized table, a rate limit and a normaliser."""
    skip_without_reverb(backend)
    made = run(
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
        "--env=CartPole-v1",
        "--agent=dqn",
        "--transforms=observation_normalizer",
        "--config.replay.table=prioritized",
        *FOREVER,
        *OFTEN,
    )
    kill_and_resume(made, kills, 4.0, backend == "reverb")


@pytest.mark.parametrize(
    ("busy", "number"),
    [
        ("compiling", signal.SIGTERM),
        ("stepping", signal.SIGINT),
        slow("evaluating", signal.SIGTERM),
        slow("stepping", signal.SIGTERM),
    ],
)
def test_one_process_is_stopped_while_it_is_busy(run, busy, number):
    made = run("--topology=single_process", f"--experiment={STOPPING}:{busy}")
    made.start("--config.checkpoint.grace=10")
    made.wait_for("it has begun")
    began = time.monotonic()
    assert made.end(number) == 128 + number
    assert time.monotonic() - began < 10.0 + 5.0
    result = json.loads((made.run_dir / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("stopped", 128 + number)
    *_, path = Checkpoints(made.run_dir).paths()
    manifest = Checkpoint.read(path).manifest
    assert (manifest["version"] > 0) == (busy != "compiling")


@pytest.mark.parametrize("busy", [slow("stepping"), full("compiling")])
def test_a_program_is_stopped_while_it_is_busy(run, busy):
    made = run("--topology=heavy_env", f"--experiment={STOPPING}:{busy}")
    made.start("--config.checkpoint.grace=10")
    made.wait_for("it has begun")
    began = time.monotonic()
    assert made.end(signal.SIGTERM) == 143
    assert time.monotonic() - began < 10.0 + 10.0
    *_, path = Checkpoints(made.run_dir).paths()
    assert (Checkpoint.read(path).manifest["version"] > 0) == (busy != "compiling")


def test_a_second_program_in_the_folder_is_refused(run, tmp_path):
    made = run("--topology=single_process", "--env=CartPole-v1", *FOREVER)
    made.start()
    made.wait_for("everything is written to")
    other = Run(tmp_path, "--topology=single_process", "--env=CartPole-v1", *FOREVER)
    other._output = tmp_path / "other"
    other.start()
    try:
        assert other.process.wait(WAIT_S) == 2
        assert other.output.count("\n") == 1
        who = f"process {made.process.pid} on host {socket.gethostname()}"
        assert f"{who} runs in {made.run_dir}" in other.output
    finally:
        other.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_was_killed_learns_on(run):
    """CartPole is solved by a program that is killed in the middle."""
    made = run("--topology=single_process", "--env=CartPole-v1", "--config.checkpoint.period=1")
    made.start()
    made.wait_for("first learner step")
    made.wait_for(lambda: made.output.count("checkpoint 0") >= 3)
    made.end(signal.SIGKILL)
    made.start()
    assert made.process.wait(400.0) == 0
    assert "the mean return of the last 100 episodes is" in made.output
    made.start()
    assert made.process.wait(WAIT_S) == 0
    assert "has already ended" in made.output


def test_a_learner_does_not_start_afresh_beside_checkpoints(tmp_path):
    """The launcher, on a host that does not share the run folder, has not seen them."""
    saved = tmp_path / "checkpoints" / "000007"
    saved.mkdir(parents=True)
    experiment = SimpleNamespace(task_dir=lambda run_dir, task: run_dir)
    with pytest.raises(ConfigError, match=f"has {saved}, which the launcher has not seen"):
        setup = LearnerSetup(str(tmp_path), None, ResumePoint())
        LearnerNode(experiment, ["task"], {}, setup)
