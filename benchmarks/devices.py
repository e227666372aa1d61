"""Measures a learner's updates by number of devices: what splitting a batch costs and gains.

The devices are CPUs that XLA makes from this machine's cores
(`--xla_force_host_platform_device_count`), each with one thread: more devices than cores can only
cost. Each number of devices has its own process, which makes one update after another on batches in
host memory; they alternate. Figures are environment steps learned from per second, medians of all
rounds; and per second of CPU time, which shows the cost of splitting: if other programs use the
cores too, a process with more threads gets more of them, and its steps per second say little.

  python benchmarks/devices.py --rounds=3 --seconds=4 --out=benchmarks/devices.md
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

COUNTS = (1, 2, 4)
# Name to hidden sizes and unrolls per batch. The last one computes much between two sums.
CASES = {
    "MLP 2x64, 64 unrolls": ((64, 64), 64),
    "MLP 2x512, 256 unrolls": ((512, 512), 256),
}
LENGTH = 20
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def measure(case: str, count: int, seconds: float) -> tuple[float, float]:
    """Returns environment steps per second of wall clock, and of CPU time, in this process.

    Args:
      case: a key of CASES.
      count: devices that XLA was told to make.
      seconds: duration.
    """
    import jax
    import numpy as np
    from dm_env import specs

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    from distrl.agents.impala import IMPALAConfig
    from distrl.agents.networks import NetworkConfig
    from distrl.learner import Learner
    from distrl.learner_group.devices import Devices
    from distrl.learning.random_batches import NoReplay, random_batch
    from distrl.specs import EnvironmentSpec
    from distrl.types import Sample

    sizes, batch_size = CASES[case]
    spec = EnvironmentSpec(specs.Array((64,), np.float32), specs.DiscreteArray(8))
    agent = IMPALAConfig(NetworkConfig(hidden_sizes=sizes)).make(spec)
    batch = random_batch(agent, LENGTH, batch_size)
    batch = batch._replace(extras={"log_prob": np.full((LENGTH + 1, batch_size), -2, np.float32)})
    sample = Sample(batch, np.arange(batch_size, dtype=np.uint64))
    learner = Learner(agent, NoReplay(), seed=0, devices=Devices(batch_size))  # type: ignore[arg-type]
    assert len(jax.devices()) == count
    for _ in range(3):
        learner.update(sample)
    jax.block_until_ready(learner.state().params)
    began, worked, updates = time.monotonic(), time.process_time(), 0
    while time.monotonic() < began + seconds:
        learner.update(sample)
        updates += 1
    jax.block_until_ready(learner.state().params)
    steps = updates * LENGTH * batch_size
    return steps / (time.monotonic() - began), steps / (time.process_time() - worked)


def measure_in_process(case: str, count: int, seconds: float) -> tuple[float, float]:
    """Runs `measure` in a process with `count` devices."""
    flags = f"{_ONE_THREAD} --xla_force_host_platform_device_count={count}"
    command = [sys.executable, __file__, f"--case={case}", f"--count={count}"]
    out = subprocess.run(
        [*command, f"--seconds={seconds}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120 + seconds,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    speed, per_work = map(float, out.stdout.split()[-2:])
    return speed, per_work


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", help="a Markdown file for the table")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(*measure(args.case, args.count, args.seconds))
        return
    figures: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for round_index in range(args.rounds):
        for case in CASES:
            for count in COUNTS:
                speed = measure_in_process(case, count, args.seconds)
                figures.setdefault((case, count), []).append(speed)
                line = json.dumps([case, count, *map(round, speed)])
                print(round_index, line, flush=True)
    lines = [
        "| | " + " | ".join(f"{count} device{'s' * (count > 1)}" for count in COUNTS) + " |",
        "|---|" + "---|" * len(COUNTS),
    ]
    for case in CASES:
        for column, unit in enumerate(("s", "s of CPU time")):
            speeds = [statistics.median(row[column] for row in figures[case, n]) for n in COUNTS]
            cells = [f"{speed:,.0f} ({speed / speeds[0]:.2f})" for speed in speeds]
            lines.append(f"| {case}, steps/{unit} | " + " | ".join(cells) + " |")
    print("\n".join(lines))
    if args.out:
        command = " ".join(["python benchmarks/devices.py", *sys.argv[1:]])
        Path(args.out).write_text(
            f"# Devices\n\n{(__doc__ or '').split(chr(10) * 2)[1]}\n\n`{command}`, on "
            f"{os.cpu_count()} cores with a load average of {os.getloadavg()[2]:.1f} (in brackets: "
            "relative to one device):\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
