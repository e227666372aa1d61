"""How a program of one process ends: its exit status, its last line, and `result.json`."""

import contextlib
import json
import os
import re
import signal

import numpy as np
import pytest

from distrl.checkpointing.params_file import save_params
from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.store import Checkpoints
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError, Diverged, SaveError, SpecError
from distrl.experiment import Experiment
from distrl.launch.local.single_process import TRACEBACK, _Ending, run_single_process
from distrl.launch.paths import PACKAGE
from distrl.launch.supervision.result import RESULT_FILE, Result
from distrl.testing import CheckingConfig, CountingEnvironment


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a program which saves, gets a signal, and returns or raises `ending`."""

    def run(ending, saves=True, number=None):
        def program(experiment, *, stop, run_dir, **_):
            if saves:
                Checkpoints(run_dir).write(3, lambda part: {"env_steps": 30})
                save_params(run_dir / "params.npz", 3, {"w": np.zeros(2)})
            if number is not None:
                os.kill(os.getpid(), number)
                assert stop.wait(10.0)
            if isinstance(ending, BaseException):
                raise ending
            return ending

        monkeypatch.setattr("distrl.programs.single_process.single_process", program)
        experiment = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig())
        return run_single_process(experiment, tmp_path, ResumePoint())

    return run


def result(folder):
    return json.loads((folder / RESULT_FILE).read_text())


def test_success_says_what_was_saved(tmp_path, run, capfd):
    assert run(("goal reached", True)) == 0
    assert result(tmp_path)["saved"]["checkpoint"] == "000003"
    assert capfd.readouterr().out.splitlines()[-1] == (
        "distrl: finished: goal reached (exit status 0; saved: checkpoint 000003, params.npz)"
    )


def test_a_run_that_could_not_save_has_failed(tmp_path, run, capfd):
    why = "goal reached, but could not save params.npz: No space left on device"
    assert run(SaveError(why), saves=False) == 1
    written = result(tmp_path)
    assert (written["status"], written["reason"], written["exit_code"]) == ("failed", why, 1)
    printed = capfd.readouterr()
    assert printed.out == f"distrl: failed: {why} (exit status 1; nothing was saved)\n"
    assert printed.err == ""


def test_the_printed_status_is_the_returned_one_without_a_result_file(tmp_path, run, capfd):
    (tmp_path / RESULT_FILE).mkdir()
    assert run(("goal reached", True)) == 1
    assert capfd.readouterr().out.startswith(
        "distrl: failed: goal reached, but result.json could not be written: Is a directory (exit "
        "status 1; saved: "
    )


def test_a_result_that_cannot_be_written_leaves_other_statuses(tmp_path):
    stopped = Result("stopped", "SIGTERM", 143, {}).write(tmp_path / "missing")
    assert (stopped.status, stopped.exit_code) == ("stopped", 143)
    assert "result.json could not be written" in stopped.reason


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(), KeyboardInterrupt(), OSError(5)])
def test_an_exception_that_ends_the_program_is_a_failure(tmp_path, run, capfd, error):
    assert run(error) == 1
    written = result(tmp_path)
    assert (written["status"], written["exit_code"]) == ("failed", 1)
    assert re.match(rf"{type(error).__name__}(: 5$|(: 0)? \(raised by )", written["reason"])
    assert "Traceback" in capfd.readouterr().err


def test_bad_input_is_left_to_the_command_line(tmp_path, run, capfd):
    with pytest.raises(ConfigError):
        run(ConfigError("no such size"))
    assert result(tmp_path)["exit_code"] == 2
    assert capfd.readouterr().out == ""


def test_where_frames_are_folded_the_run_folder_has_all(tmp_path, capfd):
    above = "".join(f'  File "{PACKAGE}/{name}.py", line 1, in f\n' for name in "abc")
    own = '  File "/home/me/env.py", line 2, in g\n'

    class Told(Exception):
        def __str__(self):
            return "\n" + above + own

    _Ending(tmp_path).show(Told())
    assert f"  ... 3 frames of distrl: all in traceback.txt\n{own}" in capfd.readouterr().err
    assert above + own in (tmp_path / TRACEBACK).read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(tmp_path, run, capfd, number):
    assert run(None, number=number) == 128 + number
    assert result(tmp_path)["status"] == "stopped"
    assert "saved: checkpoint 000003, params.npz)" in capfd.readouterr().out


@pytest.mark.parametrize("error", [OSError(5), KeyboardInterrupt(), SaveError("no space")])
def test_what_fails_after_a_signal_leaves_the_run_stopped(tmp_path, run, capfd, error):
    assert run(error, number=signal.SIGINT) == 130
    written = result(tmp_path)
    assert (written["status"], written["exit_code"]) == ("stopped", 130)
    assert written["reason"].startswith("SIGINT, but ")
    assert str(error) in written["reason"]
    assert ("Traceback" in capfd.readouterr().err) == (not isinstance(error, SaveError))


@pytest.mark.parametrize(("error", "code"), [(Diverged("loss is nan"), 1), (SpecError("x"), 2)])
def test_what_would_fail_again_is_a_failure_also_after_a_signal(tmp_path, run, error, code):
    with pytest.raises(SpecError) if code == 2 else contextlib.nullcontext():
        assert run(error, number=signal.SIGTERM) == code
    assert (result(tmp_path)["status"], result(tmp_path)["exit_code"]) == ("failed", code)


def test_a_run_that_another_learner_process_has_ended_can_be_resumed(tmp_path, run):
    assert run(None) == 128 + signal.SIGTERM
    assert result(tmp_path)["status"] == "stopped"


def test_the_learner_processes_without_a_folder_end_well(capfd):
    assert _Ending(None).returned(None, []) == 0
    assert "another learner process has ended the run" in capfd.readouterr().out
