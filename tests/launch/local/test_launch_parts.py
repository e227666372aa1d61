"""The launcher's parts, without starting anything."""

import io
import itertools
import os
import socket
import subprocess
import sys
import types

import pytest

from distrl.errors import ConfigError
from distrl.launch import launchpad_adapter
from distrl.launch.local import launch, processes
from distrl.launch.network.endpoints import Endpoints
from distrl.launch.network.ports import Ports
from distrl.launch.supervision.node_logs import NodeLog, Stream
from distrl.launch.supervision.restart_policy import RestartPolicy
from distrl.runtime.heartbeat import Heartbeat
from tests.support.commands import needs_launchpad
from tests.support.simulated import empty_program


def run_python(script):
    """Runs a script in a process of its own, with the project's modules; it must end well."""
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def test_phases_stop_callers_before_those_they_call():
    program = empty_program(
        "replay", "learner", "actor", "other", "inferencer", "monitor", "evaluator"
    )
    assert launchpad_adapter.phases(launchpad_adapter.named_nodes(program)) == [
        ["actor/0", "evaluator/0"],
        ["inferencer/0"],
        ["learner/0"],
        ["monitor/0"],
        ["other/0"],
        ["replay/0"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"launch_type": "vertex_ai"}, "launch type 'vertex_ai'"),
        ({"terminal": "xterm"}, "terminal 'xterm'"),
        ({"local_resources": {"learnr": {}}}, "learnr: the program's groups are learner"),
        ({"local_resources": {"learner/1": {}}}, "learner/1: the program's groups are learner"),
        ({"local_resources": {"learner": 3}}, "expected a mapping"),
        ({"active": {"actr": 1}}, "active for actr: the program's groups are learner"),
        ({"stop_grace": {"learnr": 60.0}}, "stop_grace for learnr: the program's groups are"),
        ({"restart_policies": {"actr": RestartPolicy()}}, "restart_policies for actr: the prog"),
        ({"may_return": ["actr"]}, "may_return for actr: the program's groups are learner"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        launch.launch(empty_program("learner"), run_dir=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


@needs_launchpad
def test_servers_in_a_colocation_listen_on_unix_sockets():
    import launchpad as lp

    def make_nodes():
        users = lp.PyNode(print)
        users.allocate_address(lp.Address("courier1"))  # of a server of the user's own
        return [users, lp.CourierNode(object), lp.CourierNode(object), lp.ReverbNode(list)]

    nested = lp.MultiThreadingColocation(make_nodes())
    program = lp.Program("colocated")
    program.add_node(lp.MultiThreadingColocation([*make_nodes(), nested]), label="services")
    endpoints = Endpoints()
    try:
        launchpad_adapter.wire(
            program,
            "local_mp",
            lambda name: print,
            lambda node, index, name: endpoints.address(endpoints.take(), name),
        )
        (node,) = program.groups["services"]
        kinds = [address.resolve().partition(":")[0] for address in node.addresses]
        assert kinds == 2 * ["127.0.0.1", "unix", "unix", "unix"]
    finally:
        endpoints.close()


def test_ports_are_free_and_held():
    ports, others = Ports(), Ports()
    taken = [ports.take() for _ in range(20)] + [others.take() for _ in range(20)]
    assert len(set(taken)) == 40
    for port in taken:
        with socket.socket() as server:
            server.bind(("0.0.0.0", port))
    ports.close()
    others.close()


def test_a_shared_port_is_not_free(monkeypatch):
    ports = Ports()
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("::", 0))
        server.listen()
        tried = iter([server.getsockname()[1]] * 1000)
        monkeypatch.setattr(ports._random, "randrange", lambda *_: next(tried))
        with pytest.raises(ConfigError, match="no free port"):
            ports.take()


def test_a_node_log_keeps_bytes_and_shows_lines(tmp_path):
    out = io.StringIO()
    log = NodeLog("actor/0", tmp_path / "log", Stream(out), 0)
    data = b"a\nbc\n\xff\x07\n\n" + b"y" * 9000 + b"\nend"
    for byte in data:
        log.feed(bytes([byte]))
    log.close()
    assert (tmp_path / "log").read_bytes() == data
    lines = out.getvalue().splitlines()
    assert lines[:4] == ["[actor/0] a", "[actor/0] bc", "[actor/0] �\\x07", "[actor/0] "]
    assert [len(line) - len("[actor/0] ") for line in lines[4:6]] == [8192, 808]
    assert lines[6] == "[actor/0] end"
    assert log.tail()[-1] == "end"


def test_a_stream_never_blocks():
    reader, writer = os.pipe()
    with open(writer, "w") as file:
        stream = Stream(file, limit=1 << 17)
        for _ in range(100):
            stream.write("z" * 9999 + "\n")
        assert stream.waiting()
        got = b""
        while stream.waiting():
            got += os.read(reader, 1 << 16)
            stream.flush()
        stream.write("last\n")
        got += os.read(reader, 1 << 16)
    os.close(reader)
    lines = got.decode().splitlines()
    left_out = 100 - lines.count("z" * 9999)
    assert left_out > 0
    assert lines[-2:] == [
        f"[{left_out} lines left out: the terminal is slow; see the log files]",
        "last",
    ]


def test_a_killed_process_that_does_not_end_is_left(monkeypatch):
    """As in a system call that cannot be interrupted: here it ignores all signals."""
    log = types.SimpleNamespace(fds=list)
    program_node = launchpad_adapter.named_nodes(empty_program("actor"))[0]
    process = processes.SupervisedProcess(
        program_node, log, None, {}, None, list, Heartbeat(), RestartPolicy()
    )
    now = itertools.count()
    with subprocess.Popen(["sleep", "60"]) as sleep:
        process.pid, process.alive = sleep.pid, True
        with monkeypatch.context() as patch:
            patch.setattr(processes.time, "monotonic", lambda: float(next(now)))
            patch.setattr(processes.time, "sleep", lambda seconds: None)
            patch.setattr(os, "kill", lambda pid, number: None)
            patch.setattr(os, "killpg", lambda pid, number: None)
            with pytest.raises(TimeoutError, match=f"actor/0, process {sleep.pid}, was killed and"):
                process.destroy()
        sleep.kill()
    assert process.alive and process.pid == sleep.pid


@needs_launchpad
def test_a_process_that_cannot_be_forked_is_refused(tmp_path):
    script = """
import courier, sys
import launchpad as lp
from distrl.launch.local import launch, processes
server = courier.Server(port=None); server.Bind("f", lambda: 1); server.Start()
courier.Client(f"127.0.0.1:{server.port}", call_timeout=5).f()
server.Stop(); server.Join()
program = lp.Program("test"); program.add_node(lp.PyNode(lambda: None), label="actor")
try:
    launch.launch(program, "local_mp", run_dir=sys.argv[1])
except processes.ForkError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert "this process, which has already used Courier or Reverb" in done.stdout


def test_a_node_with_a_timer_of_its_own_is_alive():
    """Each of its signals wakes the thread that also sends the heartbeats."""
    script = """
import os, signal, socket, sys, time
from distrl.launch.local import child
from distrl.runtime.heartbeat import Heartbeat
heartbeat = Heartbeat()
setup = child.ChildSetup(
    "actor/0", print, {}, None, socket.socket(), 1, [], os.getppid(), heartbeat,
    make_manager=lambda: None,
)
child._stop_on_signal(setup)
signal.signal(signal.SIGALRM, lambda number, frame: None)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
deadline = time.monotonic() + 20.0
while heartbeat.silent() is None and time.monotonic() < deadline:
    time.sleep(0.01)
print(heartbeat.silent() is not None, flush=True)
os._exit(0)
"""
    done = run_python(script)
    assert done.stdout == "True\n", done.stderr


def test_the_launcher_does_not_import_jax():
    """Its nodes do, after the fork, with the environment variables of their group."""
    script = "import distrl.launch.local.launch, sys; print('jax' in sys.modules)"
    done = run_python(script)
    assert done.stdout == "False\n"


def test_the_dump_of_a_crash_is_shortened_to_the_thread_that_died(tmp_path):
    out = io.StringIO()
    log = NodeLog("actor/0", tmp_path / "log", Stream(out), 0)
    frames = [f'  File "f{i}.py", line {i} in f' for i in range(20)]
    other, mine = "Thread 0x01 (most recent call first):", "Current thread 0x02 (most recent ...):"
    why, fatal = "Unknown flag", "Fatal Python error: Aborted"
    dump = [why, fatal, "", other, *frames, "", mine, *frames, "", "Extension modules: a, b", "end"]
    log.feed("".join(f"{line}\n" for line in dump).encode())
    log.close()
    assert (tmp_path / "log").read_text().splitlines() == dump
    assert log.tail() == [why, fatal, mine, *frames[:8], "  ... all threads: log", "end"]
    assert len(out.getvalue().splitlines()) == len(log.tail())
