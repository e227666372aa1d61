"""Whole programs that end badly: a node killed, Ctrl-C, a script's timeout, a broken observation.

Each is the real command on a real topology. What is left of it afterwards is looked for by a mark
in its processes' environment.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import CARTPOLE, EXPERIMENTS, TRAINING, Command, skip_without_reverb
from tests.support.selection import full, slow

BREAKING = EXPERIMENTS / "breaking.py"
KILL_TO_EXIT_S = 30.0  # on a busy machine; some 2 s on an idle one


@pytest.fixture
def train(tmp_path):
    commands = []

    def start(*flags: str, prefix: tuple[str, ...] = ()) -> Command:
        commands.append(Command(tmp_path, *flags, prefix=prefix))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


@pytest.mark.parametrize(
    ("topology", "node", "backend"),
    [
        full("light_env", "learner/0", "reverb"),
        slow("light_env", "actor/0", "shared_memory"),
        slow("light_env", "inferencer/0", "shared_memory"),
        full("light_env", "replay/0", "shared_memory"),
        slow("light_env", "replay/0", "reverb"),
        slow("light_env", "actor/0", "reverb"),
        slow("light_env", "inferencer/0", "reverb"),
        slow("light_env", "learner/0", "shared_memory"),
        slow("light_env", "monitor/0", "shared_memory"),
        slow("light_env", "evaluator/0", "shared_memory"),
        slow("heavy_env", "actor/1", "reverb"),
        slow("heavy_env", "actor/1", "shared_memory"),
        slow("heavy_env", "learner/0", "reverb"),
        slow("heavy_env", "replay/0", "shared_memory"),
        slow("heavy_env", "replay/0", "reverb"),
        slow("heavy_env", "monitor/0", "reverb"),
    ],
)
def test_a_killed_node_ends_the_program_and_is_named(train, topology, node, backend):
    skip_without_reverb(backend)
    evaluators = int(node == "evaluator/0")
    command = train(
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
        f"--config.evaluator.num_evaluators={evaluators}",
        "--config.supervision.restarts=0",
        *CARTPOLE,
    )
    command.wait_for_training()
    # The replay's and one a Courier node; the monitor may start after the first update.
    command.wait_for(lambda: len(command.sockets()) >= 5, "sockets of every node")
    sockets = command.sockets()
    begin = time.monotonic()
    os.kill(command.pid(node), signal.SIGKILL)
    code = command.wait()
    took = time.monotonic() - begin
    print(f"{topology} {node}: {took:.2f} s from kill to exit")
    assert code == 1
    assert took < KILL_TO_EXIT_S
    lines = command.output.splitlines()
    assert lines[-1].startswith(f"distrl: failed: {node} was killed by SIGKILL")
    (report,) = [line for line in lines if "failed first" in line]
    assert report.startswith(f"---- {node} failed first: was killed by SIGKILL")
    assert f"log: {command.run_dir / 'logs' / node.replace('/', '-')}.log" in lines
    assert command.result()["failed_node"] == node
    command.check_nothing_left(sockets)


def maps(command: Command) -> str:
    """The libraries that the command, which has a guard above it, has loaded so far."""
    loaded = []
    for pid in command.processes():
        with contextlib.suppress(OSError):  # ended meanwhile: a start has short-lived helpers
            loaded.append(Path(f"/proc/{pid}/maps").read_text())
    return "".join(loaded)


STAGES: dict[str, Callable[[Command], bool]] = {
    # Its import makes an ImportError of a KeyboardInterrupt.
    "importing ml_dtypes": lambda command: "_ml_dtypes_ext" in maps(command),
    "importing envpool": lambda command: "/envpool/" in maps(command),
    "importing tensorflow": lambda command: "libtensorflow_framework" in maps(command),
    "forking": lambda command: "launching" in command.log("supervisor"),
    "compiling": lambda command: "actor/1 is running" in command.log("supervisor"),
}


@pytest.mark.parametrize(
    ("launch_type", "stage", "times"),
    [
        ("local_mp", "importing ml_dtypes", 1),
        ("local_mp", "importing envpool", 2),
        ("local_mt", "importing tensorflow", 1),
        slow("local_mp", "forking", 1),
        slow("local_mp", "forking", 2),
        slow("local_mp", "compiling", 1),
        slow("local_mp", "compiling", 2),
        slow("local_mt", "forking", 1),
        slow("local_mt", "compiling", 1),
        slow("local_mt", "compiling", 2),
    ],
)
def test_ctrl_c_during_the_start(train, launch_type, stage, times):
    backend = "reverb" if stage == "importing tensorflow" else "shared_memory"
    skip_without_reverb(backend)
    command = train(
        "--topology=light_env",
        f"--lp_launch_type={launch_type}",
        f"--config.replay.backend={backend}",
        *CARTPOLE,
    )
    command.wait_for(lambda: STAGES[stage](command), stage)
    interrupt(command, times)


def interrupt(command: Command, times: int, sockets: set[str] = frozenset()) -> None:
    """Once or twice; checks how the command ends."""
    begin = time.monotonic()
    command.interrupt()
    if times == 2:
        command.wait_until_interrupted()
        command.interrupt()
    code = command.wait()
    print(f"{time.monotonic() - begin:.2f} s from the first Ctrl-C to the exit")
    assert code == 130, command.output
    assert "Traceback" not in command.output
    command.check_nothing_left(sockets)


@pytest.mark.parametrize(
    ("topology", "launch_type", "times"),
    [
        ("light_env", "local_mp", 1),
        slow("light_env", "local_mp", 2),
        slow("light_env", "local_mt", 1),
        slow("light_env", "local_mt", 2),
        slow("heavy_env", "local_mp", 1),
        slow("heavy_env", "local_mt", 1),
    ],
)
def test_ctrl_c_in_training(train, topology, launch_type, times):
    command = train(f"--topology={topology}", f"--lp_launch_type={launch_type}", *CARTPOLE)
    command.wait_for_training()
    interrupt(command, times, command.sockets())
    result = command.result()
    assert (result["status"], result["exit_code"]) == ("stopped", 130)
    if times == 1:
        assert (command.run_dir / "params.npz").exists()
        assert {how["state"] for how in result["nodes"].values()} == {"ended"}
    elif "Ctrl-C again: killing all nodes" not in command.output:
        # All was over before the second one came.
        assert {how["state"] for how in result["nodes"].values()} == {"ended"}


@pytest.mark.full
def test_ctrl_c_in_one_process(train):
    command = train("--topology=single_process", *CARTPOLE)
    command.wait_for_training()
    interrupt(command, 1)
    assert command.result()["exit_code"] == 130
    assert (command.run_dir / "params.npz").exists()


@pytest.mark.slow
def test_ctrl_c_while_one_process_compiles(train):
    command = train("--topology=single_process", *CARTPOLE)
    command.wait_for(lambda: "everything is written to" in command.output, "the start")
    interrupt(command, 1)


@pytest.mark.parametrize("seconds", [full(7), slow(2), slow(20)])
def test_a_script_with_a_timeout_goes_on(train, seconds):
    script = f'timeout {seconds} "$@"; echo "still here $?"'
    command = train("--topology=light_env", *CARTPOLE, prefix=("bash", "-c", script, "bash"))
    assert command.wait(60.0) == 0
    assert command.output.splitlines()[-1] == "still here 124"
    assert "Traceback" not in command.output
    command.check_nothing_left()


EPISODE_STEP = r"environment \d \(seed \d+, step \d+ of its episode, \d+ in all\)"
FAULTS = {
    "late": rf"late: {EPISODE_STEP}: observation: expected float32\[4\], got float32\[3\]",
    "raising": rf"raising: {EPISODE_STEP}: step\(\) raised KeyError: 'shelf'",
}


@pytest.mark.parametrize(
    ("topology", "launch_type", "name"),
    [
        full("light_env", "local_mp", "late"),
        slow("heavy_env", "local_mp", "raising"),
        slow("light_env", "local_mt", "late"),
        slow("heavy_env", "local_mt", "raising"),
    ],
)
def test_an_environment_that_breaks_later(train, topology, launch_type, name):
    """The last line says which one, when and how; its own traceback stands in the report."""
    command = train(
        f"--experiment={BREAKING}:{name}",
        f"--topology={topology}",
        f"--lp_launch_type={launch_type}",
        "--config.supervision.restarts=0",
    )
    assert command.wait(90.0) == 1
    assert TRAINING in command.output
    fault = FAULTS[name]
    lines = command.output.splitlines()
    assert re.fullmatch(
        rf"distrl: failed: actor/[01]: EnvironmentFault: {fault} "
        r"\(exit status 1; logs in .*\)",
        lines[-1],
    )
    report = command.output[command.output.index(" failed first: ") :]
    assert re.match(rf" failed first: EnvironmentFault: {fault}\n", report)
    own = "in _look_up\n    raise KeyError(name)\nKeyError: 'shelf'\nlog: "
    assert (own in report) == (name == "raising")
    command.check_nothing_left()


def test_an_environment_that_breaks_in_one_process(train):
    command = train(f"--experiment={BREAKING}:raising", "--topology=single_process")
    assert command.wait(90.0) == 1
    assert re.fullmatch(rf"EnvironmentFault: {FAULTS['raising']}", command.result()["reason"])
    assert "in _look_up\n    raise KeyError(name)\nKeyError: 'shelf'\n" in command.output
    command.check_nothing_left()
