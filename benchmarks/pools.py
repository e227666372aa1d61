"""Compares environment pools with gymnasium's, Stable-Baselines3's and bare EnvPool.

Python environments that spin for 20 us, 1 ms and 10 ms per step, also with pixels: 16 of them in a
process pool (also with its workers pinned to cores, and asynchronous, waiting for half), in
gymnasium's AsyncVectorEnv (shared memory) and in Stable-Baselines3's SubprocVecEnv. `ideal` is
cores / step time. Then EnvPool through our interface against EnvPool's own `step`, with as many
threads as cores. All pools of a case live in one process and are measured alternately, in short
intervals. Figures are environment steps per second, medians of the intervals; ratios are medians of
the ratios within a round.

  python benchmarks/pools.py --rounds=10 --out=benchmarks/pools.md

Stable-Baselines3 depends on PyTorch and is skipped if it is not installed; to include it, run this
in a separate environment with `pip install . stable-baselines3`.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
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
"""Name to microseconds per step, and whether observations are pixels."""
NATIVE = [(name, n) for name in ("CartPole-v1", "Pong-v5", "HalfCheetah-v4") for n in (32, 256)]
OURS = ("loop", "processes", "processes, pinned", "processes, async")
_ASYNC_STEPS = 16  # receives of an asynchronous pool before its environments rest

Step = Callable[[], int]
"""Steps some environments, and returns how many."""


def rate(step: Step, seconds: float) -> float:
    """Returns environment steps per second."""
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        count += step()
    return count / (now - begin)


def ours(step_us: float, pixels: bool, kind: str, how: str) -> Step:
    """Returns a step of a distrl pool; an asynchronous one waits for half of its environments."""
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

    receives = _ASYNC_STEPS if how == "async" else 1

    def step() -> int:
        # All environments are idle between two calls, to leave the cores to the other pools.
        for ready in ids:
            pool.send(action, ready)
        for index in range(receives):
            ready = pool.recv().env_id
            if index < receives - len(ids):
                pool.send(action, ready)
            else:
                ids[index - receives] = ready
        return wait_num * receives

    return step


def gymnasium_async(step_us: float, pixels: bool) -> Step:
    """Returns a step of gymnasium's AsyncVectorEnv with shared memory."""
    import numpy as np
    from gymnasium.vector import AsyncVectorEnv
    from spinning import Spinning

    env = AsyncVectorEnv([partial(Spinning, step_us, pixels)] * NUM_ENVS, shared_memory=True)
    env.reset()
    action = np.zeros(NUM_ENVS, np.int64)

    def step() -> int:
        env.step(action)
        return NUM_ENVS

    return step


def sb3_subproc(step_us: float, pixels: bool) -> Step:
    """Returns a step of Stable-Baselines3's SubprocVecEnv."""
    import numpy as np
    from spinning import Spinning
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Forked, because otherwise each of its processes imports PyTorch.
    env = SubprocVecEnv([partial(Spinning, step_us, pixels)] * NUM_ENVS, start_method="fork")
    env.reset()
    action = np.zeros(NUM_ENVS, np.int64)

    def step() -> int:
        env.step(action)
        return NUM_ENVS

    return step


def native(name: str, num_envs: int) -> dict[str, Step]:
    """Returns EnvPool's own step, and ours."""
    import envpool
    import numpy as np

    from distrl import specs
    from distrl.envs.native import NativeEnvironment
    from distrl.runtime.host_resources import usable_cores

    threads = usable_cores()
    environment = NativeEnvironment(name, num_threads=threads)
    action: Any = specs.zeros(environment.spec().action, num_envs)
    env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=1)
    env.reset()
    # EnvPool's dtype, so that it has nothing to convert.
    bare_action = action.astype(np.float64) if action.dtype == np.float32 else action
    pool = environment.make_pool(num_envs, num_envs, range(num_envs))
    pool.reset()

    def bare() -> int:
        env.step(bare_action)
        return num_envs

    def through_distrl() -> int:
        pool.step(action)
        return num_envs

    return {"bare": bare, "ours": through_distrl}


