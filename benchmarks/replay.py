"""Measures the cost of writes and samples, compared with `memcpy` and a bare NumPy ring.

Observations are vectors of normal numbers, and frames of Pong-v5 in random play: servers compress
what they are sent. Tables are in process, in shared memory, and on servers, each in a process of
its own as in a program: Reverb's, and that of `replay.backend=served` at a Unix socket (`--kinds`
has "tcp" too). All alternate in one run, so that a noisy machine affects them alike.

- add: `ReplayBuffer.add` of T steps of all environments, in microseconds per unroll, as actors do:
  the last insert may be on its way to a server;
- insert: the table's part of that (without cutting steps into unrolls, which is the same for all),
  until a server has confirmed it, compared with `memcpy` of the same block into as much memory as
  the table has, all of it touched before;
- sample: a batch, in microseconds per unroll, compared with a ring of NumPy arrays, one per column,
  and `np.take` of random indices into new arrays.

The ratios that matter follow, and the cost of an `add` in each tenth of 10^7 steps. A figure is the
median over rounds of a round's mean. On a busy machine use `--clock=cpu`: the CPU time of this
process and of the server's.

  python benchmarks/replay.py --rounds=7 --out=benchmarks/replay.md
"""

import argparse
import importlib.util
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs
from replay_servers import ReplayServer

from distrl import specs
from distrl.replay.buffer import ReplayBuffer, ReplayConfig, ReplayReader
from distrl.replay.columns import Block, Columns
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.replay.unrolls import Unroller
from distrl.types import Inference, TimeStep, Trajectory

KINDS = ("local", "shared", "served", "tcp", "reverb")
Clock = Callable[["Case | None"], float]
T = 20
BATCH = 32
LONG = 10_000_000
_PLAYED = 60  # steps, after which the games differ
OBSERVATIONS = {
    "4 float32": dm_specs.Array((4,), np.float32),
    "4x84x84 uint8": dm_specs.Array((4, 84, 84), np.uint8),
}


def struct_of(observation: dm_specs.Array) -> Trajectory:
    """Returns the struct of unrolls of an agent that stores logits and a value."""
    spec = specs.EnvironmentSpec(observation, dm_specs.DiscreteArray(6, np.int32))
    extras = {
        "logits": jax.ShapeDtypeStruct((6,), np.float32),
        "value": jax.ShapeDtypeStruct((), np.float32),
    }
    return specs.trajectory_struct(spec, extras, ())


def observations(spec: dm_specs.Array, num_envs: int) -> npt.NDArray[Any]:
    """Returns observations `[T, num_envs, ...]`: frames of Pong-v5 while it is played at random.

    Vectors are normally distributed. Zeros a server would compress to nothing.
    """
    rng = np.random.default_rng(0)
    if spec.dtype != np.uint8:
        return rng.normal(size=(T, num_envs, *spec.shape)).astype(spec.dtype)
    import envpool

    env = envpool.make("Pong-v5", env_type="gymnasium", num_envs=num_envs, seed=0)
    frames = [env.reset()[0]]
    for _ in range(_PLAYED + T - 1):
        frames.append(env.step(rng.integers(6, size=num_envs))[0])
        frames = frames[-T:]
    return np.stack(frames)


class Steps:
    """T steps of `num_envs` environments, for repeated use."""

    def __init__(self, struct: Trajectory, seen: npt.NDArray[Any]):
        """Args: seen: the observations, `[T, num_envs, ...]`."""
        num_envs = seen.shape[1]
        self.ids = np.arange(num_envs, dtype=np.int32)
        step: TimeStep = specs.zeros(struct.timestep, num_envs)
        self.timesteps = [step._replace(observation=observation) for observation in seen]
        self.inference = Inference(
            specs.zeros(struct.action, num_envs), specs.zeros(struct.extras, num_envs), 0
        )

    def block(self, struct: Trajectory) -> Block:
        """Returns an unroll of each environment."""
        unroller = Unroller(struct, T)
        for timestep in (*self.timesteps, self.timesteps[0]):
            block = unroller.cut(self.ids, timestep, self.inference)
        assert block is not None
        return block


