"""The guard of a program: its exit status is the program's true one, whatever ends the program."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.launch.local.guard import Interrupts
from tests.support.commands import BLOCKED, ON_TERMINAL, ROOT, Command
from tests.support.shells import Terminal

BEGINNING = """
import os, signal, sys, time
from distrl.checkpointing.saved import Saved
from distrl.launch.local.guard import run_guarded
from distrl.launch.supervision.signals import Signals, interrupt_number
from distrl.runtime.process_exit import announce, command_pid, exit_at_once
shell = os.getpid()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
run_guarded()
assert command_pid() == shell != os.getpid()
announce(run_dir=sys.argv[1], saved_before=Saved())
"""


@pytest.fixture
def start(tmp_path):
    """A function that starts a program under a guard, in a process group of its own."""
    started = []

    def start(body, begin=""):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", begin + BEGINNING + body, tmp_path],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os._exit(0)", "its process ended with exit status 0 in the middle of its work"),
        ("os.fork() or exit_at_once(0); os.wait(); os._exit(7)", "ended with exit status 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process was killed by SIGKILL"),
        ("os.kill(os.getpid(), 41)", "its process was killed by signal 41"),
    ],
)
def test_an_end_that_the_program_has_not_announced_is_a_failure(tmp_path, start, body, reason):
    process = start(body)
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert reason in out and out.endswith("(exit status 1; nothing was saved)\n")
    written = result(tmp_path)
    assert (written["status"], written["exit_code"]) == ("failed", 1)
    assert reason in written["reason"]


def test_a_lack_of_memory_is_told(tmp_path):
    begin = "from distrl.launch.local import guard; guard.oom_kills = lambda: -1\n"
    body = "os.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + BEGINNING + body, tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    reason = "its process was killed by the kernel (SIGKILL): out of memory"
    assert f"distrl: failed: {reason} (exit status 1" in done.stderr
    assert (done.returncode, result(tmp_path)["reason"]) == (1, reason)


@pytest.mark.parametrize(
    ("code", "begin"),
    [(0, ""), (130, ""), (0, "import os; vars(os).pop('memfd_create', None)")],
    ids=["finished", "stopped", "a Python for an old glibc"],
)
def test_an_announced_end(tmp_path, start, code, begin):
    (tmp_path / "result.json").write_text("{}")
    process = start(f"announce(code={code}); os._exit(9)  # by an exit handler, say", begin)
    out, _ = process.communicate(timeout=50)
    assert (process.returncode, out) == (code, "")
    assert result(tmp_path) == {}


STOPPABLE = """
with Signals() as signals:
    print("ready", flush=True)
    got = []
    while signal.SIGTERM not in got:
        time.sleep(0.05)
        got += signals.pending()
print(*map(int, got))
exit_at_once(0)
"""


def test_ctrl_c_counts_once_and_other_signals_are_passed_on(start):
    """The terminal sends Ctrl-C to the whole group: to the guard and to the program."""
    process = start(STOPPABLE)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    assert sorted(map(int, out.split())) == [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]


KEYBOARD, PROGRAM = 128, 0  # SI_KERNEL, SI_USER


@pytest.mark.parametrize(
    ("received", "counted"),
    [
        ([(PROGRAM, 0.0), (PROGRAM, 0.25)], [True, False]),  # timeout: the child, its group
        ([(KEYBOARD, 0.0), (PROGRAM, 0.25)], [True, False]),  # a script passes Ctrl-C on
        ([(PROGRAM, 0.0), (PROGRAM, 1.0)], [True, True]),
        ([(PROGRAM, 0.0), (PROGRAM, 0.5), (PROGRAM, 1.0)], [True, False, True]),
        ([(KEYBOARD, 0.0), (KEYBOARD, 0.25)], [True, True]),
        ([(PROGRAM, 0.0), (KEYBOARD, 0.25), (PROGRAM, 1.0)], [True, True, False]),
    ],
)
def test_an_interrupt_that_a_program_repeats_counts_once(received, counted):
    interrupts = Interrupts()
    assert [interrupts.counts(code, now) for code, now in received] == counted


COUNTING = """
ours, theirs = os.pipe()
signal.signal(interrupt_number(), lambda *_: os.write(theirs, b"x"))
for count in range(3):
    print("interrupts:", count, flush=True)
    os.read(ours, 1)
