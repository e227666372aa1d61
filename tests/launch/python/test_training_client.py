"""The process that trains, as its caller sees it: output, exit status, what it leaves behind."""

import errno
import io
import os
import pickle
import signal
import sys
import threading

import pytest

import distrl
from distrl.errors import ConfigError
from distrl.launch.python import training_client, training_process
from distrl.launch.supervision.result import EXIT_BAD_INPUT, EXIT_FAILED


@pytest.fixture
def run_code(monkeypatch):
    """A function that has code in the place of that process's, and returns what `run` does."""

    def run(code, quiet=True):
        command = [sys.executable, "-c", code]
        monkeypatch.setattr(training_client, "python_command", lambda module: command)
        return training_client.run([], None, quiet)

    return run


@pytest.fixture
def ignored_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


HELPER = """
import subprocess, sys
print(subprocess.Popen(["sleep", "300"]).pid, "a last line", end="", flush=True)
sys.exit(3)
"""


@pytest.mark.timeout(100)
def test_the_end_is_noticed_while_a_process_that_it_started_has_its_output(run_code):
    code, lines = run_code(HELPER)
    (line,) = lines
    os.kill(int(line.split()[0]), signal.SIGKILL)  # it lives
    assert code == 3 and line.endswith(" a last line")


def test_the_exit_status_is_what_the_process_sends(run_code, ignored_children):
    assert run_code("import os; os.write(0, b'130')")[0] == 130
    assert run_code("import sys; sys.exit(3)")[0] == EXIT_FAILED  # it is lost


def test_a_caller_may_ignore_its_children_and_have_any_encoding(ignored_children, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with pytest.raises(ConfigError, match=r"'config\.agent\.größe'"):
        distrl.train("CartPole-v1", "ppo", config={"agent.größe": 3}, quiet=True)


def test_a_process_whose_caller_does_not_wait_for_its_status_ends_as_usual(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        process, ours = training_client.start(log)
    with ours:
        training_client.give(ours, training_process.order(["--agent=nobody"], None, []))
    assert process.wait(60.0) == EXIT_BAD_INPUT
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("distrl: agent: no 'nobody'")


class Full(io.StringIO):
    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [Full, closed, lambda: None])
def test_output_that_cannot_be_written_is_dropped(make, monkeypatch, run_code):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", make())
        code, lines = run_code(
            "import os; print(1); print(2, flush=True); os.write(0, b'0')", False
        )
    assert (code, lines) == (0, ["1", "2"])


def test_characters_that_the_callers_encoding_lacks_are_escaped(monkeypatch, run_code):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        run_code("print('Gr\\u00f6\\u00dfe')", False)
    assert stream.buffer.getvalue() == b"Gr\\xf6\\xdfe\n"


def test_a_flag_that_cannot_be_pickled_is_left_out():
    module_flags = {"width": 30, "lock": threading.Lock()}
    order = training_process.order([], None, ["script.py"], module_flags)
    assert pickle.loads(order)[-1].keys() == {"width"}