class Plain:
    """The baselines: `memcpy` of blocks, and a ring of NumPy arrays."""

    def __init__(self, struct: Trajectory, max_size: int, num_envs: int):
        self._columns = Columns(struct, T)
        self._block = self._columns.allocate(num_envs)
        self._block.buffer[:] = 1  # type: ignore[index]
        nbytes = self._block.buffer.nbytes  # type: ignore[union-attr]
        self._copies = np.ones((max(1, max_size // num_envs), nbytes), np.uint8)
        self._next = 0
        self._stored = self._columns.allocate(max_size)
        self._stored.buffer[:] = 1  # type: ignore[index]
        self._rng = np.random.default_rng(0)
        self._max_size = max_size

    def copy(self) -> None:
        """Copies one block."""
        assert self._block.buffer is not None
        self._next = (self._next + 1) % len(self._copies)
        np.copyto(self._copies[self._next], self._block.buffer)

    def sample(self) -> None:
        """Samples one batch."""
        indices = self._rng.integers(self._max_size, size=BATCH)
        for column, time_axis in zip(self._stored.columns, self._columns.has_time):
            axis = 1 if time_axis else 0
            out = np.empty((*column.shape[:axis], BATCH, *column.shape[axis + 1 :]), column.dtype)
            np.take(column, indices, axis=axis, out=out, mode="clip")


class Case:
    """A replay in use."""

    def __init__(self, kind: str, struct: Trajectory, config: ReplayConfig, seen: npt.NDArray[Any]):
        """Args: seen: the observations, `[T, num_envs, ...]`."""
        num_envs = seen.shape[1]
        self.kind = kind
        self._close: list[Callable[[], Any]] = []
        self.server: ReplayServer | None = None
        self.buffer, self._reader = self._make(struct, config)
        self._steps = Steps(struct, seen)
        self._block = self._steps.block(struct)
        self.add()
        for _ in range(math.ceil(1.3 * config.max_size / num_envs)):  # touches every page
            self.add()

    def _make(self, struct: Trajectory, config: ReplayConfig) -> tuple[ReplayBuffer, ReplayReader]:
        buffer: ReplayBuffer
        if self.kind == "local":
            buffer = LocalReplayBuffer(LocalTable(struct, config, BATCH), struct, config, BATCH)
            return buffer, buffer
        if self.kind == "shared":
            table = SharedTable.create(struct, config, BATCH, f"benchmark-{os.getpid()}")
            self._close.append(table.close)
            buffer = SharedReplayBuffer(table, struct, config, BATCH)
            self._close.append(buffer.close)
            return buffer, buffer
        self.server = ReplayServer(self.kind, struct, config, BATCH)
        buffer, reader = self.server.clients()
        self._close += [self.server.stop, buffer.close, reader.close]  # type: ignore[attr-defined]
        return buffer, reader

    def add(self) -> None:
        """Adds an unroll of each environment."""
        steps = self._steps
        for timestep in steps.timesteps:
            self.buffer.add(steps.ids, timestep, steps.inference)

    def insert(self) -> None:
        """Does the table's part of `add`."""
        buffer: Any = self.buffer
        if self.kind == "reverb":
            buffer._insert(self._block)
            buffer.flush()
        else:
            buffer._table.insert(self._block, None, 10.0)

    def sample(self) -> None:
        """Samples one batch."""
        self._reader.sample(10.0)

    def close(self) -> None:
        """Closes the replay and its table or server."""
        for close in reversed(self._close):
            close()


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
) -> dict[str, float]:
    """Returns microseconds per unroll by name, medians over rounds."""
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
    return {name: statistics.median(values) for name, values in costs.items()}


RATIOS = (
    ("shared insert", "memcpy"),
    ("shared sample", "ring sample"),
    ("reverb insert", "shared insert"),
    ("reverb add", "shared add"),
    ("reverb sample", "shared sample"),
    ("reverb add", "served add"),
    ("reverb insert", "served insert"),
    ("reverb sample", "served sample"),
)


def ratios(rows: dict[tuple[str, int], dict[str, float]]) -> list[str]:
    """Returns a table of ratios, from the figures by observation and number of environments."""
    lines = [
        "",
        "| observation | environments | " + " | ".join(f"{a} / {b}" for a, b in RATIOS) + " |",
        "|---" * (len(RATIOS) + 2) + "|",
    ]
    for (observation, num_envs), figures in rows.items():
        cells = [
            f"{figures[a] / figures[b]:.2g}" if {a, b} <= figures.keys() else "" for a, b in RATIOS
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="duration of a measurement")
    parser.add_argument("--table", default="uniform", choices=("uniform", "prioritized"))
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--envs", default="1,16,128")
    parser.add_argument("--only", default="", help="part of an observation's name")
    parser.add_argument("--kinds", default="local,shared,served,reverb", help=",".join(KINDS))
    parser.add_argument("--out", default="")
    parser.add_argument("--long", action="store_true", help="measure only the 10^7 steps")
    options = parser.parse_args()
    clock = CLOCKS[options.clock]
    if options.long:
        print("\n".join(long_run(options.table, clock)))
        return
    rows: dict[tuple[str, int], dict[str, float]] = {}
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
                lines += [
                    f"µs ({options.clock}) per unroll of {T} steps, table {options.table}, "
                    f"batches of {BATCH}; medians of {options.rounds} rounds.",
                    "",
                    "| observation | environments | " + " | ".join(names) + " |",
                    "|---" * (len(names) + 2) + "|",
                ]
                print("\n".join(lines))
            cells = " | ".join(f"{figures[name]:.3g}" for name in names)
            lines.append(f"| {observation} | {num_envs} | {cells} |")
            print(lines[-1], flush=True)
    lines += ratios(rows)
    if not options.only:
        lines += long_run(options.table, clock)
    if options.out:
        with open(options.out, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
