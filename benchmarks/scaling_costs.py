"""What one unit of each part's work costs on this machine, in seconds of a core.

Processor time, not wall clock: of this process and of each server's own, so that what else runs
here disturbs it little. A figure is a list, one value a round. See `scaling_model` for the units.
"""

import dataclasses
import functools
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import courier
import jax
import numpy as np
import reverb
from scaling_servers import FixedParams, Server

from distrl import presets
from distrl.actor import Actor
from distrl.agents.agent import Agent
from distrl.experiment import Experiment
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import RemoteInferencer
from distrl.inferencer import Inferencer
from distrl.launch.network import tunnel
from distrl.learner import Learner
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Block
from distrl.replay.reverb.buffer import ReverbReplayBuffer
from distrl.replay.unrolls import Unroller
from distrl.types import Inference, Sample, TimeStep
from distrl.variables import RemoteVariables, VariableClient, VariableService

WORKLOADS = {"CartPole-v1": 32, "Pong-v5": 8}
"""Environment to environments of an actor, as the presets have them."""
PARAM_SIZES = (1_000_000, 20_000_000)
_SMALL = 1_000  # bytes, beside the sizes above
_QUEUE = 512  # unrolls

Figure = list[float]
Clock = Callable[[], float]


def preset(env: str) -> Experiment:
    """The experiment that `distrl train --env=...` runs."""
    return presets.experiment(env)


def config_of(experiment: Experiment) -> ReplayConfig:
    """Of the tables that are measured: room enough that nobody waits for it."""
    return dataclasses.replace(experiment.replay, max_size=_QUEUE, backend="reverb")


def inferencer_of(
    agent: Agent, num_envs: int, codec: InferenceMessages | None = None
) -> Inferencer:
    """One whose parameters never change."""
    params = jax.jit(agent.initial_params)(jax.random.PRNGKey(0))

    class Source:
        def get_variables(self, newer_than: int) -> Any:
            return (0, params) if newer_than < 0 else None

    variables = VariableClient(Source(), 2**62)
    return Inferencer(
        agent, variables, seed=0, max_streams=num_envs, batch_sizes=[num_envs], codec=codec
    )


def spent(work: Callable[[], Any], seconds: float, *clocks: Clock) -> list[float]:
    """Processor seconds of one call by each clock, over `seconds` of wall clock at least."""
    began = time.monotonic()
    before = [clock() for clock in clocks]
    calls = 0
    while calls == 0 or time.monotonic() < began + seconds:
        work()
        calls += 1
    return [(clock() - then) / calls for clock, then in zip(clocks, before)]


def line(sizes: tuple[float, float], costs: tuple[Figure, Figure]) -> dict[str, Figure]:
    """A `scaling_model.Line` through two sizes' costs, round by round; none falls below 0."""
    byte = [max(0.0, (b - a) / (sizes[1] - sizes[0])) for a, b in zip(*costs)]
    call = [max(0.0, a - each * sizes[0]) for a, each in zip(costs[0], byte)]
    return {"call": call, "byte": byte}


class _Cutting:
    """A replay that cuts steps into unrolls, as every one does, and keeps the newest."""

    def __init__(self, experiment: Experiment):
        self._unroller = Unroller(experiment.trajectory_struct(), experiment.replay.unroll_length)
        self.columns = self._unroller.columns
        self.blocks: list[Block] = []
        self.keep = 0

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        return self._unroller.needs_state(stream_ids, life)

    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        block = self._unroller.cut(stream_ids, timestep, inference, life)
        if block is not None and len(self.blocks) < self.keep:
            self.blocks.append(block)