"""


def test_a_keyboards_interrupts_all_count(tmp_path):
    program = [sys.executable, "-c", BEGINNING + COUNTING, str(tmp_path)]
    terminal = Terminal([*ON_TERMINAL, *program], ROOT, os.environ)
    try:
        terminal.wait_for("interrupts: 0")
        for count in (1, 2):
            terminal.type("\x03")
            terminal.wait_for(f"interrupts: {count}")
    finally:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_program_handles_any(tmp_path, start, number):
    process = start("print('ready', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=50)
    code = 128 + number
    assert process.returncode == code
    assert out == f"distrl: stopped: {number.name} (exit status {code}; nothing was saved)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_stops_where_its_caller_has_blocked_the_signals_that_stop_it(tmp_path, number):
    experiment = tmp_path / "waiting.py"
    experiment.write_text("import signal; print('waiting', flush=True); signal.pause()")
    flags = (f"--experiment={experiment}", "--topology=single_process")
    command = Command(tmp_path, *flags, prefix=BLOCKED)
    try:
        command.wait_for(lambda: "waiting" in command.output, "the experiment")
        command.process.send_signal(number)
        assert command.wait() == 128 + number
        command.check_nothing_left()
    finally:
        command.end()


def test_the_program_ends_with_its_guard(start):
    process = start("print(os.getpid(), flush=True); time.sleep(60)")
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=50)  # at the end of the program's output
    assert not Path(f"/proc/{pid}/environ").exists() or not Path(f"/proc/{pid}/exe").exists()


def test_a_result_that_the_program_has_not_written(tmp_path, start):
    process = start("announce(code=2, reason='no such size'); os._exit(2)")
    out, _ = process.communicate(timeout=50)
    assert (process.returncode, out) == (2, "")  # the program has said it
    assert (result(tmp_path)["exit_code"], result(tmp_path)["reason"]) == (2, "no such size")


def test_a_reason_longer_than_a_pipe_holds(tmp_path, start):
    process = start("announce(code=2, reason='x' * 2_000_000); os._exit(2)")
    out, _ = process.communicate(timeout=50)
    assert (process.returncode, out) == (2, "")
    assert result(tmp_path)["reason"] == "x" * 2_000_000


def test_a_program_that_is_killed_while_it_announces_its_end(tmp_path, start):
    unfinished = """os.write(process_exit._guard[1], b'{"code": 0')"""
    process = start(
        f"from distrl.runtime import process_exit; {unfinished}; os.kill(os.getpid(), 9)"
    )
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "its process was killed by" in result(tmp_path)["reason"], out


def test_a_suspended_program_is_woken_by_a_signal(start):
    process = start(
        "signal.signal(interrupt_number(), lambda *_: exit_at_once(130)); print(os.getpid(), "
        "flush=True); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(50)"
    )
    pid = int(process.stdout.readline())
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_an_end_that_the_program_could_not_say_is_said(tmp_path, start):
    process = start("announce(code=130, reason='killed', unsaid=True); os._exit(130)")
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 130
    assert out == "distrl: failed: killed (exit status 130; nothing was saved)\n"
    assert result(tmp_path)["reason"] == "killed"


HANGS = """
import types
from distrl.envs.pools.loop import _watch
from distrl.envs.pools.slots import ENV, STARTED
slots = types.SimpleNamespace(
    counters=[{ENV: 3}], times=[{STARTED: 0.0}], where=lambda env_id: f"environment {env_id}"
)
_watch(slots, [0], types.SimpleNamespace(wait=lambda seconds: False), 1.0)
"""
LOST = """
from distrl.learner_group.process_group import end_process
end_process("learner process 1 has ended")
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (HANGS, "environment 3: hung; its step or reset did not end within step_timeout=1 s"),
        (LOST, "learner process 1 has ended"),
    ],
)
def test_why_distrl_itself_ends_the_process_at_once(tmp_path, start, body, reason):
    process = start(body)
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert out.endswith(f"distrl: failed: {reason} (exit status 1; nothing was saved)\n")
    assert result(tmp_path)["reason"] == reason
