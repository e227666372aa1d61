"""What a launch saves, and says of it, after a node has failed; its processes are simulated."""

import json
from pathlib import Path

import numpy as np
import pytest

from distrl.checkpointing.params_file import save_params
from distrl.checkpointing.store import Checkpoints
from distrl.launch.local import launch
from distrl.launch.supervision.restart_policy import RestartPolicy
from tests.support.simulated import Kernel, SimulatedProcess, empty_program

TRACEBACK = 'Traceback:\n  File "environment.py", line 3, in step\nKeyError: 3\n'
GRACE_S = 20.0


def save(run_dir: Path) -> None:
    params = {"w": np.zeros(1)}
    save_params(run_dir / "params.npz", 500, params)
    counts = {"env_steps": 10_000}
    Checkpoints(run_dir, 3).write(
        500, lambda folder: save_params(folder / "params.npz", 500, params) or counts
    )


@pytest.mark.parametrize(
    ("save_s", "saved", "last_line"),
    [
        (GRACE_S - 1.0, True, "saved: checkpoint 000500, params.npz"),
        (GRACE_S + 1.0, False, "nothing was saved"),
    ],
)
def test_an_actor_that_keeps_failing_ends_the_program_and_the_learner_saves(
    save_s, saved, last_line, tmp_path: Path, monkeypatch, capsys
):
    def script(process: SimulatedProcess) -> None:
        process.stops_in = 0.1
        if process.name == "learner/0":
            process.stops_in = save_s
            process.on_stop = lambda: save(tmp_path)
        if process.name == "actor/0":
            fail = lambda: process.say("failure", "KeyError: 3", traceback=TRACEBACK)  # noqa: E731
            process.kernel.after(2.0, fail)
            process.kernel.after(2.1, lambda: process.end(1 << 8))

    kernel = Kernel(script)
    with monkeypatch.context() as patch:
        kernel.take_over(patch)
        result = launch.launch(
            empty_program("replay", "learner", "actor"),
            run_dir=tmp_path,
            terminal="output_to_files",
            restart_policies={"actor": RestartPolicy(100), "learner": RestartPolicy(100)},
            stop_grace={"learner": GRACE_S},
            saves=True,
        )
    assert len(kernel.of("actor/0")) == 3
    assert kernel.of("learner/0")[0].saved == saved
    assert (result.status, result.exit_code, result.failed_node) == ("failed", 1, "actor/0")
    assert result.reason == "actor/0: KeyError: 3 (3 times in a row)"
    assert result.saved == {
        "checkpoint": "000500" if saved else None,
        "learner_steps": 500 if saved else None,
        "env_steps": 10_000 if saved else None,
        "params_learner_steps": 500 if saved else None,
    }
    assert json.loads((tmp_path / "result.json").read_text())["saved"] == result.saved
    assert capsys.readouterr().err.rstrip().endswith(f"; {last_line})")


def test_a_learner_that_has_saved_and_then_fails_is_not_said_to_have_lost_something(
    tmp_path: Path, monkeypatch, capsys
):
    error = "CallbackError: Dashboard.on_checkpoint: ConnectionError: down"

    def script(process: SimulatedProcess) -> None:
        def fail() -> None:
            save(tmp_path)
            process.say("failure", error, traceback=TRACEBACK)
            process.end(1 << 8)

        process.stops_in = 0.1
        if process.name == "learner/0":
            process.on_stop = fail
            process.kernel.after(2.0, lambda: process.say("stop", "goal reached"))

    with monkeypatch.context() as patch:
        Kernel(script).take_over(patch)
        result = launch.launch(
            empty_program("replay", "learner", "actor"),
            run_dir=tmp_path,
            terminal="output_to_files",
            saves=True,
        )
    assert (result.status, result.exit_code) == ("failed", 1)
    assert result.reason == f"goal reached, but learner/0 failed while it ended: {error}"
    assert capsys.readouterr().err.rstrip().endswith("; saved: checkpoint 000500, params.npz)")
