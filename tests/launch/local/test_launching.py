"""Programs in processes and threads: how they end, what they report, what they leave behind."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import pytest

from tests.support.commands import BLOCKED, LEFT_S, ROOT, unix_sockets
from tests.support.selection import full, slow
from tests.support.waiting import until

PROGRAM = ROOT / "tests" / "launch" / "local" / "launched_program.py"
BOTH = pytest.mark.parametrize("mode", ["local_mp", "local_mt"])
PROCESSES_FIRST = pytest.mark.parametrize("mode", ["local_mp", full("local_mt")])
THREADS_FIRST = pytest.mark.parametrize("mode", [full("local_mp"), "local_mt"])
ENDED_S = 10.0

pytestmark = pytest.mark.timeout(60)


class Run:
    """One run of the program in a new process."""

    def __init__(self, folder: pathlib.Path, mode: str, *scenarios: str, prefix: tuple = ()):
        self.folder = folder
        self.tag = f"DISTRL_TEST={uuid.uuid4().hex}"
        name, _, value = self.tag.partition("=")
        paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        env = {**os.environ, name: value, "PYTHONPATH": os.pathsep.join(paths)}
        # Servers listen on sockets there; their paths must be short.
        self._temporary = tempfile.TemporaryDirectory(prefix="t", dir="/tmp")
        env["TMPDIR"] = self._temporary.name
        self.output_path = folder / "output"
        with self.output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(PROGRAM), mode, str(folder), *scenarios],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        self._seen: set[str] = set()
        self._watch = threading.Thread(target=self._watch_sockets)
        self._watch.start()

    def sockets(self) -> set[str]:
        """Returns the paths of the Unix sockets that servers of the program listen on."""
        folders = f"{self._temporary.name}/distrl."
        return {path for path in unix_sockets() if path.startswith(folders)}

    def _watch_sockets(self) -> None:
        while self.process.poll() is None:
            self._seen |= self.sockets()
            time.sleep(0.005)

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def log(self, scenario: str, name: str) -> str:
        path = self.folder / scenario / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def result(self, scenario: str) -> dict:
        return json.loads((self.folder / scenario / "result.json").read_text())

    def wait(self, timeout: float = 30.0) -> int:
        return self.process.wait(timeout)

    def wait_for(self, scenario: str, name: str, text: str) -> None:
        until(lambda: text in self.log(scenario, name), f"{text!r} in {name}'s log")

    def processes(self) -> list[int]:
        """Returns the pids that have this run's mark in their environment."""
        pids = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.tag.encode() in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
            except OSError:  # ended meanwhile
                continue
        return pids

    def check_nothing_left(self) -> None:
        until(lambda: not self.processes(), "no process left", LEFT_S)
        self._watch.join()
        assert self._seen, "no server was ever started"
        # A dying process loses its environment, the mark, a moment before its sockets.
        until(lambda: not self.sockets(), f"none of {self._seen} listened on", LEFT_S)

    def end(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LEFT_S)
        self._watch.join()
        self._temporary.cleanup()


@pytest.fixture
def run(tmp_path):
    runs = []

    def start(*args, **kwargs) -> Run:
        runs.append(Run(tmp_path, *args, **kwargs))
        return runs[-1]

    yield start
    for each in runs:
        each.end()


@pytest.mark.parametrize("mode", ["local_mp", full("local_mt"), full("test_mt")])
def test_finishing_twice_in_one_process(run, mode):
    program = run(mode, "plain_stop", "finish")
    assert program.wait() == 0
    for scenario in ("plain_stop", "finish"):
        result = program.result(scenario)
        assert result["status"] == "finished"
        assert {how["state"] for how in result["nodes"].values()} == {"ended"}
        assert all(how["asked"] for how in result["nodes"].values())
        for name in ("actor-0", "actor-1"):
            assert "client: cleaned up" in program.log(scenario, name)
        assert "server: cleaned up" in program.log(scenario, "learner-0")
    assert result["reason"] == "goal reached"
    assert "[actor/1] client: call 1\n" in program.output
    assert "watcher: stop handler called" in program.output
    # Callers are stopped before those that they call.
    journal = program.log("finish", "supervisor")
    assert journal.index("actor/0 ended") < journal.index("asking learner/0 to stop")
    program.check_nothing_left()
    if mode == "local_mp":  # devices are seen only where they are declared
        assert "server: cuda '7'" in program.log("finish", "learner-0")
        assert "client: cuda ''" in program.log("finish", "actor-0")
        assert "client: cuda '5'" in program.log("finish", "actor-1")
        # Where memory runs out, actors go first, and the launcher last.
        launcher = int(pathlib.Path("/proc/self/oom_score_adj").read_text())
        learner, actor = min(1000, launcher + 100), min(1000, launcher + 200)
        assert f"server: oom_score_adj {learner}\n" in program.log("finish", "learner-0")
        assert f"client: oom_score_adj {actor}\n" in program.log("finish", "actor-0")


