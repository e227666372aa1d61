"""Compares the model with `distrl train`: the CPU time of each node for an environment step.

The program runs on this machine with its replay on a Reverb server, without tunnels. Its nodes' CPU
time is read between two rows of its metrics, so the comparison holds even if others use the cores:
a rate is relative to the cores that the program got.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scaling_model import REPORT_HZ, Costs, HostKind, Plan, actor_step

ROOT = Path(__file__).parent.parent
_WARM_UP = 4.0  # seconds after the first row of metrics
_WAIT_S = 240.0  # deadline for the first row

Snapshot = tuple[float, int, dict[str, float]]  # time, steps, CPU seconds by group


def run(env: str, topology: str, num_actors: int, seconds: float) -> dict[str, Any]:
    """Trains, and returns the core seconds of each node group for an environment step."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train",
            f"--env={env}", f"--topology={topology}",
            f"--config.actors.num_actors={num_actors}", "--config.replay.backend=reverb",
            "--config.replay.max_size=256",
            "--config.goal.mean_return=None", "--config.goal.max_env_steps=1000000000000",
            "--config.checkpoint.period=None", f"--run_dir={run_dir}",
            "--terminal=output_to_files",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            deadline = time.monotonic() + _WAIT_S
            first = _snapshot(run_dir, process, -1, deadline)
            start = first
            while start[0] < first[0] + _WARM_UP:
                start = _snapshot(run_dir, process, start[1], deadline)
            end = start
            while end[0] < start[0] + seconds:
                end = _snapshot(run_dir, process, end[1], time.monotonic() + _WAIT_S)
            process.send_signal(signal.SIGINT)
            process.wait(60.0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10.0)
    steps, wall = end[1] - start[1], end[0] - start[0]
    cpu = {group: end[2][group] - start[2].get(group, 0.0) for group in end[2]}
    return {
        "env": env,
        "topology": topology,
        "actors": num_actors,
        "rate": steps / wall,
        "cores": sum(cpu.values()) / wall,
        "per_step": {group: used / steps for group, used in cpu.items()},
    }


def _snapshot(run_dir: Path, process: subprocess.Popen, above: int, deadline: float) -> Snapshot:
    """Waits for a row of the metrics with more than `above` steps, and takes a snapshot."""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the program ended with exit status {process.returncode}")
        path, status = run_dir / "metrics.csv", run_dir / "status.json"
        rows = list(csv.DictReader(path.open())) if path.exists() else []
        trained = rows[-1].get("trained_steps") if rows else None
        steps = int(trained) if trained else -1
        if steps > max(above, 0) and status.exists():
            cpu: dict[str, float] = {}
            for name, node in json.loads(status.read_text())["nodes"].items():
                if node["pid"] is not None:
                    group = name.partition("/")[0]
                    used = time.clock_gettime(~node["pid"] << 3 | 2)
                    cpu[group] = cpu.get(group, 0.0) + used
            return time.monotonic(), steps, cpu
        time.sleep(0.02)
    raise RuntimeError(f"the metrics showed no more than {above} steps in time")


def predicted(costs: Costs, measured: dict[str, Any]) -> dict[str, float]:
    """Returns the model's core seconds of each node group for an environment step."""
    work = costs.workloads[measured["env"]]
    light = measured["topology"] == "light_env"
    plan = Plan(HostKind("this", 2, 1.0), light=light, relays=False, tunnels=False)
    unroll, num_envs = work.unroll_length, work.num_envs
    item = work.unroll_bytes * work.unrolls_per_item
    items = 1 / (unroll * work.unrolls_per_item)
    # One inferencer, or each actor, fetches parameters once per unroll.
    fetches = 1 / (unroll * num_envs * (measured["actors"] if light else 1))
    groups = {
        "actor": actor_step(costs, work, plan),
        "replay": items * work.serve_item(item),
        "learner": work.learn
        + items * work.read(item)
        + fetches * costs.hand_out(work.param_bytes)
        + min(fetches, 1 / (unroll * work.batch_size)) * costs.pack(work.param_bytes),
        "monitor": REPORT_HZ * (measured["actors"] + 1) * work.report / measured["rate"],
    }
    if light:
        groups["inferencer"] = work.answer / num_envs + fetches * costs.fetch(work.param_bytes)
    return groups
