"""Hosts of a cluster on this machine, made of Linux namespaces, for tests over several machines.

A host has its own network, processes, host name, /run and /dev/shm, and an SSH server. Files are
this machine's, as on a cluster with a shared file system, but for the folders that a test names.
The network is a bridge in a namespace of its own: nothing is added to this machine's network, and
it does not reach the hosts. So commands run on a host, by `exec` or `popen`; there, `ssh h2` works.

No namespace has a name: each lives as long as its processes, and these end with the test's process
however that ends. Any number of tests can have hosts at the same time.

By hand:  python tests/cluster/virtual_hosts.py 3 [COMMAND...]    (a shell on h1 unless given)
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NETWORK = "10.77.0"
PACKAGES = {  # programs, and their Debian packages
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "iptables": "iptables",
}
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_SPACES = ("-n", "-u", "-i", "-m", "-p")  # nsenter's, of a host
_COMMAND_S = 60.0
_START_S = 20.0
_SERVERS = {"sshd", "munged", "slurmctld", "slurmd", "slurmscriptd"}  # of a host, not of a program

# A host's first process. Its arguments: sshd, the host's name, its folder, the folder of all hosts,
# and the folders that it shall have for itself.
_INIT = """
import os, pathlib, signal, socket, subprocess, sys, time
sshd, name, folder, common, *private = sys.argv[1:]
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
socket.sethostname(name)
mount("-t", "sysfs", "sysfs", "/sys")
mount("-t", "tmpfs", "tmpfs", "/sys/fs/cgroup")  # Slurm insists on one
mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
for i, path in enumerate(private):
    mount("--bind", f"{folder}/private{i}", path)
mount("--bind", f"{common}/hosts", "/etc/hosts")
if os.path.exists("/etc/hostname"):
    mount("--bind", f"{folder}/hostname", "/etc/hostname")
mount("--bind", f"{common}/ssh_config", "/etc/ssh/ssh_config")
for path in ("/run/sshd", "/run/lock"):
    os.mkdir(path)
print("mounted", flush=True)
input()  # the cable is plugged in
subprocess.run([sshd, "-f", f"{folder}/sshd_config", "-E", f"{folder}/sshd.log"], check=True)
while not os.path.exists("/run/sshd.pid"):  # it is written once sshd listens
    time.sleep(0.005)
