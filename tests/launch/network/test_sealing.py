"""Credentials that only the tunnel's process can open."""

import base64
import contextlib
import os
import re
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from distrl.errors import ConfigError
from distrl.launch.hosts.join_client import join_token
from distrl.launch.network.credentials import Credentials, make_credentials, write_credentials
from distrl.launch.network.private_folder import new_folder
from distrl.launch.network.sealing import Opener, seal
from distrl.launch.network.tunnel_process import SealedTunnel, end_tunnel, start_tunnel_of_file

MADE = Credentials(b"certificate", b"a private key")


def test_only_its_receiver_opens_what_is_sealed():
    opener, other = Opener(), Opener()
    sealed = seal(MADE, opener.public_key)
    assert opener.open(sealed) == MADE
    assert seal(MADE, opener.public_key) != sealed and b"private" not in base64.b64decode(sealed)
    with pytest.raises(ConfigError, match="sealed for another process"):
        other.open(sealed)
    changed = bytearray(base64.b64decode(sealed))
    changed[40] ^= 1
    with pytest.raises(ConfigError, match="sealed for another process"):
        opener.open(base64.b64encode(changed).decode())


def memory_of(pid: int) -> bytes:
    """All memory of a process that it can write."""
    parts = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found is not None:
                first, last = (int(each, 16) for each in found.groups())
                memory.seek(first)
                with contextlib.suppress(OSError):
                    parts.append(memory.read(last - first))
    return b"".join(parts)


DAEMON = """
import socket, sys
from distrl.launch.network.tunnel_process import SealedTunnel

tunnel = SealedTunnel()
print(tunnel.pid, tunnel.public_key, flush=True)
sealed, path = sys.stdin.readline().split()
tunnel.start(socket.create_server(("127.0.0.1", 0)), sealed, {}, {path: ("localhost", 1, 1)})
sys.stdin.readline()
"""


@pytest.mark.timeout(60)
def test_the_key_is_in_no_memory_but_the_tunnels():
    credentials = make_credentials()
    secret = credentials.key.splitlines()[1][30:60]  # what differs between keys
    folder = new_folder()
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        pid, public_key = process.stdout.readline().split()
        process.stdin.write(f"{seal(credentials, public_key)} {folder}/s\n")
        process.stdin.flush()
        connect(f"{folder}/s").close()  # it runs
        assert secret in memory_of(int(pid))
        assert secret not in memory_of(process.pid)
    finally:
        process.communicate("end\n", timeout=20.0)
        (folder / "s").unlink(missing_ok=True)
        folder.rmdir()


@pytest.mark.timeout(60)
def test_a_tunnel_carries_with_credentials_that_its_parent_has_never_had():
    credentials = make_credentials()
    folder = new_folder()
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{folder}/server")
    server.listen()
    server.settimeout(20.0)
    pids = []
    try:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serving = SealedTunnel()
        pids.append(serving.pid)
        sealed = seal(credentials, serving.public_key)
        serving.start(listener, sealed, {7: f"unix:{folder}/server"}, {})
        assert len(serving.fds()) == 1  # by which it hears where servers are
        path = folder / "credentials.pem"
        write_credentials(path, credentials)
        with socket.create_server(("127.0.0.1", 0)) as unused:
            forwards = {f"{folder}/client": ("127.0.0.1", port, 7)}
            pid, token = start_tunnel_of_file(unused, str(path), forwards, join_token)
        pids.append(pid)
        assert token == join_token(credentials)
        client = connect(f"{folder}/client")
        client.sendall(b"through")
        connection, _ = server.accept()
        connection.settimeout(20.0)
        assert connection.recv(7) == b"through"
    finally:
        for pid in pids:
            end_tunnel(pid)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@pytest.mark.timeout(60)
def test_new_connections_go_to_where_a_server_is_now():
    """Two hosts in turn have it, at different ports; what one carries stays there."""
    credentials = make_credentials()
    folder = new_folder()
    tunnels = [SealedTunnel() for _ in range(3)]
    forwarding = tunnels[2]
    servers, targets = [], []
    try:
        for number, tunnel in enumerate(tunnels[:2]):
            server = socket.socket(socket.AF_UNIX)
            server.bind(f"{folder}/server{number}")
            server.listen()
            server.settimeout(20.0)
            servers.append(server)
            listener = socket.create_server(("127.0.0.1", 0))
            sealed = seal(credentials, tunnel.public_key)
            tunnel.start(listener, sealed, {7 + number: f"unix:{folder}/server{number}"}, {})
            targets.append(("127.0.0.1", listener.getsockname()[1], 7 + number))
        path = f"{folder}/client"
        unused = socket.create_server(("127.0.0.1", 0))
        sealed = seal(credentials, forwarding.public_key)
        forwarding.start(unused, sealed, {}, {path: targets[0]})
        first = connect(path)
        accepted, _ = servers[0].accept()
        accepted.settimeout(20.0)
        forwarding.forward_to({path: targets[1]})
        for server in servers:
            server.setblocking(False)
        moved = []
        while not moved:  # it takes the change over at once, but beside its connections
            clients = [connect(path)]
            ready, _, _ = select.select(servers, [], [], 20.0)
            assert ready
            connection, _ = ready[0].accept()
            moved += clients if ready[0] is servers[1] else []
        connection.settimeout(20.0)
        moved[0].sendall(b"moved")
        assert connection.recv(5) == b"moved"
        first.sendall(b"first")
        assert accepted.recv(5) == b"first"
        end_tunnel(forwarding.pid)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            forwarding.forward_to({path: targets[0]})
    finally:
        for tunnel in tunnels:
            with contextlib.suppress(ProcessLookupError):
                end_tunnel(tunnel.pid)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@pytest.mark.timeout(60)
def test_a_host_that_must_be_reached_is_tried_until_it_is():
    credentials = make_credentials()
    folder = new_folder()
    tunnels = [SealedTunnel() for _ in range(2)]
    trying, other = tunnels
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:  # nobody else gets its port
            port = taken.getsockname()[1]
            at = ("127.0.0.1", port)
            with socket.create_server(("127.0.0.1", 0)) as unused:
                sealed = seal(credentials, trying.public_key)
                forwards = {f"{folder}/client": (*at, 7)}
                taken.shutdown(socket.SHUT_RDWR)  # refuses connections
                trying.start(unused, sealed, {}, forwards, [at])
            assert trying.news() == (*at, "Connection refused")
            trying.forward_to(forwards, [("a..b", port)])
            while (news := trying.news())[0] != "a..b":
                pass
            assert "label empty" in news[2]
            trying.forward_to(forwards, [at])
        listener = socket.create_server(at)
        other.start(listener, seal(credentials, other.public_key), {}, {})
        assert trying.news() == (*at, "")
        listener.close()
        end_tunnel(other.pid)
        assert connect(f"{folder}/client").recv(1) == b""
        assert trying.news() == (*at, "Connection refused")
        end_tunnel(trying.pid)
        with pytest.raises(ConnectionError, match="the tunnel's process has ended"):
            trying.news()
    finally:
        for tunnel in tunnels:
            with contextlib.suppress(ProcessLookupError):
                end_tunnel(tunnel.pid)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20.0)
    while True:
        try:
            client.connect(path)
            return client
        except (FileNotFoundError, ConnectionRefusedError):
            os.sched_yield()


def test_a_file_that_cannot_be_used_is_the_callers_error(tmp_path: Path):
    unused = socket.create_server(("127.0.0.1", 0))
    with unused, pytest.raises(ConfigError, match="No such file"):
        start_tunnel_of_file(unused, str(tmp_path / "none.pem"), {}, join_token)
