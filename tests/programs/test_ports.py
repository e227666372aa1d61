"""The servers of a real program: no other user and no other host reaches them."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import CARTPOLE, ROOT, Command, needs_launchpad
from tests.support.other_user import as_another_user
from tests.support.selection import full, slow

pytestmark = [
    needs_launchpad,
    pytest.mark.timeout(150),
]
PAYLOAD = Path(__file__).parent / "payload.py"


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
        with contextlib.suppress(FileNotFoundError):  # ended meanwhile
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
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


def attack(marker: Path, addresses: list[str]) -> list[str]:
    """Sends each the payload; returns what came of it."""
    command = [sys.executable, str(PAYLOAD), str(marker), *addresses]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    return "connected"


@pytest.mark.parametrize(
    ("topology", "launch_type", "backend", "servers"),
    [
        full("heavy_env", "local_mp", "reverb", 5),
        full("light_env", "local_mp", "shared_memory", 5),
        slow("light_env", "local_mt", "reverb", 6),
    ],
)
def test_strangers_reach_no_server(train, tmp_path, topology, launch_type, backend, servers):
    command = train(
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
        f"--lp_launch_type={launch_type}",
    )
    command.wait_for_training()
    assert not list(listening(command))
    deadline = time.monotonic() + 30
    while len(paths := sorted(command.sockets())) < servers:  # some begin while others learn
        assert time.monotonic() < deadline, f"{paths} after 30 s"
        time.sleep(0.05)
    for path in paths:
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        if os.geteuid() == 0:
            assert as_another_user(lambda path=path: connect(path)) == "PermissionError"

    # The user's own payload does make files: without the folder, so would a stranger's.
    answers = attack(tmp_path / "marker", [f"unix:{path}" for path in paths])
    reverb = int(backend == "reverb")
    assert len(list(tmp_path.glob("marker.*"))) == len(paths) - reverb, answers
    command.interrupt()
    assert command.process.wait(60.0) == 130
    assert not Path(paths[0]).parent.exists()


@pytest.mark.slow
def test_ports_are_open_only_when_the_user_says_so(train, monkeypatch):
    monkeypatch.setenv("DISTRL_OPEN_PORTS", "1")
    command = train("--topology=heavy_env")
    command.wait_for_training()
    assert {host for host, _ in listening(command)} == {"::"}
    assert re.search(r"DISTRL_OPEN_PORTS=1: .* can run commands as this user", command.output)
