"""`distrl train --topology=multi_machine` on virtual hosts, for tests."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.cluster.hosts import Hosts

ROOT = Path(__file__).parents[3]
CARTPOLE = ("--env=CartPole-v1", "--seed=1")
FOR_EVER = ("--max_env_steps=1000000000", "--config.goal.mean_return=None")
START_S = 150.0  # on a busy machine; each host imports everything
SOLVE_S = 240.0


class Program:
    """The command on one of the hosts, in a session of its own.

    Args:
      hosts: made.
      folder: for its run and its output; all hosts see it.
      flags: of `distrl train`.
      on: the launcher's host.
      hosts_flag: the value of --hosts.
      prefix: before the command, as `salloc`.
      environ: beside this process's environment.
    """

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        *flags: str,
        on: str = "h1",
        hosts_flag: str | None = "h1,h2,h3",
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ):
        self.hosts = hosts
        self._on = on
        self.run_dir = folder / "run"
        self._output = folder / "output"
        command = [
            *prefix, "env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "distrl", "train",
            "--topology=multi_machine", f"--run_dir={self.run_dir}", *flags,
        ]  # fmt: skip
        if hosts_flag is not None:
            command.append(f"--hosts={hosts_flag}")
        with self._output.open("ab") as output:
            self.process = hosts.popen(
                on,
                command,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environ or {})},
            )

    def read(self, path: Path) -> None:
        """Where its output is from now on."""
        self._output = path

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def result(self) -> dict:
        return json.loads((self.run_dir / "result.json").read_text())

    def wait_for(self, true: Callable[[], bool], what: str, limit: float = START_S) -> None:
        """Fails when the command ends before, or with `limit` seconds."""
        deadline = time.monotonic() + limit
        while not true():
            ended = self.process.poll()
            assert ended is None, f"ended with {ended} before {what}\n{self.output}"
            assert time.monotonic() < deadline, f"not {what} in {limit:g} s\n{self.output}"
            time.sleep(0.05)

    def wait_for_training(self) -> None:
        self.wait_for(lambda: "first learner step" in self.output, "training")

    def await_training(self, after: int, limit: float = START_S) -> None:
        """Of a job: until it learns, as its output says behind so many characters."""
        deadline = time.monotonic() + limit
        while "learner steps" not in self.output[after:]:
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def learner_steps(self) -> int:
        """Those that were last printed; 0 before."""
        found = re.findall(r"learner steps ([\d,]+)", self.output)
        return int(found[-1].replace(",", "")) if found else 0

    def gets_on(self, limit: float = 60.0, updates: int = 100) -> None:
        """Waits until it has learned from data that came after now."""
        target = self.learner_steps() + updates
        self.wait_for(lambda: self.learner_steps() > target, "learning on", limit)

    def signal(self, number: int) -> None:
        """To the command itself, and to nothing else."""
        (own,) = [
            process.pid
            for process in self.hosts.processes(self._on)
            if f"--run_dir={self.run_dir}" in process.command and process.name == "python"
        ]
        os.kill(own, number)


def nothing_is_left(hosts: Hosts, limit: float = 30.0) -> None:
    """On no host, within so many seconds."""
    deadline = time.monotonic() + limit
    while True:
        left = {name: hosts.processes(name) for name in hosts.names if hosts.is_up(name)}
        if not any(left.values()):
            return
        assert time.monotonic() < deadline, f"left after {limit:g} s: {left}"
        time.sleep(0.1)


def listening(hosts: Hosts, host: str) -> set[str]:
    """Addresses with ports on which a host listens, without its SSH server's."""
    lines = hosts.exec(host, ["ss", "-ltnH"]).stdout.splitlines()
    found = {line.split()[3] for line in lines}
    return {address for address in found if not address.endswith(":22")}


def served_ports(hosts: Hosts, host: str) -> set[str]:
    """Ports of a host's servers, which listen on Unix sockets of these names."""
    return set(
        re.findall(r"/s:(\d+)$", hosts.exec(host, ["cat", "/proc/net/unix"]).stdout, re.MULTILINE)
    )
