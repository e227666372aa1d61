"""Whole programs that end badly: a node killed, Ctrl-C, a script's timeout, a broken observation.

Each is the real command on a real topology. What is left of it afterwards is looked for by a mark
in its processes' environment.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distrl.replay.shared.segment import SharedFile

ROOT = Path(__file__).parents[2]
BREAKING = Path(__file__).parent / "breaking_experiment.py"
TRAINING = "first learner step"
KILL_TO_EXIT_S = 10.0
CARTPOLE = ("--env=CartPole-v1", "--max_env_steps=1000000000", "--config.goal.mean_return=None")

needs_launchpad = pytest.mark.skipif(
    importlib.util.find_spec("launchpad") is None, reason="Launchpad is not installed"
)


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


class Command:
    """`distrl train ...`, or another module, in a session of its own, as from a terminal."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        prefix: tuple[str, ...] = (),
        module: tuple[str, ...] = ("distrl", "train", "--run_dir={}"),
    ):
        """Args: module: and its first arguments; "{}" becomes the run's folder."""
        self.run_dir = folder / "run"
        self._output = folder / "output"
        self._tmp = folder / "tmp"
        self._tmp.mkdir()
        self._mark = f"DISTRL_TEST={uuid.uuid4().hex}"
        self._shm = set(os.listdir("/dev/shm"))
        name, _, value = self._mark.partition("=")
        command = [sys.executable, "-m", *(word.format(self.run_dir) for word in module)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, *command, *flags],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, name: value, "TMPDIR": str(self._tmp)},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def log(self, name: str) -> str:
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def result(self) -> dict:
        return json.loads((self.run_dir / "result.json").read_text())

    def wait(self, timeout: float = 30.0) -> int:
        return self.process.wait(timeout)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits as long as a start may take on a busy machine; fails if the command ends."""
        deadline = time.monotonic() + 80.0
        while not condition():
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"no sign of: {what}\n{self.output}")
            time.sleep(0.02)

    def learner_steps(self) -> int:
        """Those that were last printed; 0 before."""
        found = re.findall(r"learner steps ([\d,]+)", self.output)
        return int(found[-1].replace(",", "")) if found else 0

    def wait_for_training(self) -> None:
        self.wait_for(lambda: TRAINING in self.output, TRAINING)

    def wait_until_interrupted(self) -> None:
        """Until it says that it stops, or is over."""
        while "Ctrl-C" not in self.output and self.process.poll() is None:
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals the whole group in its foreground."""
        if self.process.returncode is None:  # else the number may be another's by now
            os.killpg(self.process.pid, signal.SIGINT)

    def processes(self) -> dict[int, str]:
        """Name by pid, of those that carry this command's mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:  # it has ended, or is another user's
                continue
        return found

    def pid(self, node: str) -> int:
        """Of the node's process. The kernel keeps 15 characters: "distrl:infere/0"."""
        label, _, index = node.partition("/")
        (pid,) = [
            p for p, comm in self.processes().items() if comm == f"distrl:{label[:6]}/{index}"
        ]
        return pid

    def ports(self) -> set[int]:
        """On which its processes listen now."""
        sockets = set()
        for pid in self.processes():
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                sockets.add(os.readlink(fd))
        return {port for port, inode in listening() if f"socket:[{inode}]" in sockets}

    def check_nothing_left(self, ports: set[int] = frozenset()) -> None:
        """No process, none of `ports`, no shared memory, no temporary file."""
        deadline = time.monotonic() + 3.0
        # A dying process loses its environment, the mark, a moment before its sockets.
        while left := self.processes() or ports & {port for port, _ in listening()}:
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.02)
        left = [Path("/dev/shm", name) for name in set(os.listdir("/dev/shm")) - self._shm]
        tables = {path: SharedFile.parse(path) for path in left}
        # Its processes are dead: what has a living creator is of another program.
        assert not [path for path, own in tables.items() if own is None or not own.creator.lives()]
        assert not list(self._tmp.iterdir())

    def end(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(5)


def listening() -> Iterator[tuple[int, str]]:
    """Port and inode of this machine's listening TCP sockets."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                yield int(fields[1].rpartition(":")[2], 16), fields[9]


@pytest.fixture
def train(tmp_path):
    commands = []

    def start(*flags: str, prefix: tuple[str, ...] = ()) -> Command:
        commands.append(Command(tmp_path, *flags, prefix=prefix))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


@needs_launchpad
@pytest.mark.parametrize(
    ("topology", "node", "backend"),
    [
        ("light_env", "learner/0", "reverb"),
        slow("light_env", "actor/0", "shared_memory"),
        slow("light_env", "inferencer/0", "shared_memory"),
        ("light_env", "replay/0", "shared_memory"),
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
    evaluators = int(node == "evaluator/0")
    command = train(
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
        f"--config.evaluator.num_evaluators={evaluators}",
        "--config.supervision.restarts=0",
        *CARTPOLE,
    )
    command.wait_for_training()
    ports = command.ports()
    assert len(ports) >= 5  # the replay's and one a Courier node
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
    command.check_nothing_left(ports)


def maps(command: Command) -> str:
    """The libraries that the command has loaded so far."""
    return Path(f"/proc/{command.process.pid}/maps").read_text()


STAGES: dict[str, Callable[[Command], bool]] = {
    # Its import makes an ImportError of a KeyboardInterrupt.
    "importing ml_dtypes": lambda command: "_ml_dtypes_ext" in maps(command),
    "importing envpool": lambda command: "/envpool/" in maps(command),
    "importing tensorflow": lambda command: "libtensorflow_framework" in maps(command),
    "forking": lambda command: "launches" in command.log("supervisor"),
    "compiling": lambda command: "actor/1 runs" in command.log("supervisor"),
}


@needs_launchpad
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
    command = train(
        "--topology=light_env",
        f"--lp_launch_type={launch_type}",
        f"--config.replay.backend={backend}",
        *CARTPOLE,
    )
    command.wait_for(lambda: STAGES[stage](command), stage)
    interrupt(command, times)


def interrupt(command: Command, times: int, ports: set[int] = frozenset()) -> None:
    """Once or twice; checks how the command ends."""
    begin = time.monotonic()
    command.interrupt()
    if times == 2:
        command.wait_until_interrupted()
        command.interrupt()
    code = command.wait()
    print(f"{time.monotonic() - begin:.2f} s from the first Ctrl-C to the exit")
    assert code == 130
    assert "Traceback" not in command.output
    command.check_nothing_left(ports)


@needs_launchpad
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
    interrupt(command, times, command.ports())
    result = command.result()
    assert (result["status"], result["exit_code"]) == ("stopped", 130)
    if times == 1:
        assert (command.run_dir / "params.npz").exists()
        assert {how["state"] for how in result["nodes"].values()} == {"ended"}
    elif "Ctrl-C again: ending all nodes at once" not in command.output:
        # All was over before the second one came.
        assert {how["state"] for how in result["nodes"].values()} == {"ended"}


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


@needs_launchpad
@pytest.mark.parametrize("seconds", [7, slow(2), slow(20)])
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


@needs_launchpad
@pytest.mark.parametrize(
    ("topology", "launch_type", "name"),
    [
        ("light_env", "local_mp", "late"),
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
        rf"distrl: failed: actor/[01]: distrl\.errors\.EnvironmentFault: {fault} "
        r"\(exit status 1; logs in .*\)",
        lines[-1],
    )
    report = command.output[command.output.index(" failed first: ") :]
    assert re.match(rf" failed first: distrl\.errors\.EnvironmentFault: {fault}\n", report)
    own = "in _look_up\n    raise KeyError(name)\nKeyError: 'shelf'\nlog: "
    assert (own in report) == (name == "raising")
    command.check_nothing_left()


def test_an_environment_that_breaks_in_one_process(train):
    command = train(f"--experiment={BREAKING}:raising", "--topology=single_process")
    assert command.wait(90.0) == 1
    assert re.fullmatch(rf"EnvironmentFault: {FAULTS['raising']}", command.result()["reason"])
    assert "in _look_up\n    raise KeyError(name)\nKeyError: 'shelf'\n" in command.output
    command.check_nothing_left()
