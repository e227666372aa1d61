"""The same program on both substrates: exact, healed, resumed, looked at, and nothing left."""

import json
import os
import re
import signal
import sys

import pytest

from tests.support.commands import EXPERIMENTS, SUBSTRATES, Command, distrl, finish

STEPS = 20_000

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
pytest.importorskip("grpc")


@pytest.mark.parametrize("topology", ["heavy_env", "light_env"])
@pytest.mark.parametrize("launch_type", ["local_mp", "local_mt"])
@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_programs_are_exact_and_resume(tmp_path, substrate, topology, launch_type):
    """Every step is checked, over two lives; the run says what its nodes are made of."""
    for life in range(1 if launch_type == "local_mt" else 2):
        command = [
            sys.executable, "-m", "distrl", "train", f"--substrate={substrate}",
            f"--experiment={EXPERIMENTS / 'checking.py'}:experiment", f"--topology={topology}",
            f"--run_dir={tmp_path / 'run'}", f"--max_trained_steps={(1 + life) * STEPS}",
            f"--lp_launch_type={launch_type}",
        ]  # fmt: skip
        done = finish(command)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert ("resuming from checkpoint" in done.stdout) == bool(life)
    header, *_, last = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    row = dict(zip(header.split(","), last.split(",")))
    assert not {key: value for key, value in row.items() if key.startswith("wrong_") and value
                if float(value)}  # fmt: skip
    assert float(row["checked"]) == float(row["trained_steps"]) >= STEPS
    assert json.loads((tmp_path / "run" / "config.json").read_text())["substrate"] == substrate
    log = (tmp_path / "run" / "logs" / "supervisor.log").read_text()
    assert re.search(rf"launching 'distrl' as {launch_type}, \d nodes on {substrate}", log)


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_killed_nodes_are_healed_and_commands_look_at_them(tmp_path, substrate):
    command = Command(
        tmp_path, f"--experiment={EXPERIMENTS / 'checking.py'}:experiment", "--topology=heavy_env",
        f"--substrate={substrate}", "--max_trained_steps=1000000000",
    )  # fmt: skip
    try:
        command.wait_for_training()
        for node in ("actor/1", "replay/0"):
            os.kill(command.pid(node), signal.SIGKILL)
            again = f"{node} was killed by SIGKILL: restarting"
            command.wait_for(lambda again=again: again in command.output, again)
            command.wait_for(
                lambda node=node, again=again: (
                    f"{node} is running" in command.log("supervisor").rpartition(again)[2]
                ),
                f"{node} again",
            )
            before = command.learner_steps()
            command.wait_for(lambda before=before: command.learner_steps() > before + 3, "training")
        run = str(command.run_dir)
        for words, said in (
            (("status", run), "actor/1"),
            (("stacks", run, "actor/0"), "==== actor/0, process"),
            (("tables", run), "made by process"),
        ):
            done = distrl(tmp_path, *words)
            assert done.returncode == 0, done.stdout + done.stderr
            assert said in done.stdout
        command.interrupt()
        assert command.wait(60.0) == 130
        command.check_nothing_left()
    finally:
        command.end()