@PROCESSES_FIRST
def test_logs_have_every_line(run, mode):
    program = run(mode, "chatty")
    assert program.wait() == 0
    log = program.log("chatty", "actor-1")
    assert [f"line {i}" for i in range(5000)] == re.findall(r"^line \d+$", log, re.MULTILINE)
    assert "x" * 20_000 in log
    assert "from logging" in log
    assert "[actor/1] line 4999\n" in program.output
    assert "[actor/1] 20%\n" in program.output
    assert "\x00" not in program.output
    assert "\x1b[2J" not in program.output


FAULTS = {
    "raise": ("actor/1", "RuntimeError: the environment broke"),
    "thread_raises": ("actor/1", "ZeroDivisionError: division by zero (in thread 'helper')"),
    "constructor": ("learner/0", "ValueError: no such network"),
    "server_raises": ("learner/0", "ArithmeticError: loss is nan"),
    "return": ("actor/1", "ended without being asked to"),
    "stopped": ("actor/1", "ended without being asked to"),
    "exit3": ("actor/1", "exited with status 3"),
    "sigkill": ("actor/1", "was killed by SIGKILL"),
    "segv": ("actor/1", "was killed by SIGSEGV"),
}
QUICK = ("raise", "constructor", "return", "segv")
IN_THREADS = ("raise", "thread_raises", "constructor", "server_raises", "return", "stopped")


@pytest.mark.parametrize(
    ("mode", "fault"),
    [("local_mp", fault) if fault in QUICK else full("local_mp", fault) for fault in FAULTS]
    + [("local_mt", fault) if fault in QUICK else full("local_mt", fault) for fault in IN_THREADS],
)
def test_the_first_failure_is_named(run, mode, fault):
    node, cause = FAULTS[fault]
    program = run(mode, fault)
    assert program.wait() == 1
    output, result = program.output, program.result(fault)
    assert float(re.findall(r"launch took ([\d.]+) s", output)[0]) < ENDED_S
    report = output[output.index(f"---- {node} failed first: {cause}") :]
    assert f"log: {program.folder / fault / 'logs' / node.replace('/', '-')}.log" in report
    if "Error" in cause:
        assert "Traceback (most recent call last)" in report
        assert "launched_program.py" in report
    elif fault == "segv":
        assert "in _misbehave" in report
    elif mode == "local_mp":
        assert "client: call 5" in report
    assert re.search(rf"^distrl: failed: {node}", report, re.MULTILINE)
    assert result["status"] == "failed"
    assert result["failed_node"] == node
    program.check_nothing_left()


def test_giving_up_is_a_failure_with_its_reason(run):
    program = run("local_mp", "give_up")
    assert program.wait() == 1
    assert "learner/0 failed first: diverged: loss is nan" in program.output
    assert program.result("give_up")["status"] == "failed"


def test_a_learner_that_fails_while_stopping_makes_a_failure_of_a_success(run):
    program = run("local_mp", "late")
    assert program.wait() == 1
    why = "goal reached, but learner/0 did not save everything: OSError: could not save"
    assert f"distrl: failed: {why} (exit status 1; logs in " in program.output
    result = program.result("late")
    assert (result["status"], result["reason"], result["exit_code"]) == ("failed", why, 1)
    assert "later: learner/0 failed: OSError: could not save" in program.log("late", "supervisor")
    assert "failed while stopping: learner/0" in program.output
    assert program.result("late")["nodes"]["learner/0"]["error"] == "OSError: could not save"


def test_processes_that_a_node_started_end_with_it(run):
    program = run("local_mp", "grandchild")
    assert program.wait() == 1
    pid = int(re.search(r"grandchild (\d+)", program.log("grandchild", "actor-1")).group(1))
    until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the grandchild to end", LEFT_S)
    program.check_nothing_left()


@BOTH
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_stops_in_order(run, mode, number, code):
    program = run(mode, "long")
    program.wait_for("long", "actor-1", "client: call 3")
    program.process.send_signal(number)
    assert program.wait() == code
    assert "client: cleaned up" in program.log("long", "actor-0")
    assert "server: cleaned up" in program.log("long", "learner-0")
    assert ("press Ctrl-C again to kill immediately" in program.output) == (number == signal.SIGINT)
    assert program.result("long")["status"] == "stopped"
    program.check_nothing_left()


