"""Measures the cost of transport: every topology against a hand-written loop without any.

The hand-written loop and each topology alternate in one run, so that a noisy machine affects them
alike. The loop is `hand_loop.py`, or EnvPool alone where environments are what costs (with as many
of them as either of the runs has; ratios are to the faster one). The loop and `single_process`
are pinned to one core where updates are small, `heavy_env` and `light_env` have all. Figures are
environment steps that the learner trained on, per second, with the presets' sizes: for CartPole-v1
and IMPALA 64 environments, which a single actor has, as two cores have a learner besides.

  python benchmarks/overhead.py --rounds=5 --seconds=10 --out=benchmarks/overhead.md
  python benchmarks/overhead.py --task=ppo --out=benchmarks/overhead_ppo.md
  python benchmarks/overhead.py --task=pong --peer=.venv-peers/bin/python

With `--peer`, a Python that has the packages of `peers/requirements.txt`, Stable-Baselines3 trains
on the same environments in turns with the others; ratios are to the faster of the two.
"""

import argparse
import csv
import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import report

HERE = Path(__file__).parent
TOPOLOGIES = ("single_process", "heavy_env", "light_env")
WARM_UP = 3.0  # seconds to skip after the first row of metrics
_PEER = "Stable-Baselines3"
_PEER_STEPS = 5_000
START_UP = re.compile(r"start-up: ([\d.]+) s")


@dataclasses.dataclass(frozen=True)
class Task:
    """What is measured.

    Attributes:
      env, agent: names, whose preset it is.
      aims: the ratio to the hand loop that is aimed at, by topology, or by topology and sizes, or
        what CNNs compute in.
      pinned: whether the loop and `single_process` are kept to one core.
      bare: whether EnvPool alone is in the place of the loop: nothing infers and nothing learns.
    """

    env: str
    agent: str
    aims: Mapping[str, float]
    pinned: bool
    bare: bool = False

    @property
    def title(self) -> str:
        """What the page of this task is called."""
        bfloat16 = any(run.endswith("bfloat16") for run in self.runs)
        return f"Overhead: {self.env}, {self.agent}" + (", also in bfloat16" if bfloat16 else "")

    @property
    def runs(self) -> tuple[str, ...]:
        """The topologies, and those with other sizes."""
        return tuple(dict.fromkeys((*TOPOLOGIES, *self.aims)))

    @property
    def loops(self) -> dict[str, int]:
        """What has no transport, with its number of environments; 0: the preset's."""
        if not self.bare:
            return {"hand loop": 0}
        sizes = [run.partition(", ")[2] for run in self.runs if ", " in run]
        counts = {size: math.prod(map(int, size.split(" x "))) for size in sizes}
        return {f"EnvPool alone, {name}": n for name, n in {"preset": 0, **counts}.items()}

    def flags(self, run: str) -> list[str]:
        """Returns the flags of a run."""
        topology, _, sizes = run.partition(", ")
        flags = [f"--env={self.env}", f"--agent={self.agent}", f"--topology={topology}"]
        if not sizes and self.env == "CartPole-v1":
            if self.agent == "impala" and topology != "single_process":
                sizes = "1 x 64"
            elif topology == "light_env":
                sizes = "1 x 16"
        if sizes == "bfloat16":
            flags.append("--config.agent.network.cnn_dtype=bfloat16")
        elif sizes:
            actors, envs = sizes.split(" x ")
            flags += [f"--config.actors.num_actors={actors}", f"--config.actors.num_envs={envs}"]
        return flags


_PONG = {"single_process": 1.0, "heavy_env": 1.1, "light_env": 1.1}
TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        "impala",
        {
            "single_process": 0.95,
            "heavy_env": 1.3,
            "light_env": 0.8,
            "heavy_env, 2 x 1024": 2.5,
            "light_env, 2 x 1024": 1.5,
        },
        True,
    ),
    "ppo": Task("CartPole-v1", "ppo", {"single_process": 0.95, "heavy_env": 1.4}, True),
    "halfcheetah": Task("HalfCheetah-v4", "ppo", {"single_process": 0.95}, False),
    "mujoco": Task("HalfCheetah-v4", "impala", {"heavy_env, 2 x 32": 0.9}, False, bare=True),
    "pong": Task("Pong-v5", "impala", _PONG, False),
    "bfloat16": Task(
        "Pong-v5",
        "impala",
        {**_PONG, **{f"{topology}, bfloat16": aim for topology, aim in _PONG.items()}},
        False,
    ),
}
"""By name: small observations, four passes, ten passes, costlier environments, pixels, and these
with CNNs that compute in bfloat16, too, for a machine that has it.
"""