class Bench:
    """A workload's parts, ready to be measured round by round."""

    def __init__(self, env: str, seconds: float):
        """Args: env: of WORKLOADS. seconds: of each measurement of a round."""
        self.env, self._seconds = env, seconds
        self.experiment = preset(env)
        self.num_envs = WORKLOADS[env]
        self.agent = self.experiment.make_agent()
        self._own = inferencer_of(self.agent, self.num_envs)
        self._replay = _Cutting(self.experiment)
        self._pool = self.experiment.environment.make_pool(
            self.num_envs, self.num_envs, range(self.num_envs)
        )
        self.actor = Actor(self._pool, self._own, self._replay)  # type: ignore[arg-type]
        # Unrolls of real steps: what compresses, and how well, is theirs.
        self._replay.keep = -(-self.experiment.learner.batch_size // self.num_envs)
        while len(self._replay.blocks) < self._replay.keep:
            self.actor.step()
        self.block = self._replay.blocks[0]
        self.columns = self._replay.columns
        batch = self.columns.join(self._replay.blocks)
        ones = np.ones(batch.size, np.float32)
        keys = np.arange(batch.size, dtype=np.uint64)
        self._sample = Sample(self.columns.trajectory(batch, ones), keys)
        self._learner = Learner(self.agent, None, seed=0)  # type: ignore[arg-type]
        for _ in range(3):
            self._learner.update(self._sample)

    def sizes(self) -> dict[str, float]:
        """The workload's figures that are not costs."""
        messages, config = InferenceMessages(self.agent), self.experiment
        params = jax.eval_shape(self.agent.initial_params, jax.random.PRNGKey(0))
        leaves = jax.tree.leaves(params)
        return {
            "num_envs": self.num_envs,
            "unroll_length": config.replay.unroll_length,
            "batch_size": config.learner.batch_size,
            "unrolls_per_item": self.block.size,
            "unroll_bytes": self.columns.nbytes(self.block.size) / self.block.size,
            "param_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
            "request_bytes": messages.request.row_bytes,
            "answer_bytes": messages.answer.row_bytes,
        }

    def acting(self) -> dict[str, float]:
        """One round of `env_step`, `infer` and `turn`."""
        pool, n = self._pool, self.num_envs
        ids = np.arange(n, dtype=np.int32)
        timestep = self.actor._timestep
        action = self._own.inference(ids, timestep).action
        infer = self._spent(lambda: self._own.inference(ids, timestep))
        turn = self._spent(self.actor.step)

        def step() -> None:
            pool.send(action, pool.env_ids)
            self.actor._timestep = pool.recv()

        env = self._spent(step)
        return {"env_step": env / n, "infer": infer, "turn": max(0.0, turn - env - infer)}

    def learn(self) -> float:
        """One round of `learn`."""

        def update() -> None:
            self._learner.update(self._sample)
            jax.block_until_ready(self._learner.state().params)

        steps = self.experiment.learner.batch_size * self.experiment.replay.unroll_length
        cost = self._spent(update) / steps
        self._learner.take_report()  # forgets the lags
        return cost

    def _spent(self, work: Callable[[], Any]) -> float:
        return spent(work, self._seconds, time.process_time)[0]

    def report(self) -> Any:
        """What an actor reports of a tenth of a second."""
        self.actor.take_report()
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            self.actor.step()
        return self.actor.take_report()


def replay_costs(bench: Bench, rounds: int, seconds: float) -> dict[str, Any]:
    """`write`, `serve_item`, `read` and `compression`; two sizes of items, in turn."""
    experiment, compression = bench.experiment, 1.0
    small, _ = bench.block.split(1, bench.columns.has_time)
    blocks = (small, bench.block)
    with ExitStack() as opened:
        works = []
        for block in blocks:
            told = {"env": bench.env, "per_item": block.size}
            server = opened.enter_context(closing(Server("reverb", **told)))
            reader = opened.enter_context(
                closing(Server("reverb reader", **told, address=server.address))
            )
            buffer = ReverbReplayBuffer(
                reverb.Client(server.address),
                experiment.trajectory_struct(),
                config_of(experiment),
                experiment.learner.batch_size,
                "scaling",
                unrolls_per_item=block.size,
            )
            opened.callback(buffer.close)
            write = functools.partial(buffer._write, block)
            works.append((write, (time.process_time, server.cpu, reader.cpu)))
            for _ in range(20):
                write()
            sent, count = _sent(server.port), 50
            for _ in range(count):
                write()
            buffer.flush()
            if sent:
                raw = count * bench.columns.nbytes(block.size)
                compression = (_sent(server.port) - sent) / raw
        came = [[spent(write, seconds, *clocks) for write, clocks in works] for _ in range(rounds)]
    sizes = (float(bench.columns.nbytes(1)), float(bench.columns.nbytes(bench.block.size)))
    found: dict[str, Any] = {"compression": compression}
    for index, name in enumerate(("write", "serve_item", "read")):
        a, b = ([turn[size][index] for turn in came] for size in (0, 1))
        found[name] = line(sizes, (a, b))
        found[f"{name}_of_item"] = b
    return found


def _sent(port: int) -> int:
    """Bytes sent by this machine's connections to a port, as `ss` tells; 0 where it is missing."""
    try:
        out = subprocess.run(
            ["ss", "-tinH", "state", "established", f"dport = :{port}"],
            capture_output=True, text=True, timeout=10.0, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return 0
    words = [word for word in out.split() if word.startswith("bytes_sent:")]
    return sum(int(word.partition(":")[2]) for word in words)


def service_costs(bench: Bench, rounds: int, seconds: float) -> dict[str, Figure]:
    """`ask` and `answer`; `report`."""
    monitor = Server("monitor")
    with closing(monitor):
        client, number = courier.Client(monitor.address, call_timeout=60.0), iter(range(10**9))
        reports = [bench.report()]
        told = [
            spent(lambda: client.report("actor/0", next(number), reports), seconds, monitor.cpu)[0]
            for _ in range(rounds)
        ]
    service = Server("inference", env=bench.env, num_envs=bench.num_envs)
    with closing(service):
        remote = RemoteInferencer(
            courier.Client(service.address, call_timeout=60.0), InferenceMessages(bench.agent)
        )
        ids, timestep = np.arange(bench.num_envs, dtype=np.int32), bench.actor._timestep
        for _ in range(50):
            remote.inference(ids, timestep)
        asked = [
            spent(lambda: remote.inference(ids, timestep), seconds, time.process_time, service.cpu)
            for _ in range(rounds)
        ]
    ask, answer = zip(*asked)
    return {"ask": list(ask), "answer": list(answer), "report": told}


def variable_costs(rounds: int, seconds: float) -> dict[str, Any]:
    """`fetch`, `hand_out` and `pack`."""
    sizes = (_SMALL, *PARAM_SIZES)
    ends = (float(_SMALL), float(PARAM_SIZES[-1]))
    fetch: dict[int, Figure] = {}
    hand: dict[int, Figure] = {}
    pack: dict[int, Figure] = {}
    server = Server("variables", sizes=sizes)
    with closing(server):
        client = courier.Client(server.address, call_timeout=60.0)
        for size in sizes:
            call = getattr(client, f"service_{size}")

            class Remote:
                get_variables = staticmethod(call)

            params: Any = FixedParams(size)
            remote = RemoteVariables(Remote(), params)

            def get(remote: RemoteVariables = remote) -> None:
                jax.block_until_ready(remote.get_variables(-1))

            get()
            clocks = (time.process_time, server.cpu)
            came = [spent(get, seconds, *clocks) for _ in range(rounds)]
            fetch[size], hand[size] = (list(each) for each in zip(*came))
            changing: Any = FixedParams(size, new_each_time=True)
            service = VariableService(changing, changing)
            make = functools.partial(service.get_variables, -1)
            pack[size] = [spent(make, seconds, time.process_time)[0] for _ in range(rounds)]
    found = {"fetch": fetch, "hand_out": hand, "pack": pack}
    return {
        **{name: line(ends, (each[sizes[0]], each[sizes[-1]])) for name, each in found.items()},
        "at_size": {
            name: {str(size): each[size] for size in sizes} for name, each in found.items()
        },
    }


@contextmanager
def two_hosts(port: int, count: int = 1) -> Iterator[tuple[Server, Server, list[str]]]:
    """Tunnels of a client's host and a server's, and `count` addresses of the server at `port`.

    gRPC gives all clients of an address in a process one connection; these have one each.
    """
    made = tunnel.make_credentials()
    told = {"certificate": made.certificate.decode(), "key": made.key.decode()}
    with tempfile.TemporaryDirectory(prefix="distrl-") as folder:
        far = Server("tunnel", **told, open_ports=[port], forwards={})
        with closing(far):
            paths = [str(Path(folder) / f"{index}") for index in range(count)]
            forwards = {path: ("127.0.0.1", far.port, port) for path in paths}
            near = Server("tunnel", **told, open_ports=[], forwards=forwards)
            with closing(near):
                yield near, far, [f"unix:{path}" for path in paths]


def tunnel_costs(rounds: int, seconds: float) -> dict[str, Any]:
    """`tunnel_send` and `tunnel_receive`: a message there and none back, and the reverse."""
    size = PARAM_SIZES[0]
    server = Server("variables", sizes=(size,))
    with closing(server), two_hosts(server.port) as (near, far, (address,)):
        client = courier.Client(address, call_timeout=60.0)
        clocks = (near.cpu, far.cpu)
        data = bytes(np.random.default_rng(0).bytes(size))
        client.take(b"")
        empty, there, back = [], [], []
        get = getattr(client, f"service_{size}")
        for _ in range(rounds):
            empty.append(spent(lambda: client.take(b""), seconds, *clocks))
            there.append(spent(lambda: client.take(data), seconds, *clocks))
            back.append(spent(lambda: get(-1), seconds, *clocks))

    def byte(full: int, way: list[list[float]], end: int) -> float:
        return max(0.0, (way[full][end] - empty[full][end]) / size)

    # A call is a message there and one back; each costs either end about the same.
    turns = range(rounds)
    call = [sum(each) / 4 for each in empty]
    send = [(byte(turn, there, 0) + byte(turn, back, 1)) / 2 for turn in turns]
    receive = [(byte(turn, there, 1) + byte(turn, back, 0)) / 2 for turn in turns]
    return {
        "tunnel_send": {"call": call, "byte": send},
        "tunnel_receive": {"call": call, "byte": receive},
    }


def measure(env: str, rounds: int, seconds: float) -> dict[str, Any]:
    """All of a workload's figures."""
    bench = Bench(env, seconds)
    figures: dict[str, Any] = {name: [] for name in ("env_step", "infer", "turn", "learn")}
    bench.acting()
    for _ in range(rounds):
        for name, value in {**bench.acting(), "learn": bench.learn()}.items():
            figures[name].append(value)
    figures.update(replay_costs(bench, rounds, seconds))
    figures.update(service_costs(bench, rounds, seconds))
    return {**bench.sizes(), **figures}


def shared(rounds: int, seconds: float) -> dict[str, Any]:
    """What is the same for all workloads."""
    return {**variable_costs(rounds, seconds), **tunnel_costs(rounds, seconds)}
