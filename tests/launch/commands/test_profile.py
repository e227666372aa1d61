"""`distrl profile`: flame graphs and JAX traces of running processes."""

import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from distrl.errors import ConfigError
from distrl.launch.commands import profile
from distrl.launch.local import tracing
from distrl.launch.local.stop_on_signals import StopOnSignals
from distrl.launch.supervision.stack_dump import py_spy
from tests.support.commands import CARTPOLE, TRAINING, Command


@pytest.fixture
def run(tmp_path):
    """The folder of a run of nodes, in which this process seems to run."""
    (tmp_path / "config.json").write_text(json.dumps({"topology": "heavy_env"}))
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    node = {"host": "", "pid": None, "status": "restarting"}
    nodes = {"actor/0": node, "actor/1": {**node, "host": "h2", "pid": 7}}
    status = {"time": time.time(), "launcher": os.getpid(), "nodes": nodes}
    (tmp_path / "status.json").write_text(json.dumps(status))
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "profile: name a node: actor/0, actor/1"),
        (["actor/2"], "profile: unknown node 'actor/2'; choose from: actor/0, actor/1"),
        (["actor/0"], r"profile: actor/0 is not running \(restarting\)"),
        (["actor/1"], "profile: actor/1 runs on host h2; there: py-spy record --pid 7"),
        (["actor/0", "--seconds=0"], "profile: --seconds=0: expected 0 to 3600"),
    ],
)
def test_what_cannot_be_profiled_is_refused(run, words, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        profile.profile(["distrl profile", str(run), *words])


def test_a_run_that_has_ended_is_refused(run):
    (run / "lock").unlink()
    with pytest.raises(ConfigError, match=r"^profile: .* is not running$"):
        profile.profile(["distrl profile", str(run), "actor/0"])


def test_without_py_spy_the_line_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profile, "py_spy", lambda: None)
    assert "pip install py-spy" in profile._flame_graph(1, tmp_path / "flame.svg", 1.0)
    assert "no flame graph: py-spy is not installed" in capsys.readouterr().err


def test_only_processes_that_take_orders_are_signalled(tmp_path, capsys):
    assert not tracing.takes_orders(os.getpid())
    with StopOnSignals(threading.Event(), 1.0, lambda number: None):
        assert tracing.takes_orders(os.getpid())
    assert not tracing.takes_orders(os.getpid())
    assert profile._jax_trace(os.getpid(), tmp_path, 1.0) is not None
    assert "no JAX trace: its nodes are threads" in capsys.readouterr().err


def test_an_order_is_the_users_own_file_and_is_taken_once(tmp_path):
    path = tmp_path / "order"
    path.write_text('{"folder": "x", "seconds": 1}')
    link = tmp_path / "link"
    link.symlink_to(path)
    assert tracing._take_order(link) is None
    assert tracing._take_order(path) == {"folder": "x", "seconds": 1}
    assert tracing._take_order(path) is None
    path.write_text("{")
    assert tracing._take_order(path) is None and not path.exists()


def test_a_trace_that_cannot_be_written_fails_no_node(tmp_path, monkeypatch, capsys):
    full = tmp_path / "full"
    full.write_text("no folder: nothing can be written in it")
    order = {"folder": str(full), "seconds": 0.0}
    monkeypatch.setattr(tracing, "_take_order", lambda path: order)
    monkeypatch.setattr(tracing, "uses_jax", lambda: False)
    tracing._obey()
    assert capsys.readouterr().err == (
        "distrl: a trace cannot be written: ConfigError: it computes nothing with JAX\n"
    )


@pytest.mark.full
def test_a_trace_has_what_jax_did_meanwhile(tmp_path):
    function = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((200, 200))
    function(x).block_until_ready()
    ended = threading.Event()
    with StopOnSignals(threading.Event(), 1.0, lambda number: None):
        errors = []
        thread = threading.Thread(
            target=lambda: (
                errors.append(tracing.order_trace(os.getpid(), tmp_path, 0.3)), ended.set()
            )
        )  # fmt: skip
        thread.start()
        while not ended.is_set():
            function(x).block_until_ready()
        thread.join()
    assert errors == [None]
    (path,) = tmp_path.rglob("perfetto_trace.json.gz")
    with gzip.open(path) as file:
        names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
    assert any("lambda" in name for name in names)
    assert list(tmp_path.rglob("*.xplane.pb"))  # what TensorBoard reads


@pytest.mark.full
@pytest.mark.timeout(500)
@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
@pytest.mark.parametrize(
    ("topology", "node"),
    [("single_process", None), ("heavy_env", "learner/0")],
)
def test_a_running_node_is_profiled(tmp_path, topology, node):
    command = Command(tmp_path, *CARTPOLE, f"--topology={topology}")
    try:
        command.wait_for(lambda: TRAINING in command.output, TRAINING, 200.0)
        words = [str(command.run_dir), *([node] if node else []), "--seconds=1"]
        done = subprocess.run(
            [sys.executable, "-m", "distrl", "profile", *words],
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        folder = command.run_dir / "profiles"
        (graph,) = folder.rglob("flame.svg")
        assert "learner.py" in graph.read_text()
        assert list(folder.rglob("perfetto_trace.json.gz")), done.stderr
        os.kill(command.process.pid, signal.SIGINT)
        assert command.wait(60.0) == 130, command.output  # it runs on until it is stopped
    finally:
        command.end()