def contenders(case: str) -> dict[str, Step]:
    """Returns the pools of a case, by name."""
    if case not in CASES:
        name, _, number = case.partition(" x ")
        return native(name, int(number))
    makers: dict[str, Callable[[float, bool], Step]] = {
        name: partial(ours, kind=name.partition(", ")[0], how=name.partition(", ")[2])
        for name in OURS
    }
    makers["gymnasium"] = gymnasium_async
    if importlib.util.find_spec("stable_baselines3") is not None:
        makers["sb3"] = sb3_subproc
    return {name: make(*CASES[case]) for name, make in makers.items()}


def measure_here(case: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Returns the rates of all pools of a case, measured alternately."""
    steps = contenders(case)
    for step in steps.values():
        rate(step, seconds / 2)  # to warm up
    figures: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            figures[name].append(rate(step, seconds))
    return figures


def measure(case: str, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Runs `measure_here` in a separate process, and kills workers that it leaves behind."""
    command = [
        sys.executable, __file__, f"--case={case}", f"--rounds={rounds}", f"--seconds={seconds}",
    ]  # fmt: skip
    limit = 120 + 12 * rounds * seconds
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # Not pipes: workers that are left behind would keep them open.
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        try:
            process.wait(limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        lines = out.read().splitlines()
        if not lines:
            raise RuntimeError(f"{case}: {err.read()[-2000:]}")
        return json.loads(lines[-1])


def main() -> None:
    """Measures, then prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of an interval")
    parser.add_argument("--out", help="a Markdown file for the tables")
    parser.add_argument("--only", choices=("python", "envpool"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure_here(args.case, args.rounds, args.seconds)), flush=True)
        os._exit(0)  # the other pools may wait long, or hang, at an ordinary exit
    lines: list[str] = []
    if args.only != "envpool":
        lines += [*python_table(args.rounds, args.seconds), ""]
    if args.only != "python":
        lines += native_table(args.rounds, args.seconds)
    if args.out:
        from distrl.runtime.host_resources import usable_cores

        command = " ".join(["python benchmarks/pools.py", *sys.argv[1:]])
        about = (__doc__ or "").split("\n\n")[1]
        Path(args.out).write_text(
            f"# Pools\n\n{about}\n\n`{command}`, on {usable_cores()} cores:\n\n"
            + "\n".join(lines)
            + "\n"
        )


def ratio(rates: list[float], baseline: list[float]) -> str:
    """Returns the median of the ratios within a round."""
    return f"{statistics.median(a / b for a, b in zip(rates, baseline, strict=True)):.2f}"


def show(cells: list[str]) -> str:
    """Returns a row of a table, and prints it."""
    line = f"| {' | '.join(cells)} |"
    print(line, flush=True)
    return line


def python_table(rounds: int, seconds: float) -> list[str]:
    """Returns a table of process pools and the other libraries' pools."""
    from distrl.runtime.host_resources import usable_cores

    lines: list[str] = []
    for case, (step_us, _) in CASES.items():
        figures = measure(case, rounds, seconds)
        rivals = [name for name in ("gymnasium", "sb3") if name in figures]
        if not lines:
            heads = ["step", "ideal", *figures]
            heads += [f"{name} / ideal" for name in OURS[1:]]
            heads += [f"{name} / {rival}" for rival in rivals for name in OURS[1:3]]
            lines += [show(heads), show(["---"] * len(heads))]
        ideal = usable_cores() / (step_us * 1e-6)
        medians = {name: statistics.median(runs) for name, runs in figures.items()}
        cells = [case, f"{ideal:,.0f}", *(f"{median:,.0f}" for median in medians.values())]
        cells += [f"{medians[name] / ideal:.2f}" for name in OURS[1:]]
        cells += [ratio(figures[n], figures[rival]) for rival in rivals for n in OURS[1:3]]
        lines.append(show(cells))
    return lines


def native_table(rounds: int, seconds: float) -> list[str]:
    """Returns a table of EnvPool through our interface and through its own."""
    lines = [show(["EnvPool", "bare", "ours", "ours / bare"]), show(["---"] * 4)]
    for name, n in NATIVE:
        case = f"{name} x {n}"
        figures = measure(case, 2 * rounds, seconds / 4)
        bare, through_distrl = figures["bare"], figures["ours"]
        cells = [
            case,
            f"{statistics.median(bare):,.0f}",
            f"{statistics.median(through_distrl):,.0f}",
        ]
        lines.append(show([*cells, ratio(through_distrl, bare)]))
    return lines


if __name__ == "__main__":
    main()
