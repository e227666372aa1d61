"""A real program with one node that misbehaves.

    python -m tests.programs.faults.faulty_program RUN_DIR NODE KIND FLAG...

FLAGs: a topology, a replay backend, a launch type, `always` (in each life, not only in the first).
The node misbehaves when the file RUN_DIR/now is there, or in its constructor. What `distrl train`
does beside it (flags, run folder) is left out.
"""

import ctypes
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.actor import Actor
from distrl.envs import PythonEnvironment
from distrl.experiment import (
    ActorsConfig,
    EvaluatorConfig,
    Experiment,
    LearnerConfig,
    SupervisionConfig,
)
from distrl.goal import Goal
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.metrics.monitor import Monitor
from distrl.programs.running.evaluating import TasksEvaluator
from distrl.replay.buffer import ReplayConfig
from distrl.runtime.heartbeat import Heartbeat, current_heartbeat
from distrl.testing import CheckingConfig, CountingEnvironment

IDLE_S, BUSY_S, STOPPED_S = 4.0, 15.0, 2.0
KINDS = ("raise", "exit", "sigkill", "sigsegv", "sigstop", "loop", "block", "constructor")


def misbehave(kind: str) -> None:
    """What a node can do wrong, in the thread that works."""
    print(f"now: {kind}", flush=True)
    if kind == "raise":
        raise RuntimeError("injected")
    if kind == "exit":
        os._exit(3)
    if kind in ("sigkill", "sigsegv", "sigstop"):
        os.kill(os.getpid(), getattr(signal, kind.upper()))
    if kind == "sigsegv":
        ctypes.string_at(0)
    if kind == "loop":
        re.match("(a+)+b", "a" * 64)  # in C, for ages, and no other thread has its turn
    if kind == "block":
        threading.Event().wait()


def inject(run_dir: Path, node: str, kind: str, always: bool) -> Callable[[str], None]:
    """For `launch`'s `node_setup`: replaces what the node does at each turn."""
    where: dict[str, tuple[Any, str]] = {
        "actor": (Actor, "step"),
        "learner": (Learner, "update"),
        "inferencer": (Inferencer, "_run"),
        "evaluator": (TasksEvaluator, "evaluate"),
        "monitor": (Monitor, "report"),
    }
    label = node.partition("/")[0]

    def setup(name: str) -> None:
        if name != node:
            return
        heartbeat = current_heartbeat()
        if kind == "constructor":
            if always or not heartbeat.restarted:
                raise RuntimeError("injected")
            return
        if label == "replay":
            threading.Thread(target=wait, daemon=True).start()
            return
        owner, method = where[label]
        original = getattr(owner, method)

        def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                current_heartbeat() is heartbeat
                or kind != "raise"
                or label in ("inferencer", "monitor")
            ):
                check(heartbeat)
            return original(self, *args, **kwargs)

        setattr(owner, method, faulty)

    def check(heartbeat: Heartbeat) -> None:
        now = run_dir / "now"
        if not now.exists():
            return
        if not always:
            now.unlink(missing_ok=True)
        misbehave(kind)

    def wait() -> None:
        """The replay's own thread only waits: another one misbehaves in its process."""
        pause = threading.Event()
        while not (run_dir / "now").exists():
            pause.wait(0.05)
        check(current_heartbeat())

    return setup


def main() -> None:
    run_dir, node, kind = Path(sys.argv[1]), *sys.argv[2:4]
    rest = sys.argv[4:]
    topology, backend, launch_type = rest[:3]
    experiment = Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        CheckingConfig(),
        ReplayConfig(max_size=64, backend=backend),
        ActorsConfig(num_actors=2, num_envs=4),
        learner=LearnerConfig(batch_size=8),
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=2, episodes=2, interval=0.2),
        supervision=SupervisionConfig(4, IDLE_S, BUSY_S, STOPPED_S),
        goal=Goal(mean_return=None, max_env_steps=10**12),
    )
    make_program = getattr(importlib.import_module(f"distrl.programs.{topology}"), topology)
    from distrl.launch.launcher import launch_experiment

    run_dir.mkdir()
    program = make_program(experiment, str(run_dir))
    result = launch_experiment(
        program,
        experiment,
        topology,
        run_dir,
        launch_type,
        node_setup=inject(run_dir, node, kind, "always" in rest),
    )
    sys.stdout.flush()
    os._exit(result.exit_code)


if __name__ == "__main__":
    main()
