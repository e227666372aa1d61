"""Checks verdicts about the bottleneck, on programs whose bottleneck is known.

The environment, inference, writes to the table, samples from it and updates cost what a case says.
The costs are sleeps: two cores are enough, with a larger `--scale` where others use them. Each case
is trained twice, once with one actor more (`single_process`: with a process for acting alone), so
that the predicted gain can be compared with the measured one; both at the same time, so that a
noisy machine affects them alike. The times that each node reports are compared with the wall time
between its reports, by the clock of the node that gets them.

  python benchmarks/verdicts.py --seconds=12 --out=benchmarks/verdicts.md
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__)
UNROLL, BATCH = 5, 4
_CASE = "DISTRL_BOTTLENECK_CASE"
_WARM_UP = 3.0  # seconds to skip after the first row of metrics
_GAIN_ERROR = 0.25


class Costs(NamedTuple):
    """Milliseconds of each part of a program."""

    env: float = 1.0  # a step
    inference: float = 1.0  # a batch
    row: float = 0.0  # and each of its rows
    write: float = 0.0  # an unroll of 5 steps
    sample: float = 0.0  # a batch of 4 unrolls
    learner: float = 1.0  # an update


class Case(NamedTuple):
    """A program, and what limits it."""

    expected: str
    topology: str
    costs: Costs
    actors: int = 2


CASES = [
    Case("environments", "heavy_env", Costs(env=20)),
    Case("environments", "heavy_env", Costs(env=20, learner=160)),
    Case("inference", "heavy_env", Costs(env=4, inference=20)),
    Case("replay writes", "heavy_env", Costs(env=4, write=120)),
    Case("sampling", "heavy_env", Costs(env=8, sample=200)),
    Case("learner", "heavy_env", Costs(env=8, learner=200)),
    Case("environments", "light_env", Costs(env=20, inference=2)),
    Case("inference", "light_env", Costs(env=4, row=15)),
    Case("replay writes", "light_env", Costs(env=4, write=120)),
    Case("learner", "light_env", Costs(env=8, learner=240)),
    Case("environments", "single_process", Costs(env=20, learner=200), 1),
    Case("learner", "single_process", Costs(env=5, learner=400), 1),
]


def experiment() -> Any:
    """Returns the experiment of the case in the environment variable, with its costs in place."""
    from distrl.config import ActorsConfig, LearnerConfig
    from distrl.envs import PythonEnvironment
    from distrl.envs.pool_config import PoolConfig
    from distrl.experiment import Experiment
    from distrl.goal import Goal
    from distrl.replay.config import ReplayConfig
    from distrl.testing import CheckingConfig

    case = json.loads(os.environ[_CASE])
    costs = Costs(**case["costs"])
    _install(costs, Path(case["times"]))
    return Experiment(
        PythonEnvironment(_SlowEnvironment.of(costs.env), "slow", pool=PoolConfig(kind="loop")),
        CheckingConfig(recurrent=False),
        replay=ReplayConfig(unroll_length=UNROLL, max_size=4 * BATCH),
        actors=ActorsConfig(num_actors=case["actors"], num_envs=1),
        learner=LearnerConfig(batch_size=BATCH),
        goal=Goal(mean_return=None, max_seconds=case["seconds"] + _WARM_UP),
    )


class _SlowEnvironment:
    """Builds CountingEnvironments whose steps take their time."""

    @staticmethod
    def of(milliseconds: float) -> Callable[[int], Any]:
        from distrl.testing import CountingEnvironment

        class Slow(CountingEnvironment):
            def step(self, action: Any) -> Any:
                time.sleep(milliseconds / 1e3)
                return super().step(action)

        return Slow


def _install(costs: Costs, times: Path) -> None:
    """Makes parts cost more, and the monitor write down each report of times.

    The nodes are forked from this process. Each cost is put where the part's own work is.
    """
    from distrl.inferencer import Inferencer
    from distrl.learner import Learner
    from distrl.metrics.node_times import NodeTimes
    from distrl.replay.client import TableReplayBuffer

    infer, make = Inferencer.infer_encoded, Learner.__init__
    insert, sample, add = TableReplayBuffer._insert, TableReplayBuffer.sample, NodeTimes.add

    def slow_infer(self: Any, data: Any, n: int, *rest: Any, **more: Any) -> Any:
        time.sleep((costs.inference + costs.row * n) / 1e3)
        return infer(self, data, n, *rest, **more)

    def slow_insert(self: Any, block: Any) -> None:
        time.sleep(costs.write * block.size / 1e3)
        insert(self, block)

    def slow_sample(self: Any, timeout: float | None) -> Any:
        made = sample(self, timeout)
        time.sleep(costs.sample / 1e3)
        return made

    def make_slow(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        update = self._update

        def slow_update(*arguments: Any) -> Any:
            time.sleep(costs.learner / 1e3)
            return update(*arguments)

        self._update = slow_update

    def noted_add(self: Any, node: str, life: int, report: Any) -> None:
        with open(times, "a") as file:
            seconds = sum(report["time"].values()) / 1e9
            steps = report["env_steps"] if node.startswith("actor/") else 0
            file.write(json.dumps([time.monotonic(), node, life, seconds, steps]) + "\n")
        add(self, node, life, report)

    for owner, name, slow in (
        (Inferencer, "infer_encoded", slow_infer),
        (Learner, "__init__", make_slow),
        (TableReplayBuffer, "_insert", slow_insert),
        (TableReplayBuffer, "sample", slow_sample),
        (NodeTimes, "add", noted_add),
    ):
        setattr(owner, name, slow)


class Outcome(NamedTuple):
    """What came of a run."""

    rate: float  # environment steps per second
    verdict: str
    gain: float  # predicted, of one more actor
    accounted: tuple[float, float]  # least and greatest part of a node's wall time
    sentence: str


class Run:
    """A case in processes of its own, which train as soon as this is made."""

    def __init__(self, case: Case, topology: str, actors: int, seconds: float, scale: float):
        """Args: scale: multiplies the costs."""
        self._topology = topology
        self._folder = tempfile.TemporaryDirectory()
        self._run_dir = Path(self._folder.name) / "run"
        self._times = Path(self._folder.name) / "times.jsonl"
        facts = {
            "costs": {name: scale * cost for name, cost in case.costs._asdict().items()},
            "times": str(self._times),
            "actors": actors,
            "seconds": seconds,
        }
        os.environ[_CASE] = json.dumps(facts)
        self._pid = _distrl(
            "train", f"--experiment={HERE}:experiment", f"--topology={topology}",
            f"--run_dir={self._run_dir}",
        )  # fmt: skip

    def result(self) -> Outcome:
        """Waits for its end."""
        if os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]):
            raise RuntimeError(f"{self._topology} failed; see above")
        with open(self._run_dir / "metrics.csv") as file:
            rows = [(float(r["seconds"]), int(r["env_steps"])) for r in csv.DictReader(file)]
        rows = [r for r in rows if r[0] >= rows[0][0] + _WARM_UP - 1] or rows
        if self._topology != "single_process":
            rows = _acted(self._times)
        status = json.loads((self._run_dir / "progress.json").read_text())
        accounted = _accounted(self._times)
        self._folder.cleanup()
        (t0, n0), (t1, n1) = rows[0], rows[-1]
        sentence = status["bottleneck"]
        name = sentence.removeprefix("bottleneck: ").partition(" (")[0]
        rate = (n1 - n0) / (t1 - t0)
        return Outcome(rate, name, status["gains"]["actor"], accounted, sentence)


def _distrl(*arguments: str) -> int:
    """Runs a command of distrl in a fork of this process, which has imported what takes long.

    Returns:
      The fork's pid.
    """
    from distrl.launch.main import main as distrl_main

    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            distrl_main(["distrl", *arguments], own_process=True)
        except SystemExit as end:
            os._exit(int(end.code or 0))  # nothing of this process's is cleaned up twice
        os._exit(1)
    return pid


def _import() -> None:
    import distrl.launch.commands.train
    import distrl.launch.launcher
    import distrl.programs.heavy_env
    import distrl.programs.light_env
    import distrl.programs.single_process
    import distrl.testing  # noqa: F401


def _acted(times: Path) -> list[tuple[float, int]]:
    """Returns when how many steps had been taken, from when all actors were there."""
    reports = [json.loads(line) for line in times.read_text().splitlines()]
    first: dict[str, float] = {}
    for at, node, *_ in reports:
        first.setdefault(node, at)
    began, total, rows = max(first.values()) + _WARM_UP, 0, []
    for at, _, _, _, steps in reports:
        total += steps
        if at >= began and steps:
            rows.append((at, total))
    return rows


def _accounted(times: Path) -> tuple[float, float]:
    """Returns the least and the greatest part of the wall time that a node accounts for."""
    reports: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for line in times.read_text().splitlines():
        at, node, life, seconds, _ = json.loads(line)
        reports.setdefault((node, life), []).append((at, seconds))
    parts = [
        (of_node[-1][1] - of_node[0][1]) / (of_node[-1][0] - of_node[0][0])
        for of_node in reports.values()
        if of_node[-1][0] - of_node[0][0] > 1.0
    ]
    return min(parts), max(parts)


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all costs")
    parser.add_argument("--cases", help="numbers of cases, as 1,2,5; all by default")
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    numbers = [int(n) for n in args.cases.split(",")] if args.cases else range(1, len(CASES) + 1)
    lines = [
        "| | topology | costs, ms | expected | verdict | accounted % | predicted gain | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wrong = 0
    _import()
    print("\n".join(lines), flush=True)
    for number in numbers:
        case = CASES[number - 1]
        measured = args.seconds, args.scale
        run = Run(case, case.topology, case.actors, *measured)
        if case.topology == "single_process":
            other = Run(case, "heavy_env", case.actors, *measured)
        else:
            other = Run(case, case.topology, case.actors + 1, *measured)
        one, more = run.result(), other.result()
        gain, (low, high) = more.rate / one.rate - 1, one.accounted
        right = one.verdict == case.expected
        exact = 0.98 <= low <= high <= 1.02
        near = abs(one.gain - gain) <= _GAIN_ERROR * max(gain, _GAIN_ERROR)
        wrong += not (right and exact and near)
        defaults = Costs()._asdict()
        costs = ", ".join(
            f"{name} {args.scale * cost:g}" for name, cost in case.costs._asdict().items()
            if cost != defaults[name]
        )  # fmt: skip
        lines.append(
            f"| {number} | {case.topology} | {costs} | {case.expected} | {one.verdict}"
            f"{'' if right else ' (wrong)'} | {100 * low:.1f} to {100 * high:.1f}"
            f"{'' if exact else ' (wrong)'} | {100 * one.gain:+.0f} % | {100 * gain:+.0f} %"
            f"{'' if near else ' (wrong)'} |"
        )
        print(lines[-1], flush=True)
        print(f"  {one.sentence}", file=sys.stderr, flush=True)
    print(f"{len(numbers) - wrong} of {len(numbers)} cases right", flush=True)
    if args.out:
        Path(args.out).write_text("\n".join(lines) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
