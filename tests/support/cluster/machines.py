"""The machines under virtual hosts: namespaces, the cables between them, SSH servers and keys."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
_COMMAND_S = 60.0
_START_S = 20.0
SWITCH = "switch"
_SWITCH = "echo up; exec sleep infinity"  # its only process

# A machine's first process. Its arguments: sshd, the machine's name, its folder, the folder of all
# machines, and the folders that it shall have for itself.
_INIT = """
import os, signal, socket, subprocess, sys, time
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


class Machines:
    """Machines h1, h2, ... on one network, all up, until `close()`.

    Args:
      count: how many.
      private: existing folders that each machine shall have for itself.

    Attributes:
      names: of the machines.
      folder: for what they need; goes with them.
      ssh_config: what `ssh` uses on them.
      inits: the first process of each that is up.
      tools: paths of the programs that make them.
    """

    def __init__(self, count: int, private: Sequence[Path]):
        self.tools = find_tools(PACKAGES)
        _allowed(self.tools["unshare"])
        self.names = [f"h{i + 1}" for i in range(count)]
        self.inits: dict[str, int] = {}
        self._private = [str(path) for path in private]
        self._roots: dict[str, subprocess.Popen[str]] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="hosts."))
        self.ssh_config = self.folder / "ssh_config"
        try:
            self._write_files()
            self._roots[SWITCH] = self._namespace(SWITCH, "--net", "sh", "-c", _SWITCH)
            self._expect("up", SWITCH)
            self.run(SWITCH, "ip", "link", "add", "br0", "type", "bridge")
            self.run(SWITCH, "ip", "link", "set", "br0", "up")
            self.start(self.names)
        except BaseException:
            self.close()
            raise

    def start(self, names: Sequence[str]) -> None:
        """Starts machines, and waits until they are up."""
        for name in names:
            self._begin(name)
        for name in names:
            self._finish(name)

    def end(self, name: str) -> None:
        """Kills the first process: the kernel ends all others of the machine before it is gone."""
        os.kill(self.inits.pop(name), signal.SIGKILL)
        self._roots[name].wait(_START_S)

    def run(self, name: str, program: str, *arguments: str) -> None:
        """Runs one of `tools` of this machine in the network of another, or on the SWITCH."""
        enter = [self.tools["nsenter"], "-t", str(self._roots[name].pid), "-n", self.tools[program]]
        done = subprocess.run(
            [*enter, *arguments], capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
        assert not done.returncode, f"{program} {' '.join(arguments)}: {done.stderr.strip()}"

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self._number(name)}"

    def port(self, name: str) -> str:
        """The switch's device that the machine's cable goes to."""
        return f"port{self._number(name)}"

    def close(self) -> None:
        """Ends every machine and removes `folder`."""
        for name in list(self.inits):
            self.end(name)
        for process in self._roots.values():
            if process.poll() is None:
                process.kill()
            process.wait(_START_S)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        self._roots.clear()
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
        command = [self.tools["ssh-keygen"], "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path]
        subprocess.run(command, check=True, timeout=_COMMAND_S)
        return Path(f"{path}.pub").read_text().strip()

    def _namespace(self, name: str, *arguments: str) -> "subprocess.Popen[str]":
        """Runs what ends with this process, in namespaces of its own."""
        command = [self.tools["setpriv"], "--pdeathsig", "KILL", self.tools["unshare"]]
        with open(self.folder / f"{name}.log", "a") as log:
            return subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _expect(self, word: str, name: str) -> None:
        """Waits until the process prints the word."""
        process = self._roots[name]
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(_START_S)
        if not ready or process.stdout.readline().strip() != word:
            log = (self.folder / f"{name}.log").read_text()
            raise AssertionError(f"{name} is not {word} in {_START_S:g} s, or ended:\n{log}")

    def _begin(self, name: str) -> None:
        spaces = "--net --uts --ipc --mount --pid --fork --kill-child --mount-proc"
        python = [sys.executable, "-I", "-S", "-c", _INIT]
        arguments = [self.tools["sshd"], name, str(self.folder / name), str(self.folder)]
        self._roots[name] = self._namespace(
            name, *spaces.split(), *python, *arguments, *self._private
        )

    def _finish(self, name: str) -> None:
        """Plugs the machine in, once its first process is there, and waits until it is up."""
        process, port, number = self._roots[name], self.port(name), self._number(name)
        self._expect("mounted", name)
        pid = process.pid
        self.inits[name] = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        self.run(
            SWITCH,
            *f"ip link add {port} type veth peer name eth0".split(),
            *f"address 02:77:00:00:00:{number:02x} netns {pid}".split(),
        )
        self.run(SWITCH, *f"ip link set {port} master br0 up".split())
        self.run(name, *f"ip addr add {self.address(name)}/24 dev eth0".split())
        self.run(name, "ip", "link", "set", "lo", "up")
        self.run(name, "ip", "link", "set", "eth0", "up")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        self._expect("up", name)

    def _number(self, name: str) -> int:
        return self.names.index(name) + 1


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
    tried = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if tried.returncode:
        pytest.skip(f"virtual hosts need namespaces: {tried.stderr.strip()}")