def hand_loop(task: Task, seconds: float, num_envs: int = 0) -> tuple[float, float]:
    """Returns the rate of the loop without transport, and the seconds until its first update.

    Args:
      num_envs: of a loop without updates; 0: as many as the preset has.
    """
    command = [
        sys.executable, str(HERE / "hand_loop.py"), f"--seconds={seconds}", f"--env={task.env}",
        f"--agent={task.agent}", f"--core={0 if task.pinned else -1}",
        *(["--bare", f"--num_envs={num_envs}"] if task.bare else []),
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    words = out.stdout.split()
    return float(words[-1]), float(words[-3])  # "... after 2.5 s\n210000"


def peer(python: str) -> tuple[float, float]:
    """Returns the rate of Stable-Baselines3 with pixels, and the seconds until its first update."""
    command = [python, str(HERE / "peers" / "sb3.py"), "pixels", "Pong-v5", str(_PEER_STEPS)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    found = json.loads(out.stdout.splitlines()[-1])
    return found["steps_per_second"], found["first_update"]


def rows(run_dir: Path, column: str) -> list[tuple[float, int]]:
    """Returns the seconds and a count of the rows of metrics so far."""
    path = run_dir / "metrics.csv"
    if not path.exists():
        return []
    with open(path) as file:
        return [(float(r["seconds"]), int(r[column])) for r in csv.DictReader(file) if r[column]]


def rate(run_dir: Path, column: str) -> float:
    """Returns by how much a count has risen a second, after the warm-up."""
    counts = rows(run_dir, column)
    counts = [row for row in counts if row[0] >= counts[0][0] + WARM_UP - 1.0]
    (t0, n0), (t1, n1) = counts[0], counts[-1]
    return (n1 - n0) / (t1 - t0)


def trained(task: Task, run: str, seconds: float, extra: Sequence[str] = ()) -> tuple[float, float]:
    """Returns the rate of `distrl train`, from its own metrics, and the seconds of its start-up."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable, "-m", "distrl", "train", f"--run_dir={run_dir}",
            f"--config.goal.max_seconds={seconds + WARM_UP}", *task.flags(run), *extra,
        ]  # fmt: skip

        def pin() -> None:
            os.sched_setaffinity(0, {0})

        done = subprocess.run(
            command,
            check=True,
            timeout=180,
            capture_output=True,
            text=True,
            preexec_fn=pin if task.pinned and run == "single_process" else None,
            cwd=HERE.parent,
        )
        start_up = START_UP.search(done.stdout)
        assert start_up is not None, done.stdout
        return rate(run_dir, "trained_steps"), float(start_up[1])


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=tuple(TASKS), default="cartpole")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--peer", help="a Python with Stable-Baselines3, for --task=pong")
    parser.add_argument("--out", help="a Markdown file for the table")
    args, extra = parser.parse_known_args()
    task, load = TASKS[args.task], report.load()
    if args.peer and args.task != "pong":
        parser.error("--peer is for --task=pong")
    baselines = [*task.loops, _PEER] if args.peer else [*task.loops]
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in (*baselines, *task.runs)}
    for index in range(args.rounds):
        for name, num_envs in task.loops.items():
            runs[name].append(hand_loop(task, args.seconds, num_envs))
        if args.peer:
            runs[_PEER].append(peer(args.peer))
        for run in task.runs:
            runs[run].append(trained(task, run, args.seconds, extra))
        last = {name: (round(figures[-1][0]), figures[-1][1]) for name, figures in runs.items()}
        print(index, json.dumps(last), flush=True)
    best = [max(rates)[0] for rates in zip(*(runs[name] for name in baselines), strict=True)]
    table = []
    for name, figures in runs.items():
        rates = [rate for rate, _ in figures]
        ratios = [a / b for a, b in zip(rates, best, strict=True)]
        table.append(
            [
                name,
                f"{statistics.median(rates):,.0f}",
                " ".join(f"{rate:,.0f}" for rate in rates),
                f"{statistics.median(ratios):.2f}",
                f"{task.aims.get(name, '')}",
                f"{statistics.median(start for _, start in figures):.1f}",
            ]
        )
    header = [
        f"{task.env}, {task.agent}", "env steps/s, median", "all rounds",
        "ratio, median of rounds", "aim", "s until the first update",
    ]  # fmt: skip
    report.write(args.out, task.title, __doc__, load, report.table(header, table))


if __name__ == "__main__":
    main()
