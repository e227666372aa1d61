"""The ports of a real program: nobody but this host's loopback reaches them."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import CARTPOLE, ROOT, Command, needs_launchpad
from tests.support.selection import full, slow

pytestmark = [
    needs_launchpad,
    pytest.mark.timeout(150),
]
PAYLOAD = Path(__file__).parent / "payload.py"
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1"}


@pytest.fixture
def train(tmp_path):
    commands = []

    def start(*flags: str) -> Command:
        commands.append(Command(tmp_path, *flags, *CARTPOLE))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


def listening(command: Command) -> Iterator[tuple[str, int]]:
    """Host and port of each TCP socket on which one of the command's processes listens."""
    sockets = set()
    for pid in command.processes():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            sockets.add(os.readlink(fd))
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A" or f"socket:[{fields[9]}]" not in sockets:
                continue
            host, _, port = fields[1].partition(":")
            # Words of four bytes, each in this machine's order.
            words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
            packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
            yield socket.inet_ntop(family, packed), int(port, 16)


def other_addresses() -> list[str]:
    """Of this machine, beside the one that the servers listen on."""
    found = ["127.0.0.2", "[::1]"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses a route
            found.append(probe.getsockname()[0])
        except OSError:
            pass  # the machine has loopback only
    return found


def attack(marker: Path, addresses: list[str]) -> list[str]:
    """Sends each the payload; returns what came of it."""
    command = [sys.executable, str(PAYLOAD), str(marker), *addresses]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("topology", "launch_type", "backend", "servers"),
    [
        full("heavy_env", "local_mp", "reverb", 5),
        full("light_env", "local_mp", "shared_memory", 5),
        slow("light_env", "local_mt", "reverb", 6),
    ],
)
def test_strangers_reach_no_port(train, tmp_path, topology, launch_type, backend, servers):
    command = train(
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
        f"--lp_launch_type={launch_type}",
    )
    command.wait_for_training()
    found = list(listening(command))
    assert len(found) >= servers
    assert {host for host, _ in found} <= LOOPBACK, found
    ports = sorted(port for _, port in found)

    marker = tmp_path / "marker"
    others = other_addresses()
    for host in others:
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host.strip("[]"), port), 5.0)
    strangers = [f"{host}:{port}" for host in others for port in ports]
    answers = attack(marker, strangers)
    assert len(answers) == len(strangers)
    assert not [line for line in answers if "answered" in line]
    assert not list(tmp_path.glob("marker.*"))
    before = command.learner_steps()
    command.wait_for(lambda: command.learner_steps() > before, "training")

    # By loopback the same does make files: the test would have seen them.
    answers = attack(marker, [f"127.0.0.1:{port}" for port in ports])
    reverb = int(backend == "reverb")
    assert len(list(tmp_path.glob("marker.*"))) == len(ports) - reverb, answers


@pytest.mark.slow
def test_ports_are_open_only_when_the_user_says_so(train, monkeypatch):
    monkeypatch.setenv("DISTRL_OPEN_PORTS", "1")
    command = train("--topology=heavy_env")
    command.wait_for_training()
    assert {host for host, _ in listening(command)} == {"::"}
    assert re.search(r"DISTRL_OPEN_PORTS=1: .* runs commands as you", command.output)
