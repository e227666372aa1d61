"""Measures what one unit of each part's work costs on this machine, in seconds of a core.

CPU time rather than wall clock, of this process and of each server's, so that other programs on the
machine disturb it little. A figure is a list with one value per round. `scaling_model` defines the
units.
"""

import functools
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import courier
import jax
import numpy as np
import reverb
from scaling_servers import Server
from scaling_workloads import Bench, FixedParams, cpu_per_call, replay_config

from distrl.inference.messages import InferenceMessages
from distrl.inference.server import RemoteInferencer
from distrl.launch.network.credentials import make_credentials
from distrl.replay.reverb.buffer import ReverbReplayBuffer
from distrl.variables.service import RemoteVariables, VariableService

PARAM_SIZES = (1_000_000, 20_000_000)
_SMALL = 1_000  # bytes, beside the sizes above

Figure = list[float]


def line(sizes: tuple[float, float], costs: tuple[Figure, Figure]) -> dict[str, Figure]:
    """Returns a `scaling_model.Line` through the costs of two sizes, by round, never below 0."""
    byte = [max(0.0, (b - a) / (sizes[1] - sizes[0])) for a, b in zip(*costs)]
    call = [max(0.0, a - each * sizes[0]) for a, each in zip(costs[0], byte)]
    return {"call": call, "byte": byte}


def replay_costs(bench: Bench, rounds: int, seconds: float) -> dict[str, Any]:
    """Measures `write`, `serve_item`, `read` and `compression` with items of two sizes."""
    experiment, compression = bench.experiment, 1.0
    small, _ = bench.block.split(1, bench.columns.has_time)
    blocks = (small, bench.block)
    with ExitStack() as opened:
        works = []
        for block in blocks:
            settings = {"env": bench.env, "per_item": block.size}
            server = opened.enter_context(closing(Server("reverb", **settings)))
            reader = opened.enter_context(
                closing(Server("reverb reader", **settings, address=server.address))
            )
            buffer = ReverbReplayBuffer(
                reverb.Client(server.address),
                experiment.trajectory_struct(),
                replay_config(experiment),
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
        costs = [
            [cpu_per_call(write, seconds, *clocks) for write, clocks in works]
            for _ in range(rounds)
        ]
    sizes = (float(bench.columns.nbytes(1)), float(bench.columns.nbytes(bench.block.size)))
    figures: dict[str, Any] = {"compression": compression}
    for index, name in enumerate(("write", "serve_item", "read")):
        small_cost, large_cost = ([each[size][index] for each in costs] for size in (0, 1))
        figures[name] = line(sizes, (small_cost, large_cost))
        figures[f"{name}_of_item"] = large_cost
    return figures


def _sent(port: int) -> int:
    """Returns the bytes that this machine's connections to a port have sent; 0 without `ss`."""
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
    """Measures `ask`, `answer` and `report`."""
    monitor = Server("monitor")
    with closing(monitor):
        client, number = courier.Client(monitor.address, call_timeout=60.0), iter(range(10**9))
        reports = [bench.report()]
        report = [
            cpu_per_call(
                lambda: client.report("actor/0", next(number), reports), seconds, monitor.cpu
            )[0]
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
        requests = [
            cpu_per_call(
                lambda: remote.inference(ids, timestep), seconds, time.process_time, service.cpu
            )
            for _ in range(rounds)
        ]
    ask, answer = zip(*requests)
    return {"ask": list(ask), "answer": list(answer), "report": report}


def variable_costs(rounds: int, seconds: float) -> dict[str, Any]:
    """Measures `fetch`, `hand_out` and `pack`."""
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
            costs = [cpu_per_call(get, seconds, *clocks) for _ in range(rounds)]
            fetch[size], hand[size] = (list(each) for each in zip(*costs))
            changing: Any = FixedParams(size, new_each_time=True)
            service = VariableService(changing, changing)
            make = functools.partial(service.get_variables, -1)
            pack[size] = [cpu_per_call(make, seconds, time.process_time)[0] for _ in range(rounds)]
    figures = {"fetch": fetch, "hand_out": hand, "pack": pack}
    return {
        **{name: line(ends, (each[sizes[0]], each[sizes[-1]])) for name, each in figures.items()},
        "at_size": {
            name: {str(size): each[size] for size in sizes} for name, each in figures.items()
        },
    }


@contextmanager
def two_hosts(port: int, count: int = 1) -> Iterator[tuple[Server, Server, list[str]]]:
    """Connects a client's host and a server's by tunnels.

    gRPC gives all clients of one address in a process one connection, hence an address for each.

    Args:
      port: the server's port on its host.
      count: number of addresses.

    Yields:
      The tunnel of the client's host, that of the server's, and addresses by which clients reach
      the server.
    """
    made = make_credentials()
    credentials = {"certificate": made.certificate.decode(), "key": made.key.decode()}
    with tempfile.TemporaryDirectory(prefix="distrl-") as folder:
        far = Server("tunnel", **credentials, open_ports=[port], forwards={})
        with closing(far):
            paths = [str(Path(folder) / f"{index}") for index in range(count)]
            forwards = dict.fromkeys(paths, ("127.0.0.1", far.port, port))
            near = Server("tunnel", **credentials, open_ports=[], forwards=forwards)
            with closing(near):
                yield near, far, [f"unix:{path}" for path in paths]


def tunnel_costs(rounds: int, seconds: float) -> dict[str, Any]:
    """Measures `tunnel_send` and `tunnel_receive`, by large messages in one direction."""
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
            empty.append(cpu_per_call(lambda: client.take(b""), seconds, *clocks))
            there.append(cpu_per_call(lambda: client.take(data), seconds, *clocks))
            back.append(cpu_per_call(lambda: get(-1), seconds, *clocks))

    def byte(index: int, costs: list[list[float]], end: int) -> float:
        return max(0.0, (costs[index][end] - empty[index][end]) / size)

    # A call is a message in each direction, which costs both ends about the same.
    call = [sum(each) / 4 for each in empty]
    send = [(byte(i, there, 0) + byte(i, back, 1)) / 2 for i in range(rounds)]
    receive = [(byte(i, there, 1) + byte(i, back, 0)) / 2 for i in range(rounds)]
    return {
        "tunnel_send": {"call": call, "byte": send},
        "tunnel_receive": {"call": call, "byte": receive},
    }


def measure(env: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measures all figures of a workload."""
    bench = Bench(env, seconds)
    figures: dict[str, Any] = {name: [] for name in ("env_step", "infer", "overhead", "learn")}
    bench.acting()
    for _ in range(rounds):
        for name, value in {**bench.acting(), "learn": bench.learn()}.items():
            figures[name].append(value)
    figures.update(replay_costs(bench, rounds, seconds))
    figures.update(service_costs(bench, rounds, seconds))
    return {**bench.sizes(), **figures}


def shared(rounds: int, seconds: float) -> dict[str, Any]:
    """Measures the figures that do not depend on the workload."""
    return {**variable_costs(rounds, seconds), **tunnel_costs(rounds, seconds)}
