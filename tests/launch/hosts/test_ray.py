"""Programs on a Ray cluster, as far as that needs no Ray; the rest is in tests/cluster."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distrl.errors import ConfigError
from distrl.launch.hosts import ray_cluster, ray_relay
from distrl.launch.hosts.ray_actor import DaemonActor
from distrl.launch.hosts.ray_cluster import cluster_address, hosts_on_cluster
from distrl.launch.hosts.ray_resources import bundle, hosts_of, why_unplaced
from distrl.programs.placement import Host


def node(name: str, cpus: float, free: float | None = None, **other: Any) -> dict[str, Any]:
    resources = {"CPU": cpus, f"node:{name}.address": 1.0, **other.pop("resources", {})}
    return {
        "NodeManagerHostname": name,
        "NodeManagerAddress": f"{name}.address",
        "Alive": True,
        "Resources": resources,
        "Available": {**resources, "CPU": cpus if free is None else free},
        **other,
    }


def test_a_hosts_bundle():
    assert bundle(Host("a")) == {"CPU": 1.0}
    wanted = bundle(Host("a", address="10.0.0.1", cores=8, gpus=1, memory_gb=1.5))
    assert wanted == {"CPU": 8.0, "GPU": 1.0, "memory": 1.5e9, "node:10.0.0.1": 0.001}


def test_a_host_for_each_node_the_one_with_gpus_first():
    nodes = [
        node("b", 4.0),
        node("gone", 4.0, Alive=False),
        node("storage", 0.0),
        node("c", 8.0, resources={"GPU": 2.0}),
        node("a", 2.0),
    ]
    assert hosts_of(nodes) == (
        Host("c", "c.address", cores=8, gpus=2),
        Host("a", "a.address", cores=2),
        Host("b", "b.address", cores=4),
    )
    with pytest.raises(ConfigError, match="no node of the cluster has a CPU"):
        hosts_of(nodes[1:3])
    with pytest.raises(ConfigError, match=r"several nodes .* have the same host name"):
        hosts_of([node("a", 1.0), node("a", 1.0)])


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            [Host("a"), Host("b"), Host("c")],
            "3 hosts need nodes of their own, and the cluster has 2",
        ),
        ([Host("a", cores=5)], "host a needs 5 CPU: no node has that; n1 2 CPU; n2 4 CPU"),
        ([Host("a", gpus=1)], "host a needs 1 CPU, 1 GPU: no node has that"),
        ([Host("a", memory_gb=1)], "host a needs 1 CPU, 1000000000 bytes of memory: no node"),
        ([Host("a", "h9")], "host a: no node has the address h9; there are n1.address, n2.address"),
        ([Host("a", "n1.address", cores=4)], "host a needs 4 CPU: no node has that"),
        ([Host("a", cores=3)], "asked for a 3 CPU; free: n1 2 CPU; n2 1 CPU"),
    ],
)
def test_why_hosts_have_no_place(hosts: list[Host], message: str):
    nodes = [node("n1", 2.0), node("n2", 4.0, free=1.0), node("gone", 9.0, Alive=False)]
    assert message in why_unplaced(hosts, nodes)


def test_the_clusters_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Ray is not installed here: pip install"):
        cluster_address(None, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert cluster_address(None, {}) == "auto"
    with pytest.raises(ConfigError, match=r"--ray=ray://h1:10001: give HOST:PORT of"):
        cluster_address("ray://h1:10001", {})
    with pytest.raises(ConfigError, match="--ray: expected HOST:PORT, got 'h1'"):
        cluster_address("h1", {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert cluster_address(None, {"RAY_ADDRESS": address}) == address
    with pytest.raises(ConfigError, match="no Ray cluster is there: Connection refused"):
        cluster_address(address, {})


def read_all(actor: DaemonActor) -> tuple[bytes, bytes]:
    """Reads until the command ends; pytest's timeout is the limit."""
    output, errors, ended = b"", b"", False
    while not ended:
        more, more_errors, ended = actor.read(1.0)
        output, errors = output + more, errors + more_errors
    return output, errors


def test_an_actor_passes_on_a_commands_streams():
    actor = DaemonActor()
    code = "import sys, os; data = sys.stdin.read(); print(len(data), os.getsid(0) == os.getpid())"
    actor.start([sys.executable, "-I", "-S", "-c", f"{code}; print('why', file=sys.stderr)"])
    assert actor.read(0.0) == (b"", b"", False)
    actor.write(b"x" * 300_000)  # more than a pipe holds
    actor.close_input()
    output, errors = read_all(actor)
    assert output.split()[0] == b"300000" and errors in (b"", b"why\n")
    actor.start(["/no/such/python"])
    output, errors = read_all(actor)
    assert output == b""


def test_an_actor_drops_what_an_ended_command_does_not_read():
    actor = DaemonActor()
    actor.start(["true"])
    read_all(actor)
    actor.write(b"x" * 300_000)


def test_a_relay_lends_its_streams(tmp_path: Path):
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    command = [sys.executable, "-I", "-S", ray_relay.__file__, path, "h1"]
    relay = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1)
    with listener, listener.accept()[0] as connection:
        name, fds, _, _ = socket.recv_fds(connection, 100, 3)
        assert name == b"h1"
        os.write(fds[1], b"to the launcher")
        for fd in fds:
            os.close(fd)
        connection.send(b"0")
    assert relay.communicate(timeout=20.0) == (b"to the launcher", b"")
    assert relay.returncode == 0
    ended = subprocess.run(command, capture_output=True, timeout=20.0, check=False)
    assert ended.returncode == 1
    assert ended.stderr == b"the bridge to the Ray cluster: Connection refused\n"


BRIDGE = """
import json, sys, time
task = json.loads(sys.stdin.readline())
print(json.dumps({answer}), flush=True)
{then}
"""


def fake_bridge(patch: pytest.MonkeyPatch, answer: str, then: str = "sys.stdin.read()") -> None:
    code = BRIDGE.format(answer=answer, then=then)
    patch.setattr(ray_cluster, "python_command", lambda module: [sys.executable, "-c", code])


def test_a_cluster_is_used_until_it_is_lost(monkeypatch: pytest.MonkeyPatch):
    lose = "sys.stdin.readline(); print(json.dumps({'lost': 'no head'}), flush=True)"
    fake_bridge(monkeypatch, "{'placed': 1}", f"{lose}; sys.stdin.read()")
    with hosts_on_cluster("auto", [Host("a")], ["daemon"], wait=1.0) as cluster:
        assert cluster.lost() is None
        *_, path, name = cluster.connect(Host("a"))
        folder = Path(path).parent
        assert folder.is_dir() and name == "a"
        process = cluster._process
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20.0
        while (reason := cluster.lost()) is None:
            assert time.monotonic() < deadline
        assert reason == cluster.lost() == "no head"
    assert process.returncode == 0 and not folder.exists()


@pytest.mark.parametrize(
    ("answer", "then", "message"),
    [
        ("{'error': 'Ray: other version'}", "", "^Ray: other version$"),
        (
            "{'no_room': []}",
            "",
            r"^Ray: 1 hosts need nodes of their own, and the cluster has 0 \(waited",
        ),
        ("1 / 0", "", r"has ended \(.*ZeroDivisionError: division by zero\)"),
    ],
)
def test_a_bridge_that_refuses_or_fails(
    monkeypatch: pytest.MonkeyPatch, answer: str, then: str, message: str
):
    fake_bridge(monkeypatch, answer, then)
    cluster = hosts_on_cluster("auto", [Host("a")], ["daemon"], wait=1.0)
    with pytest.raises(ConfigError, match=message), cluster:
        pass
