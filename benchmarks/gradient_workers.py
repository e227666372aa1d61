"""Measures a learner's updates by number of gradient workers, on a costly network.

Each process, the learner and every worker, has one thread for XLA, and calls go by Courier with the
data in shared memory, as in a program; there are no actors, and one batch in host memory is learned
from again and again. 0 workers: the learner computes the gradients. Each number of workers is one
process with its workers; they alternate. Figures are medians of all rounds: environment steps
learned from per second of wall clock; and per second of CPU time of all processes together, which
shows what splitting costs where more processes than cores, and other programs, share the machine.

  python benchmarks/gradient_workers.py --rounds=3 --seconds=20 --out=benchmarks/gradient_workers.md
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COUNTS = (0, 1, 2, 4)
# Name to torso, side of the images, and unrolls per batch.
CASES = {
    "Nature CNN, 84x84x4, 32 unrolls": ("nature_cnn", 84, 32),
    "IMPALA's ResNet, 84x84x4, 8 unrolls": ("impala_resnet", 84, 8),
}
LENGTH = 10
_ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "PJRT_NPROC": "1"}


def make_agent(case: str) -> Any:
    """Returns the agent of a case."""
    import numpy as np
    from dm_env import specs

    from distrl.agents.impala import IMPALAConfig
    from distrl.agents.networks import NetworkConfig
    from distrl.specs import EnvironmentSpec

    torso, side, _ = CASES[case]
    spec = EnvironmentSpec(specs.Array((4, side, side), np.uint8), specs.DiscreteArray(6))
    return IMPALAConfig(NetworkConfig(torso=torso)).make(spec)


def make_gradients(case: str) -> Any:
    """Returns what computes shares of a case's batches."""
    from distrl import specs
    from distrl.agents.structs import extras_struct, state_struct
    from distrl.gradients.shares import ShareGradients

    agent = make_agent(case)
    struct = specs.trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))
    return ShareGradients(agent, struct, LENGTH, CASES[case][2])


class Worker:
    """A `WorkerConnection` to a worker process on this machine."""

    life = 0

    def __init__(self, index: int, case: str):
        import courier

        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        self.name = f"gradient_worker/{index}"
        self._client = courier.Client(f"localhost:{port}", call_timeout=300)
        command = [sys.executable, __file__, f"--case={case}", f"--serve={port}"]
        self.process = subprocess.Popen(command)

    def prepare(self, request: bytes) -> Any:
        """See `WorkerConnection`."""
        return self._client.futures.prepare(request)

    def compute(self, request: bytes) -> Any:
        """See `WorkerConnection`."""
        return self._client.futures.compute(request)


def serve(case: str, port: int) -> None:
    """A worker's process; ends with its parent."""
    import courier
    import jax

    from distrl.gradients.service import GradientService

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    parent = os.getppid()
    service = GradientService(lambda task: make_gradients(case))
    server = courier.Server(port=port)
    server.Bind("prepare", service.prepare)
    server.Bind("compute", service.compute)
    server.Start()
    service.run(lambda: os.getppid() != parent, lambda: None)


def measure(case: str, count: int, seconds: float) -> tuple[float, float]:
    """Returns environment steps per second of wall clock, and of all processes' CPU time.

    Args:
      case: a key of CASES.
      count: workers.
      seconds: duration.
    """
    import jax
    import numpy as np
    import psutil

    from distrl import specs
    from distrl.agents.structs import extras_struct, state_struct
    from distrl.gradients.team import GradientTeam
    from distrl.gradients.update import SplitUpdate
    from distrl.learner import Learner
    from distrl.learning.random_batches import NoReplay
    from distrl.types import Sample, Trajectory

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    agent, batch_size = make_agent(case), CASES[case][2]
    workers = [Worker(index, case) for index in range(count)]
    split_update = None
    if workers:
        team = GradientTeam(
            make_gradients(case), case, workers, range(count), timeout=300.0, start_timeout=300.0
        )
        split_update = SplitUpdate(agent, team)
    struct = specs.trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))
    time_major = {
        name: jax.tree.map(
            lambda x: np.ones((LENGTH + 1, batch_size, *x.shape), x.dtype), getattr(struct, name)
        )
        for name in ("timestep", "action", "extras", "version")
    }
    others = {
        name: jax.tree.map(lambda x: np.ones((batch_size, *x.shape), x.dtype), nest)
        for name, nest in struct._asdict().items()
        if name not in time_major
    }
    batch = Trajectory(**time_major, **others)
    sample = Sample(batch, np.arange(batch_size, dtype=np.uint64))
    learner = Learner(agent, NoReplay(), seed=0, split_update=split_update)  # type: ignore[arg-type]
    processes = [psutil.Process(), *(psutil.Process(worker.process.pid) for worker in workers)]

    def worked() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    for _ in range(2):
        learner.update(sample)
    jax.block_until_ready(learner.state().params)
    began, before, updates = time.monotonic(), worked(), 0
    while time.monotonic() < began + seconds:
        learner.update(sample)
        updates += 1
    jax.block_until_ready(learner.state().params)
    steps = updates * LENGTH * batch_size
    figures = steps / (time.monotonic() - began), steps / (worked() - before)
    for worker in workers:
        worker.process.terminate()
        worker.process.wait(10.0)
    return figures


def measure_in_process(case: str, count: int, seconds: float) -> tuple[float, float]:
    """Runs `measure` in a process with `count` workers."""
    command = [sys.executable, __file__, f"--case={case}", f"--count={count}"]
    out = subprocess.run(
        [*command, f"--seconds={seconds}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600 + seconds,
        env={**os.environ, **_ONE_THREAD, "JAX_PLATFORMS": "cpu"},
    )
    speed, per_work = map(float, out.stdout.split()[-2:])
    return speed, per_work


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cases", type=int, default=len(CASES), help="measure the first so many")
    parser.add_argument("--out", help="a Markdown file for the table")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.case, args.serve)
        return
    if args.case:
        print(*measure(args.case, args.count, args.seconds))
        return
    # The same functions are compiled for each number of workers, and in each round.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp())
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    cases = list(CASES)[: args.cases]
    figures: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for round_index in range(args.rounds):
        for case in cases:
            for count in COUNTS:
                speed = measure_in_process(case, count, args.seconds)
                figures.setdefault((case, count), []).append(speed)
                line = json.dumps([case, count, *(round(each, 1) for each in speed)])
                print(round_index, line, flush=True)
    heads = ["0 workers", "1 worker", *(f"{count} workers" for count in COUNTS[2:])]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(COUNTS)]
    for case in cases:
        for column, unit in enumerate(("s", "s of CPU time")):
            speeds = [statistics.median(row[column] for row in figures[case, n]) for n in COUNTS]
            cells = [f"{speed:,.1f} ({speed / speeds[0]:.2f})" for speed in speeds]
            lines.append(f"| {case}, steps/{unit} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    if args.out:
        command = " ".join(["python benchmarks/gradient_workers.py", *sys.argv[1:]])
        Path(args.out).write_text(
            f"# Gradient workers\n\n{(__doc__ or '').split(chr(10) * 2)[1]}\n\n`{command}`, on "
            f"{os.cpu_count()} cores with a load average of {os.getloadavg()[2]:.1f} (in brackets: "
            "relative to 0 workers):\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
