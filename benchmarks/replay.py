"""Measures the cost of writes and samples, compared with `memcpy` and a bare NumPy ring.

Observations are vectors of normal numbers, and frames of Pong-v5 in random play: servers compress
what they are sent. Tables are in process, in shared memory, and on servers, each in a process of
its own as in a program: Reverb's, and that of `replay.backend=served` at a Unix socket and by TCP.
All alternate in one run, so that a noisy machine affects them alike: many short rounds are better
than a few long ones, in one of which a process may be woken on the core of the one that waits.

- add: `ReplayBuffer.add` of T steps of all environments, in microseconds per unroll, as actors do:
  the last insert may be on its way to a server;
- insert: the table's part of that (without cutting steps into unrolls, which is the same for all),
  until a server has confirmed it, compared with `memcpy` of the same block into as much memory as
  the table has, all of it touched before;
- sample: a batch, in microseconds per unroll, compared with a ring of NumPy arrays, one per column,
  and `np.take` of random indices into new arrays.

The ratios that matter follow, and the cost of an `add` in each tenth of 10^7 steps. A figure is the
median over rounds of a round's mean, a ratio the median of the rounds' ratios. On a busy machine
use `--clock=cpu`: the CPU time of this process and of the server's.

  python benchmarks/replay.py --out=benchmarks/replay.md
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import report
from replay_cases import BATCH, KINDS, OBSERVATIONS, Case, Plain, T, observations, struct_of

from distrl.replay.buffer import ReplayConfig

Clock = Callable[[Case | None], float]
LONG = 10_000_000


def cpu_time(case: Case | None) -> float:
    """Returns the CPU seconds of this process and of the case's server."""
    own = time.process_time()
    if case is None or case.server is None:
        return own
    return own + time.clock_gettime(~case.server.pid << 3 | 2)  # Linux's clock of a process


CLOCKS: dict[str, Clock] = {"wall": lambda case: time.perf_counter(), "cpu": cpu_time}


def timed(function: Callable[[], None], seconds: float, clock: Clock, case: Case | None) -> float:
    """Returns the seconds of one call, measured for at least `seconds`."""
    calls, began = 0, clock(case)
    while True:
        function()
        calls += 1
        elapsed = clock(case) - began
        if elapsed >= seconds:
            return elapsed / calls


def measure(
    observation: str,
    num_envs: int,
    table: str,
    kinds: list[str],
    rounds: int,
    seconds: float,
    clock: Clock,
) -> dict[str, list[float]]:
    """Returns microseconds per unroll by name, of each round."""
    struct = struct_of(OBSERVATIONS[observation])
    max_size = max(2 * num_envs, 256 if "uint8" in observation else 4096)
    config = ReplayConfig(table, T, max_size, min_size_to_sample=1)
    seen = observations(OBSERVATIONS[observation], num_envs)
    cases = [Case(kind, struct, config, seen) for kind in kinds]
    plain = Plain(struct, max_size, num_envs)
    jobs: dict[str, tuple[Callable[[], None], int, Case | None]] = {
        "memcpy": (plain.copy, num_envs, None),
        "ring sample": (plain.sample, BATCH, None),
    }
    for case in cases:
        jobs[f"{case.kind} add"] = (case.add, num_envs, case)
        jobs[f"{case.kind} insert"] = (case.insert, num_envs, case)
        jobs[f"{case.kind} sample"] = (case.sample, BATCH, case)
    costs: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (function, unrolls, case) in jobs.items():
            costs[name].append(timed(function, seconds, clock, case) / unrolls * 1e6)
    for case in cases:
        case.close()
    return costs


RATIOS = (
    ("shared insert", "memcpy"),
    ("shared sample", "ring sample"),
    ("reverb insert", "shared insert"),
    ("reverb add", "shared add"),
    ("reverb sample", "shared sample"),
    ("reverb add", "served add"),
    ("reverb insert", "served insert"),
    ("reverb sample", "served sample"),
    ("reverb add", "tcp add"),
    ("reverb insert", "tcp insert"),
    ("reverb sample", "tcp sample"),
)


