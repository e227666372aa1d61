"""Our programs under Launchpad's own launcher, which stops all nodes at once."""

import json
import subprocess
import sys
import threading
import time
import types

import pytest

pytest.importorskip("launchpad")

from distrl.programs.nodes import monitor as monitor_module
from tests.support.commands import ROOT, finish
from tests.support.selection import full, slow

STOCK = ROOT / "tests" / "support" / "programs" / "stock.py"


@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    ("topology", "backend"),
    [
        full("heavy_env", "shared_memory"),
        slow("light_env", "shared_memory"),
        slow("heavy_env", "reverb"),
    ],
)
def test_all_is_saved_before_it_is_killed(tmp_path, topology, backend):
    run = tmp_path / "run"
    command = [sys.executable, str(STOCK), topology, backend, str(run)]
    done: subprocess.CompletedProcess[str] = finish(command, 220.0, start_new_session=True)
    output = done.stdout + done.stderr
    assert "did not terminate in time" not in output, output[-4000:]
    assert (run / "params.npz").is_file(), output[-4000:]
    (manifest,) = (run / "checkpoints").glob("*/manifest.json")
    saved = json.loads(manifest.read_text())
    assert saved["env_steps"] > 400 - 4 * 5 * 2  # trained: all but what fills no batch
    assert saved["monitor"]["env_steps_acted"] >= 400  # of this moment: the monitor has waited
    if backend == "shared_memory":
        assert saved["table"] is not None


class Node(monitor_module.MonitorNode):
    """A monitor of two tasks, without the rest of a node."""

    def __init__(self):
        self._stop, self._heartbeats = threading.Event(), None
        self._saved, self._unsaved = threading.Condition(), {"a", "b"}
        counts = types.SimpleNamespace(state=lambda: {"episodes": 3}, close=lambda: None)
        self._monitors = {"a": counts, "b": counts}


@pytest.mark.parametrize("in_order", [True, False])
def test_the_monitor_waits_for_the_learners_last_questions(monkeypatch, in_order):
    monkeypatch.setattr(monitor_module, "stops_in_order", lambda: in_order)
    node = Node()
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    node.state("a")  # a periodic checkpoint, not the last
    node._stop.set()
    if not in_order:
        assert node.state("a") == '{"episodes": 3}'
        time.sleep(0.05)
        assert thread.is_alive()
        node.state("b")
    thread.join(10.0)
    assert not thread.is_alive()
