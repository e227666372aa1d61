"""Pools of environments: ours against gymnasium's, Stable-Baselines3's and bare EnvPool.

Python environments that spin for 20 us, 1 ms and 10 ms a step, and with pixels: 16 of them in a
process pool (also with its workers pinned to cores, and asynchronous, waiting for half), in
gymnasium's AsyncVectorEnv (shared memory) and in Stable-Baselines3's
SubprocVecEnv. `ideal` is cores / step time. Then EnvPool through our interface against EnvPool's
own `step`, with as many threads as cores. All contenders take turns in each round; figures are
environment steps per second, medians of the rounds.

  python benchmarks/pools.py --rounds=5 --sb3_python=.venv-sb3/bin/python --out=benchmarks/pools.md

Stable-Baselines3 brings PyTorch along, so it has an environment of its own:
`pip install stable-baselines3 gymnasium` into a fresh one. Without the flag it is left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

NUM_ENVS = 16
CASES = {
    "20 us": (20, False),
    "1 ms": (1000, False),
    "10 ms": (10_000, False),
    "20 us, 84x84x4": (20, True),
    "1 ms, 84x84x4": (1000, True),
}
"""Name to microseconds a step, and whether it gives pixels."""
NATIVE = [(name, n) for name in ("CartPole-v1", "Pong-v5", "HalfCheetah-v4") for n in (32, 256)]
CONTENDERS = (
    "loop", "processes", "processes, pinned", "processes, async", "gymnasium", "sb3",
)  # fmt: skip


def rate(step: Callable[[], int], seconds: float) -> float:
    """Steps per second of `step`, which returns how many environments it stepped."""
    until = time.perf_counter() + seconds / 4
    while time.perf_counter() < until:
        step()
    count, begin = 0, time.perf_counter()
    until = begin + seconds
    while (now := time.perf_counter()) < until:
        count += step()
    return count / (now - begin)


def ours(step_us: float, pixels: bool, kind: str, how: str, seconds: float) -> float:
    """A pool of distrl; asynchronous, it waits for half of its environments."""
    import numpy as np
    from spinning import Spinning

    from distrl.envs.pool_config import PoolConfig
    from distrl.envs.python import PythonEnvironment

    wait_num = NUM_ENVS // 2 if how == "async" else NUM_ENVS
    environment = PythonEnvironment(
        partial(Spinning, step_us, pixels), pool=PoolConfig(kind=kind, pin_workers=how == "pinned")
    )
    pool = environment.make_pool(NUM_ENVS, wait_num, range(NUM_ENVS))
    action = np.zeros(wait_num, np.int32)
    pool.start()
    ids = [pool.recv().env_id for _ in range(NUM_ENVS // wait_num)]
    for first in ids[1:]:
        pool.send(action, first)
    ready = ids[0]

    def step() -> int:
        nonlocal ready
        pool.send(action, ready)
        ready = pool.recv().env_id
        return wait_num

    try:
        return rate(step, seconds)
    finally:
        pool.close()


def gymnasium_async(step_us: float, pixels: bool, seconds: float) -> float:
    """gymnasium's AsyncVectorEnv with shared memory."""
    from gymnasium.vector import AsyncVectorEnv
    from spinning import Spinning

    envs = [partial(Spinning, step_us, pixels)] * NUM_ENVS
    return vector(AsyncVectorEnv(envs, shared_memory=True), seconds)


def sb3_subproc(step_us: float, pixels: bool, seconds: float) -> float:
    """Stable-Baselines3's SubprocVecEnv."""
    from spinning import Spinning
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return vector(SubprocVecEnv([partial(Spinning, step_us, pixels)] * NUM_ENVS), seconds)


def vector(env: Any, seconds: float) -> float:
    """A vector environment of others."""
    import numpy as np

    env.reset()
    action = np.zeros(NUM_ENVS, np.int64)

    def step() -> int:
        env.step(action)
        return NUM_ENVS

    try:
        return rate(step, seconds)
    finally:
        env.close()


def native(name: str, num_envs: int, seconds: float) -> tuple[float, float, float]:
    """EnvPool's own `step`, ours, and their ratio: medians of short turns in one process.

    EnvPool's speed jumps by half as its threads are scheduled now so, now so; only turns that
    follow each other at once are comparable.
    """
    import envpool
    import numpy as np

    from distrl import specs
    from distrl.cores import usable_cores
    from distrl.envs.native import NativeEnvironment

    threads = usable_cores()
    environment = NativeEnvironment(name, num_threads=threads)
    action: Any = specs.zeros(environment.spec().action, num_envs)
    env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=1)
    env.reset()
    # EnvPool's own dtype, so that it has nothing to convert.
    bare_action = action.astype(np.float64) if action.dtype == np.float32 else action
    pool = environment.make_pool(num_envs, num_envs, range(num_envs))
    pool.reset()

    def bare() -> int:
        env.step(bare_action)
        return num_envs

    def ours() -> int:
        pool.step(action)
        return num_envs

    turns = [(rate(bare, 0.2), rate(ours, 0.2)) for _ in range(max(3, round(4 * seconds)))]
    bares, mines = zip(*turns, strict=True)
    ratio = statistics.median(mine / bare for bare, mine in turns)
    return statistics.median(bares), statistics.median(mines), ratio


