"""Hosts of a cluster on this machine, made of Linux namespaces, for tests over several machines.

A host has its own network, processes, host name, /run and /dev/shm, and an SSH server. Files are
this machine's, as on a cluster with a shared file system, but for the folders that a test names.
The network is a bridge in a namespace of its own: nothing is added to this machine's network, and
it does not reach the hosts. So commands run on a host, by `exec` or `popen`; there, `ssh h2` works.

No namespace has a name: each lives as long as its processes, and these end with the test's process
however that ends. Any number of tests can have hosts at the same time.

By hand:  python -m tests.support.cluster.hosts 3 [COMMAND...]   (a shell on h1 unless given)
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.cluster.machines import SWITCH, Machines

_SPACES = ("-n", "-u", "-i", "-m", "-p")  # nsenter's, of a host
_COMMAND_S = 60.0
_STATUS = re.compile(r"^(Name|PPid|NSpid):\t(.*)$", re.MULTILINE)
_SERVERS = {"sshd", "munged", "slurmctld", "slurmd", "slurmscriptd"}  # of a host, not of a program


class Process(NamedTuple):
    """A process on a host."""

    pid: int  # outside, for os.kill
    inner_pid: int  # as the host knows it
    command: str
    name: str


class Hosts:
    """Hosts h1, h2, ... on one network, until `close()`.

    Args:
      count: how many.
      private: existing folders that each host shall have for itself, empty at first; what it writes
        there is in `folder / NAME / private0` (1, ...) and outlasts a power cut.

    Attributes:
      names: of the hosts.
      folder: for what the hosts need; goes with them.
      ssh_config: what `ssh` uses on the hosts; for `ssh -F` where another one would be used.
    """

    def __init__(self, count: int = 3, private: Sequence[Path] = ()):
        self._machines = Machines(count, private)
        self._tools, self._inits = self._machines.tools, self._machines.inits
        self._started: list[subprocess.Popen[Any]] = []
        self._limited: set[str] = set()
        self.names = self._machines.names
        self.folder = self._machines.folder
        self.ssh_config = self._machines.ssh_config

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def address(self, host: str) -> str:
        return self._machines.address(host)

    # -- commands ------------------------------------------------------------------------------

    def popen(self, host: str, command: Sequence[str | Path], **options: Any) -> Any:
        """Starts a command on a host, in a session of its own, so that `os.killpg(it.pid, ...)`
        reaches it and its children; it ends with the hosts at the latest.

        Args:
          host: its name.
          command: as for subprocess.Popen.
          **options: of subprocess.Popen; `cwd` is this process's unless given.
        """
        folder = options.pop("cwd", None) or os.getcwd()
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("start_new_session", True)
        command = ["env", f"--chdir={folder}", *map(str, command)]
        enter = [self._tools["nsenter"], "-t", str(self._inits[host]), *_SPACES]
        process = subprocess.Popen(enter + command, **options)
        self._started.append(process)
        return process

    def exec(
        self,
        host: str,
        command: Sequence[str | Path],
        timeout: float = _COMMAND_S,
        check: bool = True,
        **options: Any,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command on a host and returns its status and output (text).

        Raises:
          AssertionError: it failed, unless `check` is False; or took longer than `timeout`.
        """
        given = options.pop("input", None)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        if given is not None:
            options["stdin"] = subprocess.PIPE
        process = self.popen(host, command, text=True, **options)
        told = f"{host}: {' '.join(map(str, command))}"
        try:
            out, err = process.communicate(given, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=_COMMAND_S)
            raise AssertionError(f"{told}: not done in {timeout:g} s\n{out}\n{err}") from None
        finally:
            self._started.remove(process)
        if check and process.returncode:
            raise AssertionError(f"{told}: status {process.returncode}\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self, host: str) -> list[Process]:
        """What runs on a host, but for what makes it a host (its first process, servers)."""
        if host not in self._inits:
            return []
        namespace = os.readlink(f"/proc/{self._inits[host]}/ns/pid")
        found: dict[int, Process] = {}
        parents: dict[int, int] = {}
        inside: set[int] = set()
        for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]:
            # It ended just now, or is this machine's own.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                status = dict(_STATUS.findall(Path(f"/proc/{pid}/status").read_text()))
                words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
                command = words.replace(b"\0", b" ").decode(errors="replace")
                inner = int(status["NSpid"].split()[-1])
                found[pid] = Process(pid, inner, command, status["Name"])
                parents[pid] = int(status["PPid"])
                if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                    inside.add(pid)
        # Children may be in a namespace that a process of the host made.
        while more := {pid for pid, of in parents.items() if of in inside} - inside:
            inside |= more
        # One without a command has ended, and its parent has not asked for its status.
        return [
            found[pid]
            for pid in sorted(inside - {self._inits[host]})
            if found[pid].command and found[pid].name not in _SERVERS
        ]

    # -- faults --------------------------------------------------------------------------------

    def cut(self, host: str) -> None:
        """Pulls the network cable."""
        self._machines.run(SWITCH, "ip", "link", "set", self._machines.port(host), "down")

    def heal(self, host: str) -> None:
        """Plugs it in again."""
        self._machines.run(SWITCH, "ip", "link", "set", self._machines.port(host), "up")

    def loss(self, host: str, share: float) -> None:
        """Loses a share (0 to 1) of the packets that reach the host."""
        self.exec(host, [self._tools["iptables"], "-F", "INPUT"])
        if share:
            rule = "-A INPUT -i eth0 -m statistic --mode random --probability"
            self.exec(host, [self._tools["iptables"], *rule.split(), str(share), "-j", "DROP"])

    def close_ports(self, host: str) -> None:
        """Refuses connections from other hosts, but for SSH, until `loss` is set."""
        rule = "-A INPUT -i eth0 -p tcp --syn ! --dport 22 -j REJECT --reject-with tcp-reset"
        self.exec(host, [self._tools["iptables"], *rule.split()])

    def rate(self, host: str, rate: str | None) -> None:
        """Limits what the host sends, and what it receives: `10mbit`; None for no limit."""
        for network, device in ((SWITCH, self._machines.port(host)), (host, "eth0")):
            if rate is not None:
                limit = f"root tbf rate {rate} burst 64kb latency 400ms"
                self._machines.run(network, "tc", "qdisc", "replace", "dev", device, *limit.split())
            elif host in self._limited:
                self._machines.run(network, "tc", "qdisc", "del", "dev", device, "root")
        (self._limited.discard if rate is None else self._limited.add)(host)

    def poweroff(self, host: str) -> None:
        """Without a packet: the network goes first, then every process, with the TCP stack."""
        self._machines.run(SWITCH, "ip", "link", "del", self._machines.port(host))
        self._machines.end(host)
        self._limited.discard(host)

    def boot(self, host: str) -> None:
        """Starts a host again that was powered off."""
        self._machines.start([host])

    def is_up(self, host: str) -> bool:
        return host in self._inits

    def bytes_in(self, host: str) -> int:
        """Bytes that reached the host's interface since it booted."""
        return self._counters(host)[0]

    def bytes_out(self, host: str) -> int:
        """Bytes that left it."""
        return self._counters(host)[8]

    def close(self) -> None:
        """Ends every process on every host, and removes `folder`."""
        self._machines.close()
        for process in self._started:
            process.wait(_COMMAND_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._started.clear()

    def _counters(self, host: str) -> list[int]:
        """The interface's line of /proc/net/dev: 8 numbers for what came, 8 for what went."""
        lines = Path(f"/proc/{self._inits[host]}/net/dev").read_text().splitlines()
        line = next(line for line in lines if line.strip().startswith("eth0:"))
        return [int(number) for number in line.partition(":")[2].split()]


if __name__ == "__main__":
    try:
        with Hosts(int(sys.argv[1])) as made:
            typed = {"stdin": None, "start_new_session": False}
            sys.exit(made.popen("h1", sys.argv[2:] or ["bash"], **typed).wait())
    except pytest.skip.Exception as skipped:
        sys.exit(str(skipped))