print("up", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
while True:  # what loses its parent becomes the first process's child, as on any machine
    try:
        os.wait()
    except ChildProcessError:
        signal.sigwait([signal.SIGCHLD])
"""


class Process(NamedTuple):
    """A process on a host."""

    pid: int  # outside, for os.kill
    inner_pid: int  # as the host knows it
    command: str


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
        self._tools = find_tools(PACKAGES)
        _allowed(self._tools["unshare"])
        self.names = [f"h{i + 1}" for i in range(count)]
        self._private = [str(path) for path in private]
        self._switch: subprocess.Popen[str] | None = None
        self._hosts: dict[str, subprocess.Popen[str]] = {}
        self._inits: dict[str, int] = {}
        self._started: list[subprocess.Popen[Any]] = []
        self._limited: set[str] = set()
        self.folder = Path(tempfile.mkdtemp(prefix="hosts."))
        self.ssh_config = self.folder / "ssh_config"
        try:
            self._write_files()
            self._switch = self._namespace(
                "switch", "--net", "sh", "-c", "echo up; exec sleep infinity"
            )
            self._expect("up", self._switch, "switch")
            self._on_switch("ip", "link", "add", "br0", "type", "bridge")
            self._on_switch("ip", "link", "set", "br0", "up")
            for name in self.names:
                self._begin(name)
            for name in self.names:
                self._finish(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self._number(host)}"

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
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if os.readlink(entry / "ns/pid") != namespace:
                    continue
                words = (entry / "cmdline").read_bytes().rstrip(b"\0")
                if not words:  # it has ended, and its parent has not asked for its status
                    continue
                lines = (entry / "status").read_text().splitlines()
                status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                inner = int(status["NSpid"].split()[-1])
                if inner == 1 or status["Name"] in _SERVERS:
                    continue
                command = words.replace(b"\0", b" ").decode(errors="replace")
                found.append(Process(int(entry.name), inner, command))
        return sorted(found)

    # -- faults --------------------------------------------------------------------------------

    def cut(self, host: str) -> None:
        """Pulls the network cable."""
        self._on_switch("ip", "link", "set", self._port(host), "down")

    def heal(self, host: str) -> None:
        """Plugs it in again."""
        self._on_switch("ip", "link", "set", self._port(host), "up")

    def loss(self, host: str, share: float) -> None:
        """Loses a share (0 to 1) of the packets that reach the host."""
        self.exec(host, [self._tools["iptables"], "-F", "INPUT"])
        if share:
            rule = "-A INPUT -i eth0 -m statistic --mode random --probability"
            self.exec(host, [self._tools["iptables"], *rule.split(), str(share), "-j", "DROP"])

    def rate(self, host: str, rate: str | None) -> None:
        """Limits what the host sends, and what it receives: `10mbit`; None for no limit."""
        switch, init = self._switch_pid(), self._inits[host]
        for pid, device in ((switch, self._port(host)), (init, "eth0")):
            if rate is not None:
                limit = f"root tbf rate {rate} burst 64kb latency 400ms"
                self._in_network(pid, "tc", "qdisc", "replace", "dev", device, *limit.split())
            elif host in self._limited:
                self._in_network(pid, "tc", "qdisc", "del", "dev", device, "root")
        (self._limited.discard if rate is None else self._limited.add)(host)

    def poweroff(self, host: str) -> None:
        """Without a packet: the network goes first, then every process, with the TCP stack."""
        self._on_switch("ip", "link", "del", self._port(host))
        self._end(host)

    def boot(self, host: str) -> None:
        """Starts a host again that was powered off."""
        self._begin(host)
        self._finish(host)

    def is_up(self, host: str) -> bool:
        return host in self._inits

    def bytes_in(self, host: str) -> int:
        """Bytes that reached the host's interface since it booted."""
        return self._counters(host)[0]

    def bytes_out(self, host: str) -> int:
        """Bytes that left it."""
        return self._counters(host)[8]

    # -- making --------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends every process on every host, and removes `folder`."""
        for host in list(self._inits):
            self._end(host)
        for process in [*self._hosts.values(), *self._started, self._switch]:
            if process is None:
                continue
            if process.poll() is None:
                process.kill()
            process.wait(_START_S)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        self._hosts.clear()
        self._started.clear()
        self._switch = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_files(self) -> None:
        folder = self.folder
        hosts = "".join(f"{self.address(name)} {name}\n" for name in self.names)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{hosts}")
        user = self._key(folder / "key")
        (folder / "authorized_keys").write_text(f"{user}\n")
        known = ""
        for name in self.names:
            own = folder / name
            own.mkdir()
            for i in range(len(self._private)):
                (own / f"private{i}").mkdir()
            (own / "hostname").write_text(f"{name}\n")
            known += f"{name},{self.address(name)} {self._key(own / 'host_key')}\n"
            (own / "sshd_config").write_text(
                f"ListenAddress {self.address(name)}\nHostKey {own}/host_key\n"
                f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile /run/sshd.pid\n"
                "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
                "KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nMaxStartups 100\n"
            )
        (folder / "known_hosts").write_text(known)
        self.ssh_config.write_text(
            f"Host *\n  User root\n  IdentityFile {folder}/key\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
            "  BatchMode yes\n  ConnectTimeout 5\n"
        )

    def _key(self, path: Path) -> str:
        """Makes a key pair and returns its public half."""
        command = [self._tools["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path]
        subprocess.run(command, check=True, timeout=_COMMAND_S)
        return Path(f"{path}.pub").read_text().strip()

    def _namespace(self, name: str, *arguments: str) -> "subprocess.Popen[str]":
        """Runs what ends with this process, in namespaces of its own."""
        command = [self._tools["setpriv"], "--pdeathsig", "KILL", self._tools["unshare"]]
        with open(self.folder / f"{name}.log", "a") as log:
            return subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _expect(self, word: str, process: "subprocess.Popen[str]", name: str) -> None:
        """Waits until the process prints the word."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(_START_S)
        if not ready or process.stdout.readline().strip() != word:
            log = (self.folder / f"{name}.log").read_text()
            raise AssertionError(f"{name} is not {word} in {_START_S:g} s, or ended:\n{log}")

    def _begin(self, host: str) -> None:
        spaces = "--net --uts --ipc --mount --pid --fork --kill-child --mount-proc"
        python = [sys.executable, "-I", "-S", "-c", _INIT]
        arguments = [self._tools["sshd"], host, str(self.folder / host), str(self.folder)]
        self._hosts[host] = self._namespace(
            host, *spaces.split(), *python, *arguments, *self._private
        )

    def _finish(self, host: str) -> None:
        """Plugs the host in, once its first process is there, and waits until it is up."""
        process, port, number = self._hosts[host], self._port(host), self._number(host)
        self._expect("mounted", process, host)
        pid = process.pid
        self._inits[host] = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        self._on_switch(
            *f"ip link add {port} type veth peer name eth0".split(),
            *f"address 02:77:00:00:00:{number:02x} netns {pid}".split(),
        )
        self._on_switch(*f"ip link set {port} master br0 up".split())
        self._in_network(pid, *f"ip addr add {self.address(host)}/24 dev eth0".split())
        self._in_network(pid, "ip", "link", "set", "lo", "up")
        self._in_network(pid, "ip", "link", "set", "eth0", "up")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        self._expect("up", process, host)

    def _end(self, host: str) -> None:
        """Kills the first process: the kernel ends all others on the host before it is gone."""
        os.kill(self._inits.pop(host), signal.SIGKILL)
        self._hosts[host].wait(_START_S)
        self._limited.discard(host)

    def _number(self, host: str) -> int:
        return self.names.index(host) + 1

    def _port(self, host: str) -> str:
        return f"port{self._number(host)}"

    def _counters(self, host: str) -> list[int]:
        """The interface's line of /proc/net/dev: 8 numbers for what came, 8 for what went."""
        lines = Path(f"/proc/{self._inits[host]}/net/dev").read_text().splitlines()
        line = next(line for line in lines if line.strip().startswith("eth0:"))
        return [int(number) for number in line.partition(":")[2].split()]

    def _switch_pid(self) -> int:
        assert self._switch is not None, "the hosts are closed"
        return self._switch.pid

    def _on_switch(self, *command: str) -> None:
        self._in_network(self._switch_pid(), *command)

    def _in_network(self, pid: int, program: str, *arguments: str) -> None:
        enter = [self._tools["nsenter"], "-t", str(pid), "-n", self._tools[program]]
        done = subprocess.run(
            [*enter, *arguments], capture_output=True, text=True, timeout=_COMMAND_S
        )
        assert not done.returncode, f"{program} {' '.join(arguments)}: {done.stderr.strip()}"


def find_tools(packages: Mapping[str, str]) -> dict[str, str]:
    """Paths of programs; skips the test, saying why, where there can be no hosts.

    Args:
      packages: the Debian package of each.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("virtual hosts need Linux and root")
    found = {program: shutil.which(program, path=_PATH) for program in packages}
    missing = sorted({packages[program] for program, path in found.items() if path is None})
    if missing:
        pytest.skip(f"virtual hosts need what is not installed here: {' '.join(missing)}")
    return {program: path for program, path in found.items() if path is not None}


def _allowed(unshare: str) -> None:
    """Skips the test where namespaces cannot be made, as in most containers."""
    command = [unshare, "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    if tried.returncode:
        pytest.skip(f"virtual hosts need namespaces: {tried.stderr.strip()}")


if __name__ == "__main__":
    try:
        with Hosts(int(sys.argv[1])) as made:
            sys.exit(
                made.popen(
                    "h1", sys.argv[2:] or ["bash"], stdin=None, start_new_session=False
                ).wait()
            )
    except pytest.skip.Exception as skipped:
        sys.exit(str(skipped))