def ratios(rows: dict[tuple[str, int], dict[str, list[float]]]) -> list[str]:
    """Returns a table of ratios, from the figures by observation and number of environments."""
    lines = [
        "",
        "| observation | environments | " + " | ".join(f"{a} / {b}" for a, b in RATIOS) + " |",
        "|---" * (len(RATIOS) + 2) + "|",
    ]
    for (observation, num_envs), figures in rows.items():
        cells = [
            f"{statistics.median(x / y for x, y in zip(figures[a], figures[b])):.2g}"
            if {a, b} <= figures.keys()
            else ""
            for a, b in RATIOS
        ]
        lines.append(f"| {observation} | {num_envs} | {' | '.join(cells)} |")
    return lines


def long_run(table: str, clock: Clock) -> list[str]:
    """Returns a table of the cost of `add` over 10^7 steps: 4 float32, 128 environments."""
    struct, num_envs = struct_of(OBSERVATIONS["4 float32"]), 128
    calls = LONG // (num_envs * T * 10)
    lines = [
        "",
        f"µs of an `add` per unroll, in each tenth of {LONG:,} steps (4 float32, {num_envs} "
        "environments, a table of 100,000 unrolls), and of a `sample` after it:",
        "",
        "| replay | " + " | ".join(f"{tenth + 1}" for tenth in range(10)) + " |",
        "|---" * 11 + "|",
    ]
    for kind in ("local", "shared"):
        seen = observations(OBSERVATIONS["4 float32"], num_envs)
        case = Case(kind, struct, ReplayConfig(table, T, 100_000, 1), seen)
        cells = []
        for _ in range(10):
            began = clock(None)
            for _ in range(calls):
                case.add()
            added = (clock(None) - began) / calls / num_envs * 1e6
            sampled = timed(case.sample, 0.1, clock, case) / BATCH * 1e6
            cells.append(f"{added:.2f}, {sampled:.2f}")
        case.close()
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measures, then prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=0.05, help="duration of a measurement")
    parser.add_argument("--table", default="uniform", choices=("uniform", "prioritized"))
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--envs", default="1,16,128")
    parser.add_argument("--only", default="", help="part of an observation's name")
    parser.add_argument("--kinds", default=",".join(KINDS), help=",".join(KINDS))
    parser.add_argument("--out", default="")
    parser.add_argument("--long", action="store_true", help="measure only the 10^7 steps")
    options = parser.parse_args()
    clock, load = CLOCKS[options.clock], report.load()
    if options.long:
        print("\n".join(long_run(options.table, clock)))
        return
    rows: dict[tuple[str, int], dict[str, list[float]]] = {}
    has_reverb = importlib.util.find_spec("reverb") is not None
    kinds = [kind for kind in options.kinds.split(",") if kind != "reverb" or has_reverb]
    names: list[str] = []
    lines: list[str] = []
    for observation in (name for name in OBSERVATIONS if options.only in name):
        for num_envs in map(int, options.envs.split(",")):
            figures = measure(
                observation,
                num_envs,
                options.table,
                kinds,
                options.rounds,
                options.seconds,
                clock,
            )
            rows[observation, num_envs] = figures
            if not names:
                names = list(figures)
                lines += report.table(["observation", "environments", *names], [])
                print("\n".join(lines))
            cells = " | ".join(f"{statistics.median(figures[name]):.3g}" for name in names)
            lines.append(f"| {observation} | {num_envs} | {cells} |")
            print(lines[-1], flush=True)
    lines += ratios(rows)
    if not options.only:
        lines += long_run(options.table, clock)
    measured = (
        f"µs ({options.clock}) per unroll of {T} steps, table {options.table}, batches of {BATCH}, "
        f"medians of {options.rounds} rounds; {load}"
    )
    report.write(options.out, "The cost of the replays", __doc__, measured, lines)


if __name__ == "__main__":
    main()
