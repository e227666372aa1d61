"""The virtual hosts that other tests run on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.commands import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)


def reaches(hosts: Hosts, source: str, target: str, wait: float = 1.0) -> bool:
    """Whether the SSH server of `target` greets `source` within `wait` seconds."""
    code = (
        f"import socket; s = socket.create_connection(({target!r}, 22), {wait}); "
        f"s.settimeout({wait}); raise SystemExit(not s.recv(3))"
    )
    done = hosts.exec(source, [sys.executable, "-I", "-S", "-c", code], check=False)
    return done.returncode == 0


def await_reached(hosts: Hosts, source: str, target: str) -> None:
    """Waits until it does: a packet that the line lost is sent again only a second later."""
    until(lambda: reaches(hosts, source, target, wait=5.0), f"{source} reaches {target}", 30.0)


def sends(hosts: Hosts, source: str, target: str, size: int) -> float:
    """Copies bytes to `target` by SSH and returns the seconds it took."""
    start = time.monotonic()
    hosts.exec(source, ["ssh", target, "cat > /dev/null"], input="x" * size)
    return time.monotonic() - start


def test_hosts_are_apart_and_reach_each_other(hosts: Hosts, tmp_path: Path):
    names = hosts.exec("h1", ["sh", "-c", "hostname; ssh h2 hostname; ssh h3 ssh h1 hostname"])
    assert names.stdout.split() == ["h1", "h2", "h1"]
    before = os.listdir("/dev/shm")
    hosts.exec("h2", ["sh", "-c", "echo 1 > /dev/shm/own; echo 2 > shared"], cwd=tmp_path)
    assert os.listdir("/dev/shm") == before
    assert hosts.exec("h1", ["ls", "-A", "/dev/shm"]).stdout == ""
    assert (tmp_path / "shared").read_text() == "2\n"
    listening = hosts.exec("h1", ["ss", "-ltnH"]).stdout.splitlines()
    assert [line.split()[3] for line in listening] == ["10.77.0.1:22"]
    assert (
        "10.77.0"
        not in subprocess.run(["ip", "addr"], capture_output=True, text=True, check=False).stdout
    )


def test_processes_of_a_host_are_its_own(hosts: Hosts):
    assert hosts.processes("h1") == hosts.processes("h2") == []
    sleeper = hosts.popen("h2", ["sh", "-c", "sleep 100 & sleep 100 & wait"])
    until(lambda: len(hosts.processes("h2")) == 3, "three processes")
    assert hosts.processes("h1") == []
    spaces = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    hosts.popen("h1", [*spaces, "sleep 100 & wait"])
    until(lambda: "sleep 100" in [p.command for p in hosts.processes("h1")], "seen in a namespace")
    os.killpg(sleeper.pid, signal.SIGKILL)
    until(lambda: hosts.processes("h2") == [], "no process")
    hosts.popen("h1", ["ssh", "h3", "sleep 100"])
    until(lambda: [p.command for p in hosts.processes("h3")] == ["sleep 100"], "one process")


def test_a_command_that_fails_or_takes_long_is_told(hosts: Hosts):
    with pytest.raises(AssertionError, match=r"h1: false: status 1"):
        hosts.exec("h1", ["false"])
    with pytest.raises(AssertionError, match=r"h1: sh -c .*not done in 0.2 s"):
        hosts.exec("h1", ["sh", "-c", "sleep 100 & sleep 100"], timeout=0.2)
    until(lambda: hosts.processes("h1") == [], "no process")


def test_a_cable_is_cut_and_healed(hosts: Hosts):
    hosts.cut("h2")
    assert not reaches(hosts, "h1", "h2")
    await_reached(hosts, "h1", "h3")
    assert hosts.is_up("h2")
    hosts.heal("h2")
    await_reached(hosts, "h1", "h2")


def test_a_host_loses_its_power_and_boots(hosts: Hosts, tmp_path: Path):
    code = (
        "import socket, sys; s = socket.create_connection(('h2', 22)); s.recv(99); "
        "print('connected', flush=True); s.settimeout(1); s.recv(99)"
    )
    client = hosts.popen(
        "h1",
        [sys.executable, "-I", "-S", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert client.stdout.readline() == b"connected\n"
    hosts.popen("h2", ["sleep", "100"])
    hosts.poweroff("h2")
    assert not hosts.is_up("h2") and hosts.processes("h2") == []
    # It is told nothing: no end of file, no reset.
    assert b"TimeoutError" in client.communicate(timeout=10)[1]
    assert not reaches(hosts, "h1", "h2")
    hosts.boot("h2")
    await_reached(hosts, "h1", "h2")
    assert hosts.processes("h2") == []


def test_a_line_is_lossy_or_slow(hosts: Hosts):
    hosts.loss("h2", 1.0)
    assert not reaches(hosts, "h1", "h2")
    hosts.loss("h2", 0.0)
    await_reached(hosts, "h1", "h2")
    hosts.rate("h2", "1mbit")
    assert "tbf" in hosts.exec("h2", ["tc", "qdisc"]).stdout
    assert sends(hosts, "h1", "h2", 300_000) > 1.5
    assert sends(hosts, "h2", "h1", 300_000) > 1.5
    hosts.rate("h2", None)
    assert "tbf" not in hosts.exec("h2", ["tc", "qdisc"]).stdout


def test_bytes_are_counted_on_the_interface(hosts: Hosts):
    before = {name: (hosts.bytes_in(name), hosts.bytes_out(name)) for name in hosts.names}
    sends(hosts, "h1", "h2", 1_000_000)
    after = {name: (hosts.bytes_in(name), hosts.bytes_out(name)) for name in hosts.names}
    assert 1_000_000 <= after["h2"][0] - before["h2"][0] < 1_100_000
    assert 1_000_000 <= after["h1"][1] - before["h1"][1] < 1_100_000
    assert after["h3"][1] - before["h3"][1] < 10_000


def test_a_folder_of_its_own_outlasts_a_power_cut(tmp_path: Path):
    with Hosts(2, private=[tmp_path]) as hosts:
        hosts.exec("h1", ["sh", "-c", f"hostname > {tmp_path}/name"])
        assert (
            hosts.exec("h2", ["ls", "-A", tmp_path]).stdout == "" == "".join(os.listdir(tmp_path))
        )
        hosts.poweroff("h1")
        hosts.boot("h1")
        assert hosts.exec("h1", ["cat", tmp_path / "name"]).stdout == "h1\n"


def test_nothing_is_left_of_hosts_that_a_test_was_killed_with(tmp_path: Path):
    code = (
        "import sys, time; from tests.support.cluster.hosts import Hosts; "
        "h = Hosts(1); h.popen('h1', ['sleep', '100'])\n"
        "print(*[p.pid for p in h._machines._roots.values()], *h._inits.values(), flush=True)\n"
        "time.sleep(100)"
    )
    command = [sys.executable, "-c", code]
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with Hosts(1), subprocess.Popen(command, env=environ, stdout=-1, text=True) as test:
        assert test.stdout is not None
        processes = test.stdout.readline().split()
        test.kill()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes), "all gone")
