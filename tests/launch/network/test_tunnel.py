"""Connections between hosts: data arrives complete, and unauthenticated peers are refused."""

import asyncio
import contextlib
import errno
import hashlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import threading
import time
import unittest.mock
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from distrl.errors import ConfigError
from distrl.launch.network import credentials as tls
from distrl.launch.network import tunnel, tunnel_connection
from distrl.launch.network.private_folder import new_folder

ROOT = Path(__file__).parents[3]
HOST = Path(__file__).parent / "tunnel_host.py"
WAIT_S = 20.0
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.timeout(60)


class Hosts:
    """Two hosts: `server` has servers, `client` reaches them by Unix sockets."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.credentials = tls.make_credentials()
        self.processes: list[subprocess.Popen] = []
        self.sockets = contextlib.ExitStack()
        self.port = 0
        self._names = itertools.count()

    def start(self, **settings: object) -> list[int]:
        """Starts a host's tunnel; returns its ports."""
        prefix = settings.pop("prefix", ())
        path = Path(self.folder) / f"log{len(self.processes)}"
        log = self.sockets.enter_context(path.open("w"))
        process = subprocess.Popen(
            [*prefix, sys.executable, str(HOST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=ENV,
            text=True,
        )
        self.processes.append(process)
        credentials = self.credentials
        secrets = {
            "certificate": credentials.certificate.decode(),
            "key": credentials.key.decode(),
        }
        settings = {"host": "127.0.0.1", "open_ports": [], "forwards": {}, **secrets, **settings}
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(settings))
        process.stdin.close()
        return [int(port) for port in process.stdout.readline().split()]

    def log(self, index: int) -> str:
        return (Path(self.folder) / f"log{index}").read_text()

    def listen(self) -> tuple[socket.socket, int]:
        """A server of the host `server`, which is not started yet."""
        server = self.sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(WAIT_S)
        return server, server.getsockname()[1]

    def path(self) -> str:
        return f"{self.folder}/{next(self._names)}"

    def join(self, port: int, open_ports: list[int] | None = None) -> str:
        """Starts both hosts; returns the path by which the server at `port` is reached."""
        (self.port,) = self.start(open_ports=[port] if open_ports is None else open_ports)
        path = self.path()
        self.start(forwards={path: ("127.0.0.1", self.port, port)})
        return path

    def connect(self, path: str) -> socket.socket:
        client = self.sockets.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(WAIT_S)
        client.connect(path)
        return client

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection that is carried: the client's and the server's."""
        server, port = self.listen()
        client = self.connect(self.join(port))
        accepted, _ = server.accept()
        accepted.settimeout(WAIT_S)
        return client, self.sockets.enter_context(accepted)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(5)
            process.stdout.close()
        self.sockets.close()


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    folder = str(new_folder())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with private_folder() as folder:
        made = Hosts(folder)
        try:
            yield made
        finally:
            made.end()
        for index in range(len(made.processes)):
            assert "Traceback" not in made.log(index), made.log(index)


def read_all(sock: socket.socket) -> bytes:
    data = bytearray()
    while part := sock.recv(1 << 20):
        data += part
    return bytes(data)


def is_broken(sock: socket.socket) -> bool:
    """Whether the connection ends, by a reset or not."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def nobody_came(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()
    except BlockingIOError:
        return True
    return False


def test_each_direction_ends_by_itself(hosts):
    client, server = hosts.pair()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert read_all(server) == b"question"
    time.sleep(0.1)
    server.sendall(b"answer")
    server.close()
    assert read_all(client) == b"answer"


def test_large_data_arrives_complete_in_both_directions_despite_a_slow_reader(hosts):
    client, server = hosts.pair()
    data = random.Random(1).randbytes(48 << 20)
    got = {}

    def send(sock: socket.socket, data: bytes) -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    def receive(name: str, sock: socket.socket, wait: float) -> None:
        time.sleep(wait)
        got[name] = hashlib.sha256(read_all(sock)).digest()

    threads = [
        threading.Thread(target=send, args=(client, data)),
        threading.Thread(target=send, args=(server, data[::-1])),
        threading.Thread(target=receive, args=("up", server, 1.0)),
        threading.Thread(target=receive, args=("down", client, 0.0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert got["up"] == hashlib.sha256(data).digest()
    assert got["down"] == hashlib.sha256(data[::-1]).digest()


def test_a_sender_blocks_while_nobody_reads(hosts):
    client, _ = hosts.pair()
    client.settimeout(1.0)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 200 << 20:
            sent += client.send(bytes(1 << 20))
    assert sent < 50 << 20  # in buffers, the kernel's and ours


def test_a_reset_is_passed_on_and_a_dead_tunnel_breaks_what_it_carried(hosts):
    server, port = hosts.listen()
    path = hosts.join(port)
    for end in ("server", "client", "tunnel"):
        client = hosts.connect(path)
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(WAIT_S)
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
            if end == "server":
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()
                assert is_broken(client)
            elif end == "client":
                client.close()
                assert accepted.recv(1) == b""
                accepted.close()
                time.sleep(tunnel.WATCH_S + 0.2)  # till it is forgotten
            else:
                hosts.processes[1].kill()
                assert is_broken(client)
                with pytest.raises(ConnectionResetError):
                    accepted.recv(1)


def test_a_server_that_is_down_is_reported_and_reached_when_it_is_up(hosts):
    server, port = hosts.listen()
    server.close()
    path = hosts.join(port)
    assert is_broken(hosts.connect(path))
    with socket.create_server(("127.0.0.1", port)) as server:
        client = hosts.connect(path)
        server.settimeout(WAIT_S)
        server.accept()[0].close()
        assert is_broken(client)
    assert f"no connection to the server at port {port}: ConnectionRefusedError" in hosts.log(0)


def test_a_port_that_is_not_open_to_other_hosts_is_refused(hosts):
    server, port = hosts.listen()
    other, other_port = hosts.listen()
    path = hosts.join(port, open_ports=[other_port])
    assert is_broken(hosts.connect(path))
    assert f"port {port} is not open to other hosts" in hosts.log(0)
    assert nobody_came(server) and nobody_came(other)


def unauthenticated_contexts() -> dict[str, ssl.SSLContext]:
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    other = tls.client_context(tls.make_credentials())
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    return {"no certificate": nobody, "another program's": other}


HELLO = struct.Struct("!6sH").pack


@pytest.mark.parametrize("who", ["no certificate", "another program's", "old TLS", "plain text"])
def test_unauthenticated_peers_are_refused_before_a_byte_reaches_a_server(hosts, who):
    server, port = hosts.listen()
    hosts.join(port)
    with socket.create_connection(("127.0.0.1", hosts.port), WAIT_S) as sock:
        if who == "plain text":
            sock.sendall(HELLO(b"distrl", port) + b"GET / HTTP/1.1\r\n\r\n")
            assert is_broken(sock)
        elif who == "old TLS":
            context = tls.client_context(hosts.credentials)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(sock, server_hostname=tls.NAME)
        else:
            # In TLS 1.3 a client only learns of the refusal when it reads.
            secure = unauthenticated_contexts()[who].wrap_socket(sock)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                secure.sendall(HELLO(b"distrl", port) + b"data")
                assert not secure.recv(1)
                raise ConnectionError("it was closed")
    assert nobody_came(server)


def test_the_credentials_are_sufficient(hosts):
    """With the credentials, which the peers above lack, the same bytes reach the server."""
    server, port = hosts.listen()
    hosts.join(port)
    context = tls.client_context(hosts.credentials)
    with socket.create_connection(("127.0.0.1", hosts.port), WAIT_S) as sock:
        secure = context.wrap_socket(sock, server_hostname=tls.NAME)
        assert secure.version() == "TLSv1.3"
        secure.sendall(HELLO(b"distrl", port) + struct.pack("!I", 4) + b"data")
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(4) == b"data"


def test_a_host_of_another_program_gets_no_data(hosts):
    """Neither what a client sends, nor which server it asks for."""
    other = tls.make_credentials()
    got = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        impostor.settimeout(WAIT_S)
        path = hosts.path()
        hosts.start(forwards={path: ("127.0.0.1", impostor.getsockname()[1], 4711)})
        client = hosts.connect(path)
        client.sendall(b"secret")
        sock, _ = impostor.accept()
        context = tls.server_context(other)
        context.verify_mode = ssl.CERT_NONE
        with sock, contextlib.suppress(ssl.SSLError, ConnectionError):
            got.append(context.wrap_socket(sock, server_side=True).recv(100))
        assert is_broken(client)
    assert not any(got)
    assert "CERTIFICATE_VERIFY_FAILED" in hosts.log(0)


def test_unauthenticated_peers_cost_the_program_nothing(hosts):
    client, server = hosts.pair()
    pid = hosts.processes[0].pid

    def open_files() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    def round_trip() -> float:
        begin = time.monotonic()
        client.sendall(b"ping")
        assert server.recv(4) == b"ping"
        return time.monotonic() - begin

    before = open_files()
    with contextlib.ExitStack() as stack:
        peers = []
        for number in range(300):
            sock = socket.create_connection(("127.0.0.1", hosts.port), WAIT_S)
            peers.append(stack.enter_context(sock))
            with contextlib.suppress(ConnectionError):
                if number % 3 == 1:
                    sock.sendall(random.Random(number).randbytes(1000))
                elif number % 3 == 2:
                    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            round_trip()
        assert open_files() <= before + tunnel.MAX_UNAUTHENTICATED + 5
        # New connections of the program are made meanwhile.
        again = socket.create_connection(("127.0.0.1", hosts.port), WAIT_S)
        context = tls.client_context(hosts.credentials)
        context.wrap_socket(stack.enter_context(again), server_hostname=tls.NAME).close()
        deadline = time.monotonic() + tunnel.HANDSHAKE_S + 5.0
        while open_files() > before:
            assert time.monotonic() < deadline, f"{open_files()} open files, {before} before"
            round_trip()
            time.sleep(0.1)
    assert len(hosts.log(0).splitlines()) < 10


def test_an_end_lost_before_the_other_end_is_made_breaks_that_one():
    """asyncio may make the plain end before it reports that the TLS end is lost."""
    here, there = socket.socketpair()

    async def meet() -> None:
        secure = tunnel_connection.TlsEnd()
        secure._sock, _ = lost = socket.socketpair()
        for each in lost:
            each.close()
        secure.transport = unittest.mock.Mock()
        secure.transport.is_closing.return_value = False
        secure.transport.resume_reading.side_effect = AttributeError
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: tunnel_connection.PlainEnd(secure), here)

    with here, there:
        there.settimeout(WAIT_S)
        asyncio.run(meet())
        assert there.recv(1) == b""


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED])
def test_a_connection_that_the_system_refuses_leaves_those_that_follow(number, monkeypatch, capfd):
    """Accepting it fails; the next one is accepted."""
    monkeypatch.setattr(tunnel, "WATCH_S", 0.0)
    made = tunnel._Tunnel(tls.make_credentials(), {}, {}, [])
    accepted = []

    async def accept_two() -> None:
        loop, both = asyncio.get_running_loop(), asyncio.Event()
        accept = loop.sock_accept
        refusals = [OSError(number, "refused")]

        async def accept_or_refuse(listener: socket.socket) -> tuple[socket.socket, object]:
            if refusals:
                raise refusals.pop()
            return await accept(listener)

        async def handle(sock: socket.socket) -> None:
            accepted.append(sock)
            both.set()

        monkeypatch.setattr(loop, "sock_accept", accept_or_refuse)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepting = asyncio.ensure_future(made._accept(listener, handle))
            with socket.create_connection(listener.getsockname()):
                waiting = asyncio.ensure_future(both.wait())
                await asyncio.wait(
                    [accepting, waiting], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED
                )
            for task in (accepting, waiting):
                task.cancel()

    asyncio.run(accept_two())
    assert len(accepted) == 1
    accepted[0].close()
    assert "tunnel: cannot accept a connection: " in capfd.readouterr().err


def test_many_connections_at_once_are_carried_or_refused(hosts):
    """Beyond the limit of unauthenticated peers some are refused; none waits forever."""
    (port, echo) = hosts.start(open_ports=[], echo=True)
    path = hosts.path()
    hosts.start(forwards={path: ("127.0.0.1", port, echo)})
    clients = [hosts.connect(path) for _ in range(6 * tunnel.MAX_UNAUTHENTICATED)]
    for client in clients:
        client.sendall(b"hello")
    carried = 0
    for client in clients:
        with contextlib.suppress(ConnectionResetError):
            carried += client.recv(5, socket.MSG_WAITALL) == b"hello"
    assert carried >= tunnel.MAX_UNAUTHENTICATED


@pytest.mark.parametrize(
    ("path", "mode", "message"),
    [("x" * 108, 0o700, "at most 107 bytes"), ("a", 0o750, "other users can enter its folder")],
)
def test_a_path_that_cannot_be_used_is_refused(tmp_path, path, mode, message):
    tmp_path.chmod(mode)
    with socket.socket() as listener, pytest.raises(ConfigError, match=message):
        forwards = {str(tmp_path / path): ("127.0.0.1", 1, 1)}
        tunnel.run(listener, tls.make_credentials(), [], forwards)


def test_the_folder_is_private_and_its_path_short(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with private_folder() as folder:
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert len(folder) < 80
    assert not os.path.exists(folder)


def test_the_key_is_not_shown():
    credentials = tls.make_credentials()
    assert b"PRIVATE KEY" in credentials.key
    assert "PRIVATE" not in repr(credentials) and credentials.key.decode() not in str(credentials)
    assert credentials != tls.make_credentials()


SERVICES = """
    import os, sys
    import courier, numpy as np, reverb
    from distrl.launch.network import loopback
    from distrl.launch.network.ports import Ports

    loopback.close_ports()
    ports = Ports()
    rpc, replay = ports.take(), ports.take()
    server = courier.Server(port=rpc)
    server.Bind("double", lambda x: 2 * x)
    server.Start()
    table = reverb.Server([reverb.Table.queue("queue", 10)], port=replay)
    print(rpc, replay, flush=True)
    path_of_rpc, path_of_replay = sys.stdin.readline().split()

    values = np.arange(2_000_000, dtype=np.int64)  # 16 MB
    client = courier.Client(f"unix:{path_of_rpc}", call_timeout=20)
    assert (client.double(values) == 2 * values).all()
    assert client.futures.double(21).result(20) == 42
    client = reverb.Client(f"unix:{path_of_replay}")
    client.insert([values], {"queue": 1.0})
    (sample,) = client.sample("queue", 1, emit_timesteps=False)
    data = sample.data if hasattr(sample, "data") else sample[0].data
    assert (data[0] == values).all()
    print("whole", flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(importlib.util.find_spec("reverb") is None, reason="Reverb is not installed")
def test_courier_and_reverb_go_through(hosts):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVICES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENV,
        text=True,
    )
    try:
        ports = [int(port) for port in process.stdout.readline().split()]
        (hosts.port,) = hosts.start(open_ports=ports)
        paths = [hosts.path() for _ in ports]
        where = [("127.0.0.1", hosts.port, port) for port in ports]
        hosts.start(forwards=dict(zip(paths, where, strict=True)))
        output, _ = process.communicate(" ".join(paths) + "\n", timeout=40)
        assert output == "whole\n"
    finally:
        process.kill()
        process.wait(5)


@pytest.mark.slow
def test_a_reader_that_pauses_for_long_breaks_nothing(hosts):
    client, server = hosts.pair()
    data = random.Random(1).randbytes(48 << 20)
    thread = threading.Thread(target=client.sendall, args=(data,))
    client.settimeout(50.0)
    thread.start()
    time.sleep(20.0)  # the hosts' connection has no room meanwhile, and both are alive
    got = bytearray()
    while len(got) < len(data):
        part = server.recv(1 << 20)
        assert part
        got += part
    thread.join(WAIT_S)
    assert got == data


@pytest.fixture
def cable() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: 10.78.0.1 and 10.78.0.2."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root, and iproute2")
    names = f"dt{os.getpid()}a", f"dt{os.getpid()}b"

    def ip(*words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], check=check, timeout=10)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "-n",
            names[0],
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "cable",
            "netns",
            names[1],
        )
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.78.0.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


@pytest.mark.slow
def test_a_cut_cable_breaks_connections_within_ten_seconds(hosts, cable):
    first, second = (("ip", "netns", "exec", name) for name in cable)
    port, echo = hosts.start(prefix=first, host="10.78.0.1", echo=True)
    path = hosts.path()
    hosts.start(prefix=second, forwards={path: ("10.78.0.1", port, echo)})
    idle, busy = hosts.connect(path), hosts.connect(path)
    for client in (idle, busy):
        client.sendall(b"ping")
        assert client.recv(4) == b"ping"
    # Traffic is dropped, and the link stays up: with that down, there may be errors at once.
    subprocess.run(["ip", "-n", cable[0], "addr", "flush", "dev", "cable"], check=True, timeout=10)
    begin = time.monotonic()
    busy.sendall(b"lost")
    for client in (busy, idle):
        assert is_broken(client)
        took = time.monotonic() - begin
        print(f"broken after {took:.1f} s")
        assert took < 11.0
    # The other host has noticed too: its server has no connection left.
    deadline = time.monotonic() + 3.0
    seen = [*first, "ss", "-Htn", "state", "established"]
    while subprocess.run(seen, capture_output=True, check=True, timeout=10).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
