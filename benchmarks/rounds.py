"""Measures synchronous collection with a straggler: rounds per second by rule.

Four actors under heavy_env; steps of the first one's environments take ten times as long as those
of the others (3 ms for each step of an actor). CartPole-v1, IMPALA, 8 environments an actor,
32-step unrolls. In a round every actor makes one unroll of each environment; the learner learns
between rounds. The columns:

- the rule: how many actors a round waits for, the grace time that the others then have, and what
  happens to late data;
- rounds, and unrolls learned from, per second;
- unrolls delivered in time, late and kept, late and dropped; with those on the way at the end they
  are all that was acted.

  python benchmarks/rounds.py --seconds=30 --out=benchmarks/rounds.md
"""

import argparse
import csv
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from distrl import envs, presets
from distrl.envs import Pool
from distrl.experiment import ActorsConfig, Experiment
from distrl.seeds import environment_seeds
from distrl.types import TimeStep

ACTORS, ENVS, STEP_S, FACTOR = 4, 8, 0.003, 10
RULES = {
    "all four": (4, 0.0, "keep"),
    "three, late data kept": (3, 0.0, "keep"),
    "three, late data dropped": (3, 0.0, "drop"),
    "three, grace 0.2 s, kept": (3, 0.2, "keep"),
}


@dataclasses.dataclass(frozen=True)
class Slowed:
    """CartPole-v1, slower for the first actor."""

    def __getattr__(self, name: str) -> object:
        return getattr(envs.make("CartPole-v1"), name)

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """Returns a pool each of whose steps takes a fixed time at least."""
        pool = envs.make("CartPole-v1").make_pool(num_envs, wait_num, seeds)
        first = environment_seeds(0, "actor", 0, num_envs, 0)[0]
        pause, receive = STEP_S * (FACTOR if seeds[0] == first else 1), pool.recv

        def recv() -> TimeStep:
            time.sleep(pause)
            return receive()

        pool.recv = recv  # type: ignore[method-assign]
        return pool


def experiment() -> Experiment:
    """Returns what each rule trains."""
    made = presets.experiment("CartPole-v1", "impala")
    return Experiment(
        Slowed(),
        made.agent,
        dataclasses.replace(made.replay, unroll_length=32, max_size=4 * ACTORS * ENVS),
        ActorsConfig(num_actors=ACTORS, num_envs=ENVS, min_actors=ACTORS),
        learner=dataclasses.replace(made.learner, batch_size=ENVS),
    )


def measure(min_actors: int, grace: float, late: str, seconds: float) -> list[float]:
    """Returns the columns of a rule."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "distrl", "train", f"--experiment={__file__}",
            "--topology=heavy_env", f"--run_dir={folder}/run",
            f"--config.goal.max_seconds={seconds}", "--config.goal.mean_return=None",
            f"--config.actors.min_actors={min_actors}", f"--config.actors.round_grace={grace}",
            f"--config.actors.late_data={late}",
        ]  # fmt: skip
        subprocess.run(command, check=False, timeout=seconds + 150, stdout=subprocess.DEVNULL)
        with open(Path(folder) / "run" / "metrics.csv") as file:
            rows = [{k: float(v) for k, v in r.items() if v} for r in csv.DictReader(file)]
    first, last = rows[0], rows[-1]
    time_passed = last["seconds"] - first["seconds"]
    rates = [(last[name] - first[name]) / time_passed for name in ("rounds", "unrolls")]
    counts = ("unrolls_in_time", "unrolls_late_kept", "unrolls_late_dropped")
    return rates + [last[name] for name in counts]


def main() -> None:
    """Measures every rule once, and writes a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    lines = [
        "| a round waits for | rounds/s | unrolls/s | in time | late, kept | late, dropped |",
        "|---|---|---|---|---|---|",
    ]
    for name, rule in RULES.items():
        rounds, unrolls, *counts = measure(*rule, flags.seconds)
        figures = " | ".join(f"{count:,.0f}" for count in counts)
        lines.append(f"| {name} | {rounds:.2f} | {unrolls:.1f} | {figures} |")
        print(lines[-1], flush=True)
    text = f"# Rounds with a straggler\n\n{__doc__.splitlines()[0]}\n\n" + "\n".join(lines) + "\n"
    if flags.out:
        flags.out.write_text(text + f"\nBy `benchmarks/rounds.py`, {flags.seconds:g} s each.\n")


if __name__ == "__main__":
    main()
