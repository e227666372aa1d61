"""A table that something else removes from shared memory while a program uses it."""

import os
import signal

import pytest

from distrl.checkpointing.store import Checkpoints
from distrl.shared_memory import segment
from tests.support.commands import EXPERIMENTS, Command


@pytest.mark.full
@pytest.mark.timeout(200)
@pytest.mark.parametrize("node", ["replay/0", "actor/0"])
def test_a_restarted_node_that_finds_no_table_ends_the_program(tmp_path, monkeypatch, node):
    (tmp_path / "counts").mkdir()
    monkeypatch.setenv("DISTRL_COUNTS", str(tmp_path / "counts"))
    command = Command(
        tmp_path, f"--experiment={EXPERIMENTS / 'counted.py'}", "--topology=heavy_env"
    )
    try:
        command.wait_for_training()
        processes = command.processes()
        for file in segment.existing():
            if file.creator.pid in processes:
                file.path.unlink()
        os.kill(command.pid(node), signal.SIGKILL)
        assert command.wait(60.0) == 1
        (line,) = [line for line in command.output.splitlines() if "distrl: failed: " in line]
        assert f"distrl: failed: {node}: SharedMemoryLost: table '" in line
        assert Checkpoints(command.run_dir).latest() is not None  # the learner still had the table
        command.check_nothing_left()
    finally:
        command.end()
