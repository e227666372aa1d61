"""Servers that only their own user reaches."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from distrl.launch.network import loopback
from distrl.launch.network.endpoints import Endpoints
from distrl.launch.network.private_folder import PATH_LIMIT, new_folder
from distrl.shared_memory.process import Process
from tests.support.commands import needs_launchpad
from tests.support.other_user import as_another_user

# Serves, kills the server's process, serves again; then waits for a line.
SERVERS = """
    import os, sys
    import courier, launchpad as lp
    from distrl.launch.network import loopback
    from distrl.launch.network.endpoints import Endpoints

    endpoints = Endpoints()
    ports = [endpoints.take() for _ in range(3)]
    addresses = [endpoints.address(p, n) for p, n in zip(ports, ("courier", "reverb", "mine"))]
    assert [lp.get_port_from_address(a) for a in addresses] == ports

    pid = os.fork()
    if pid == 0:
        loopback.close_ports()
        courier.Server(port=ports[0]).Start()
        os._exit(0)  # leaves the socket's file
    os.waitpid(pid, 0)
    assert os.path.exists(addresses[0].removeprefix("unix:"))

    loopback.close_ports()
    server = courier.Server(port=ports[0])
    server.Bind("double", lambda x: 2 * x)
    server.Start()
    import reverb
    replay = reverb.Server([reverb.Table.queue("mine", 10)], port=ports[1])
    users = courier.Server(port=ports[2])
    users.Bind("triple", lambda x: 3 * x)
    users.Start()
    assert courier.Client(addresses[0], call_timeout=10).double(4) == 8
    assert list(reverb.Client(addresses[1]).server_info(timeout=10)) == ["mine"]
    assert courier.Client(addresses[2], call_timeout=10).triple(4) == 12
    for make in (lambda: courier.Server(port=ports[0]).Start(),
                 lambda: reverb.Server([reverb.Table.queue("another", 10)], port=ports[1])):
        try:
            make()
            print("two servers share a socket")
        except Exception:  # of another type in each library
            pass
    print(*addresses, flush=True)
    sys.stdin.readline()
    assert courier.Client(addresses[0], call_timeout=10).double(4) == 8
    endpoints.close()
    print("whole", flush=True)
    os._exit(0)
"""


@pytest.fixture
def servers() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVERS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate(timeout=10.0)


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    return "connected"


def listen_instead(path: str) -> str:
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
    return "listening"


@needs_launchpad
@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reaches_no_server_and_replaces_none(servers: "subprocess.Popen[str]"):
    assert servers.stdout is not None
    *private, users = servers.stdout.readline().split()
    assert len(private) == 2 and users.startswith("127.0.0.1:")
    for address in private:
        path = address.removeprefix("unix:")
        port = int(path.rpartition(":")[2])
        assert connect(path) == "connected"
        assert as_another_user(lambda path=path: connect(path)) == "PermissionError"
        assert as_another_user(lambda path=path: listen_instead(path)) == "PermissionError"
        with pytest.raises(ConnectionRefusedError):  # there is no port besides
            socket.create_connection(("127.0.0.1", port), 5.0)
    folder = Path(private[0].removeprefix("unix:")).parent
    assert servers.communicate("go\n", timeout=60.0)[0] == "whole\n"
    assert not folder.exists()


def test_a_socket_of_a_server_that_has_ended_is_replaced_and_a_live_one_is_not():
    endpoints = Endpoints()
    try:
        path = endpoints.address(endpoints.take(), "courier").removeprefix("unix:")
        first, second, third = (socket.socket() for _ in range(3))
        loopback._bind_unix(first.fileno(), path)
        first.listen()
        with pytest.raises(OSError, match="in use"):
            loopback._bind_unix(second.fileno(), path)
        assert connect(path) == "connected"
        first.close()
        loopback._bind_unix(third.fileno(), path)
        third.listen()
        assert connect(path) == "connected"
        if os.geteuid() == 0:
            assert as_another_user(lambda: connect(path)) == "PermissionError"
        second.close()
        third.close()
    finally:
        endpoints.close()


def test_open_ports_are_addresses_of_this_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(loopback.OPEN, "1")
    endpoints = Endpoints()
    port = endpoints.take()
    assert endpoints.address(port, "courier") == f"127.0.0.1:{port}"
    endpoints.close()
    assert port not in loopback.SOCKETS


def test_a_folder_is_private_and_short_and_outlives_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/a folder")
    folder = new_folder()  # elsewhere: gRPC would not understand the blank
    assert folder.parent == Path("/tmp")
    assert folder.stat().st_mode & 0o777 == 0o700 and len(f"{folder}/s:32000") <= PATH_LIMIT
    dead = folder.with_name(folder.name.replace(f".{Process.this().start}.", ".1.", 1))
    folder.rename(dead)
    namespace = f"distrl.{os.stat('/proc/self/ns/pid').st_ino}."
    elsewhere = dead.with_name(dead.name.replace(namespace, "distrl.7.", 1))
    elsewhere.mkdir()  # of a container, perhaps, which shares this folder and not our process ids
    other = folder.with_name("distrl.notes")
    other.mkdir()
    try:
        second = new_folder()
        assert not dead.exists() and other.exists() and elsewhere.exists()
        third = new_folder()
        assert second.exists()
    finally:
        other.rmdir()
        elsewhere.rmdir()
    second.rmdir()
    third.rmdir()


def test_a_folder_that_may_be_entered_and_not_listed_is_as_good(monkeypatch: pytest.MonkeyPatch):
    parent = Path(tempfile.mkdtemp(dir="/tmp"))  # those above pytest's are closed to other users
    parent.chmod(0o1333)
    monkeypatch.setattr("tempfile.tempdir", str(parent))
    if os.geteuid() == 0:  # may list any
        assert as_another_user(lambda: new_folder().parent) == str(parent)
    else:
        assert new_folder().parent == parent
    parent.chmod(0o700)
    shutil.rmtree(parent)