def one(what: str, case: str, seconds: float) -> tuple[float, ...]:
    """The figures of a contender, in this process."""
    if case not in CASES:
        name, _, number = case.partition(" x ")
        return native(name, int(number), seconds)
    step_us, pixels = CASES[case]
    if what == "gymnasium":
        return (gymnasium_async(step_us, pixels, seconds),)
    if what == "sb3":
        return (sb3_subproc(step_us, pixels, seconds),)
    kind, _, how = what.partition(", ")
    return (ours(step_us, pixels, kind, how, seconds),)


def measure(python: str, what: str, case: str, seconds: float) -> list[float]:
    """The figures of a contender, in a process of its own."""
    command = [python, __file__, f"--one={what}", f"--case={case}", f"--seconds={seconds}"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60 + 8 * seconds)
    if out.returncode:
        raise RuntimeError(f"{what}, {case}: {out.stderr[-2000:]}")
    return [float(figure) for figure in out.stdout.splitlines()[-1].split()]


def main() -> None:
    """Prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--sb3_python", help="an interpreter that has stable-baselines3")
    parser.add_argument("--out", help="a Markdown file for the tables")
    parser.add_argument("--only", choices=("python", "envpool"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(*one(args.one, args.case, args.seconds))
        return
    contenders = [c for c in CONTENDERS if c != "sb3" or args.sb3_python]
    jobs = []
    if args.only != "envpool":
        jobs += [(what, case) for case in CASES for what in contenders]
    if args.only != "python":
        jobs += [("envpool", f"{name} x {n}") for name, n in NATIVE]
    figures: dict[tuple[str, str], list[list[float]]] = {job: [] for job in jobs}
    for turn in range(args.rounds):
        for what, case in jobs:
            python = args.sb3_python if what == "sb3" else sys.executable
            figures[what, case].append(measure(python, what, case, args.seconds))
        shown = {f"{w}: {c}": [round(x, 2) for x in figures[w, c][-1]] for w, c in jobs}
        print(turn, json.dumps(shown), flush=True)
    lines = tables(figures, contenders)
    print("\n".join(lines))
    if args.out:
        from distrl.cores import usable_cores

        command = " ".join(["python benchmarks/pools.py", *sys.argv[1:]])
        about = (__doc__ or "").split("\n\n")[1]
        Path(args.out).write_text(
            f"# Pools\n\n{about}\n\n`{command}`, on {usable_cores()} cores:\n\n"
            + "\n".join(lines)
            + "\n"
        )


def tables(figures: dict[tuple[str, str], list[list[float]]], contenders: list[str]) -> list[str]:
    """The figures in Markdown: medians of the rounds."""
    from distrl.cores import usable_cores

    medians = {
        job: [statistics.median(column) for column in zip(*runs, strict=True)]
        for job, runs in figures.items()
    }
    lines = []
    if ("processes", "1 ms") in medians:
        heads = (
            "a step", "ideal", *contenders, "processes / ideal", "pinned / ideal",
            "processes / best rival", "pinned / best rival",
        )  # fmt: skip
        lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        for case, (step_us, _) in CASES.items():
            ideal = usable_cores() / (step_us * 1e-6)
            rival = max(medians[c, case][0] for c in contenders if c in ("gymnasium", "sb3"))
            cells = " | ".join(f"{medians[c, case][0]:,.0f}" for c in contenders)
            mine = [medians[kind, case][0] for kind in ("processes", "processes, pinned")]
            ratios = [f"{one / than:.2f}" for than in (ideal, rival) for one in mine]
            lines.append(f"| {case} | {ideal:,.0f} | {cells} | {' | '.join(ratios)} |")
        lines.append("")
    if ("envpool", f"{NATIVE[0][0]} x {NATIVE[0][1]}") in medians:
        lines += ["| EnvPool | bare | ours | ours / bare |", "|---|---|---|---|"]
        for name, n in NATIVE:
            bare, mine, ratio = medians["envpool", f"{name} x {n}"]
            lines.append(f"| {name} x {n} | {bare:,.0f} | {mine:,.0f} | {ratio:.2f} |")
    return lines


if __name__ == "__main__":
    main()
