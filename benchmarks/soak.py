"""Measures memory over time, with four actors and 50 MB of new parameters at every update.

  python benchmarks/soak.py --minutes=20 --out=benchmarks/soak.md

The program is `distrl train` on the experiment below; every node's memory is read from its
`status.json`. Shared memory counts for every node that maps it; private memory is the rest.
"""

import argparse
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from distrl.agents.agent import LearnerState, Logs
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.replay.buffer import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.testing import CheckingAgent, CheckingConfig, CountingEnvironment
from distrl.types import Params, Trajectory

HERE = Path(__file__).parent
FLOATS = 12_500_000  # 50 MB


@dataclasses.dataclass(frozen=True)
class HeavyConfig(CheckingConfig):
    """The settings of a CheckingAgent with ballast in its parameters."""

    def make(self, env_spec: EnvironmentSpec) -> "HeavyAgent":
        """See `AgentConfig`."""
        return HeavyAgent(env_spec, self.recurrent)


class HeavyAgent(CheckingAgent):
    """An agent whose parameters, with ballast, all change at each update."""

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`."""
        return {**super().initial_params(rng), "ballast": jnp.zeros(FLOATS, jnp.float32)}

    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`."""
        grads, logs = super().compute_gradients(params, learner_state, batch)
        return {**grads, "ballast": jnp.ones(FLOATS, jnp.float32)}, logs

    def apply_gradients(
        self, params: Params, learner_state: LearnerState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        return jax.tree.map(jnp.add, params, grads), None, {}


def experiment() -> Experiment:
    """Returns an experiment whose actors fetch new parameters for each unroll."""
    return Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        HeavyConfig(),
        ReplayConfig(unroll_length=20, max_size=64),
        ActorsConfig(num_actors=4, num_envs=4),
        learner=LearnerConfig(batch_size=16),
        goal=Goal(mean_return=None, max_env_steps=10**12),
    )


def main() -> None:
    """Runs the program, and prints the memory of each node over time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--topology", default="heavy_env")
    parser.add_argument("--out")
    args = parser.parse_args()
    samples: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        process = subprocess.Popen(
            [
                sys.executable, "-m", "distrl", "train", f"--run_dir={run_dir}",
                f"--experiment={Path(__file__)}", f"--topology={args.topology}",
                "--terminal=output_to_files",
            ],
            cwd=HERE.parent, start_new_session=True,
        )  # fmt: skip
        try:
            began = time.monotonic()
            while time.monotonic() - began < 60 * args.minutes:
                time.sleep(2.0)  # its period
                if process.poll() is not None:
                    raise SystemExit(f"the program ended with exit status {process.returncode}")
                path = run_dir / "status.json"
                nodes = json.loads(path.read_text())["nodes"] if path.exists() else {}
                for name, node in nodes.items():
                    if "resident_mb" in node:
                        private = node["resident_mb"] - node["shared_mb"]
                        at = (time.monotonic() - began) / 60
                        samples.setdefault(name, []).append((at, private, node["resident_mb"]))
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        last = (run_dir / "metrics.csv").read_text().splitlines()
        row = dict(zip(last[0].split(","), last[-1].split(","), strict=True))
    lines = [
        f"{args.minutes:g} minutes of {args.topology}, exit status {code}: "
        f"{int(row['learner_steps']):,} updates, each with 50 MB of new parameters. Private memory "
        "in MB: the maximum, and the minimum of each fifth of the time. (Messages take 50 MB each "
        "for a moment; the minimum shows what is kept.)",
        "",
        "| node | maximum | 1 | 2 | 3 | 4 | 5 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, node_samples in samples.items():
        private_mb = [mb for _, mb, _ in node_samples]
        cuts = [len(private_mb) * fifth // 5 for fifth in range(6)]
        minima = [min(private_mb[start:end]) for start, end in itertools.pairwise(cuts)]
        cells = [max(private_mb), *minima]
        lines.append(f"| {name} | {' | '.join(f'{mb:.0f}' for mb in cells)} |")
    print("\n".join(lines))
    if args.out:
        typed = " ".join(["python benchmarks/soak.py", *sys.argv[1:]])
        Path(args.out).write_text(f"# Memory over time\n\n`{typed}`\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