@pytest.mark.full
def test_a_suspended_node_is_woken_to_stop(run):
    program = run("local_mp", "long")
    program.wait_for("long", "actor-1", "client: call 3")
    (learner,) = [
        pid
        for pid in program.processes()
        if pathlib.Path(f"/proc/{pid}/comm").read_text() == "distrl:learne/0\n"
    ]
    os.kill(learner, signal.SIGSTOP)
    program.process.send_signal(signal.SIGINT)
    assert program.wait() == 130
    assert "server: cleaned up" in program.log("long", "learner-0")
    assert {node["state"] for node in program.result("long")["nodes"].values()} == {"ended"}


@PROCESSES_FIRST
def test_a_second_interrupt_kills_at_once(run, mode):
    program = run(mode, "deaf_for_long")
    program.wait_for("deaf_for_long", "actor-1", "client: call 5")
    program.process.send_signal(signal.SIGINT)
    until(lambda: "stopping; press Ctrl-C again" in program.output, "the first to be taken")
    program.process.send_signal(signal.SIGINT)
    assert program.wait() == 130  # long before the node's time is over
    assert "did not stop within" not in program.output
    if mode == "local_mt":
        assert "still running" in program.output
    program.check_nothing_left()


@THREADS_FIRST
def test_a_node_that_does_not_stop_is_named(run, mode):
    program = run(mode, "deaf")
    program.wait_for("deaf", "actor-1", "client: call 5")
    program.process.send_signal(signal.SIGINT)
    assert program.wait() == 130
    assert "actor/1 did not stop within 3 s" in program.output
    assert "in _misbehave" in program.log("deaf", "actor-1")  # its stacks
    assert "server: cleaned up" in program.log("deaf", "learner-0")
    node = program.result("deaf")["nodes"]["actor/1"]
    assert node["state"] == ("killed" if mode == "local_mp" else "running")
    program.check_nothing_left()


def test_interrupts_during_the_start(run):
    """Ctrl-C at any time after the launcher has the signals: status 130, and nothing left."""
    for delay in (0.0, 0.01):
        program = run("local_mp", "long")
        log = program.folder / "long" / "logs" / "supervisor.log"
        until(log.exists, "the launcher's start")
        time.sleep(delay)
        program.process.send_signal(signal.SIGINT)
        assert program.wait() == 130
        until(lambda program=program: not program.processes(), "no process left", LEFT_S)
        log.unlink()


def test_the_launcher_killed_leaves_nothing(run):
    program = run("local_mp", "long")
    program.wait_for("long", "actor-1", "client: call 3")
    assert len(program.processes()) == 5
    program.process.kill()
    program.wait()
    program.check_nothing_left()


@pytest.mark.full
def test_a_script_that_stops_it_continues(run, tmp_path):
    script = 'timeout 3 "$@"; echo "status $?; still here"'
    program = run("local_mp", "long", prefix=("bash", "-c", script, "bash"))
    assert program.wait() == 0
    assert "status 124; still here" in program.output
    assert program.result("long")["exit_code"] == 143
    program.check_nothing_left()


def test_nodes_stop_where_the_caller_has_blocked_the_signals_that_stop_them(run):
    program = run("local_mp", "finish", prefix=BLOCKED)
    assert program.wait() == 0
    assert {how["state"] for how in program.result("finish")["nodes"].values()} == {"ended"}
    assert "server: cleaned up" in program.log("finish", "learner-0")
    program.check_nothing_left()


def test_a_reader_that_is_gone_or_sleeps_blocks_nothing(tmp_path):
    """The terminal's pipe is full and nobody reads it: the program ends all the same."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "local_mp", str(tmp_path), "chatty"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    try:
        done = tmp_path / "chatty" / "result.json"
        until(done.exists, "the end, with no one reading", 20.0)
        assert json.loads(done.read_text())["status"] == "finished"
        process.stdout.close()
    finally:
        process.kill()
        process.wait(5)


@pytest.mark.parametrize(
    ("mode", "count"),
    [("local_mp", 8), full("local_mt", 20), slow("local_mp", 50), slow("local_mt", 50)],
)
@pytest.mark.timeout(400)
def test_launches_in_a_row_leave_nothing_in_the_process(tmp_path, mode, count):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    script = ROOT / "tests" / "launch" / "local" / "launched_often.py"
    done = subprocess.run(
        [sys.executable, str(script), mode, str(tmp_path), str(count)],
        capture_output=True,
        text=True,
        timeout=380,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.partition("counts:")[2])
    settled = found[min(5, count // 2)]
    print(settled, found[-1])
    if mode == "local_mt":  # gRPC has some threads of its own, more or fewer
        assert found[-1].pop("threads") <= settled.pop("threads") + 8
    assert found[-1] == settled
