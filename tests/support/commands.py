"""The command line in processes: started, waited for, and looked after when it has ended."""

import contextlib
import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from distrl.shared_memory.segment import SharedFile

ROOT = Path(__file__).parents[2]
EXPERIMENTS = Path(__file__).parent / "experiments"
TRAINING = "first learner step"
LEFT_S = 30.0  # for the rest of a program that has ended; a moment on an idle machine
BLOCKED = (  # before a command: its caller has blocked the signals that stop it
    sys.executable,
    "-c",
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, "
    "signal.SIGTERM, signal.SIGHUP]); os.execv(sys.argv[1], sys.argv[1:])",
)
ON_TERMINAL = (  # before a command in a session of its own: Ctrl-C on its stdin interrupts it
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
CARTPOLE = ("--env=CartPole-v1", "--max_env_steps=1000000000", "--config.goal.mean_return=None")

needs_launchpad = pytest.mark.skipif(
    importlib.util.find_spec("launchpad") is None, reason="Launchpad is not installed"
)
SUBSTRATES = ["builtin", pytest.param("launchpad", marks=needs_launchpad)]


def skip_without_reverb(*words: str) -> None:
    """Skips a test one of whose parameters or flags asks for Reverb, where it is not installed."""
    if importlib.util.find_spec("reverb") is None and any(w.endswith("reverb") for w in words):
        pytest.skip("dm-reverb is not installed (it has wheels for Python 3.10 at most)")


def finish(
    command: list[str], timeout: float = 110.0, **options: object
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output captured, in the project's folder.

    Args:
      command: a Python program.
      timeout: seconds; past it the test fails with the stacks of the program's threads.
      options: of `subprocess.Popen`.
    """
    env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            try:
                out, err = process.communicate(timeout=10.0)
            finally:
                process.kill()
            raise AssertionError(
                f"not ended within {timeout:g} s: {command}\n{out[-4000:]}\n{err}"
            ) from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def distrl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `distrl` in a folder until it ends, and captures its output."""
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    return subprocess.run(
        [sys.executable, "-m", "distrl", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60.0,  # some 3 s on an idle machine
        check=False,
    )


SOCKET_OWNER = re.compile(r"/distrl\.\d+\.(\d+)\.\d+\.")  # the pid that made the folder


def processes_with(mark: str) -> dict[int, str]:
    """Name by pid, of processes that have this in their environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:  # it has ended, or is another user's
            continue
    return found


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
        self._keyboard, terminal = pty.openpty()
        with self._output.open("wb") as output, open(terminal, "rb") as stdin:
            self.process = subprocess.Popen(
                [*ON_TERMINAL, *prefix, *command, *flags],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=stdin,
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

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 80.0) -> None:
        """Waits as long as a start may take on a busy machine; fails if the command ends."""
        deadline = time.monotonic() + seconds
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
        os.write(self._keyboard, b"\x03")

    def processes(self) -> dict[int, str]:
        """Name by pid, of those that carry this command's mark."""
        return processes_with(self._mark)

    def pid(self, node: str) -> int:
        """Of the node's process. The kernel keeps 15 characters: "distrl:infere/0"."""
        label, _, index = node.partition("/")
        (pid,) = [
            p for p, comm in self.processes().items() if comm == f"distrl:{label[:6]}/{index}"
        ]
        return pid

    def sockets(self) -> set[str]:
        """Paths of the Unix sockets on which its servers listen now."""
        pids = {str(pid) for pid in self.processes()}
        owners = {path: SOCKET_OWNER.search(path) for path in unix_sockets()}
        return {path for path, owner in owners.items() if owner and owner[1] in pids}

    def check_nothing_left(self, sockets: set[str] = frozenset()) -> None:
        """No process, none of `sockets`, no shared memory, no temporary file."""
        deadline = time.monotonic() + LEFT_S
        # A dying process loses its environment, the mark, a moment before its sockets.
        while left := self.processes() or sockets & unix_sockets():
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.02)
        # Those of other tests' programs may be there a moment longer than who made them.
        while shared := self._ownerless_files():
            assert time.monotonic() < deadline, f"still there: {shared}"
            time.sleep(0.02)
        assert not list(self._tmp.iterdir())

    def _ownerless_files(self) -> list[Path]:
        """New files in /dev/shm that no living process has made; its own processes are dead."""
        new = [Path("/dev/shm", name) for name in set(os.listdir("/dev/shm")) - self._shm]
        files = {path: SharedFile.parse(path) for path in new}
        return [path for path, file in files.items() if file is None or not file.creator.lives()]

    def end(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LEFT_S)
        os.close(self._keyboard)


def unix_sockets() -> set[str]:
    """Paths of this machine's Unix sockets."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {line[7] for line in lines if len(line) > 7}
