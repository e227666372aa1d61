"""Servers that listen on loopback only, or not at all."""

import platform
import socket
import struct
import sys
import textwrap
from pathlib import Path

import pytest

from distrl.errors import ConfigError
from distrl.launch.local import launch
from distrl.launch.network import got_hook, loopback
from distrl.launch.network.ports import Ports
from tests.support.commands import finish, needs_launchpad
from tests.support.simulated import empty_program

ROOT = Path(__file__).parents[3]
FAMILY = {4: struct.pack("=H", socket.AF_INET), 6: struct.pack("=H", socket.AF_INET6)}
PORT = b"\x3a\x99"


def ipv4(host: str) -> bytes:
    return FAMILY[4] + PORT + socket.inet_pton(socket.AF_INET, host) + bytes(8)


def ipv6(host: str) -> bytes:
    return FAMILY[6] + PORT + bytes(4) + socket.inet_pton(socket.AF_INET6, host) + bytes(4)


@pytest.mark.parametrize(
    ("address", "changed"),
    [
        (ipv4("0.0.0.0"), ipv4("127.0.0.1")),
        (ipv6("::"), ipv6("::ffff:127.0.0.1")),
        (ipv6("::ffff:0.0.0.0"), ipv6("::ffff:127.0.0.1")),
        (ipv4("10.0.0.7"), None),
        (ipv4("127.0.0.1"), None),
        (ipv6("::1"), None),
        (ipv6("fe80::1"), None),
        (struct.pack("=H", socket.AF_UNIX) + b"/path\0", None),
        (ipv6("::")[:20], None),
        (b"", None),
    ],
)
def test_all_interfaces_become_loopback_and_nothing_else_does(address, changed):
    assert loopback.loopback_for(address) == changed


SERVERS = """
    import os, sys, threading
    import courier
    from distrl.launch.network import loopback
    from distrl.launch.network.ports import Ports

    def listening(*made):
        lines = open("/proc/net/tcp6").readlines() + open("/proc/net/tcp").readlines()
        for port in made:
            (line,) = [l for l in lines if f":{port:04X} " in l.split()[1] + " " and " 0A " in l]
            print(line.split()[1].rpartition(":")[0])

    loopback.close_ports()
    undo = loopback.close_ports()  # twice is as once
    ports = Ports()
    first, second = ports.take(), ports.take()
    servers = []

    def serve(port):
        servers.append(courier.Server(port=port))
        servers[-1].Bind("double", lambda x: 2 * x)
        servers[-1].Start()

    thread = threading.Thread(target=serve, args=(first,))
    thread.start()
    thread.join(20)
    assert "reverb" not in sys.modules
    import reverb  # later than the ports were closed
    replay = reverb.Server([reverb.Table.queue("mine", 10)], port=second)
    listening(first, second)
    assert courier.Client(f"127.0.0.1:{first}", call_timeout=10).double(4) == 8
    assert list(reverb.Client(f"127.0.0.1:{second}").server_info(timeout=10)) == ["mine"]
    try:
        reverb.Server([reverb.Table.queue("another", 10)], port=second)
        print("two servers share a port")
    except ValueError:
        print("refused")
    sys.stdout.flush()
    os._exit(0)
"""
MAPPED = "0000000000000000FFFF00000100007F"


def printed(script: str) -> list[str]:
    """The words that a script prints."""
    done = finish([sys.executable, "-c", textwrap.dedent(script)], 90.0)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@needs_launchpad
def test_both_kinds_of_server_are_on_loopback_and_share_no_port():
    assert printed(SERVERS) == [MAPPED, MAPPED, "refused"]


AT_ONCE = """
    import os, sys, threading, time
    import courier
    from distrl.launch.network import loopback

    is_changed = loopback.loopback_for

    def slowly(address):
        time.sleep(0.2)  # the other threads' turn
        return is_changed(address)

    loopback.loopback_for = slowly
    loopback.close_ports()
    if "{kind}" == "courier":
        def serve():
            servers.append(courier.Server())
            servers[-1].Start()
    else:
        import reverb
        def serve():
            servers.append(reverb.Server([reverb.Table.queue("mine", 10)], port=None))
    servers = []
    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("served" if len(servers) == 3 else "failed")
    sys.stdout.flush()
    os._exit(0)
"""


@needs_launchpad
@pytest.mark.parametrize("kind", ["courier", "reverb"])
def test_threads_that_make_servers_do_not_deadlock(kind):
    assert printed(AT_ONCE.replace("{kind}", kind)) == ["served"]


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        launch.launch(empty_program("learner"), run_dir=tmp_path / "run")
    assert "DISTRL_OPEN_PORTS=1 leaves them open" in str(caught.value)
    assert not (tmp_path / "run").exists()


@needs_launchpad
def test_an_unknown_machine_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    refused(tmp_path, "Linux on riscv64 is not supported")
    monkeypatch.setenv("DISTRL_OPEN_PORTS", "1")
    loopback.check()


@needs_launchpad
def test_a_library_that_binds_in_another_way_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(got_hook, "slots", lambda shared, function: [])
    refused(tmp_path, "server.so does not import `bind`")


@needs_launchpad
def test_a_table_that_cannot_be_written_is_an_error(monkeypatch):
    def fail(*arguments: object) -> int:
        raise PermissionError(13, "mprotect: Permission denied")

    monkeypatch.setattr(got_hook, "replace", fail)
    with pytest.raises(ConfigError, match="Permission denied"):
        loopback.close_ports()


def test_undoing_restores_every_entry():
    before = _values()
    undo = loopback.close_ports()
    changed = _values()
    undo()
    assert all(new != old for new, old in zip(changed, before, strict=True))
    assert _values() == before


def _values() -> list[int]:
    import ctypes

    return [ctypes.c_uint64.from_address(slot).value for _, slot in loopback._all_slots()]


def test_a_port_taken_on_loopback_is_not_reserved(monkeypatch):
    ports = Ports()
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        chosen = iter([taken, taken, 15123, *range(15200, 15300)])
        monkeypatch.setattr(ports._random, "randrange", lambda first, last: next(chosen))
        assert ports.take() != taken
    ports.close()
