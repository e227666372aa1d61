"""Measures the inference service of light_env: calls by Courier against slots in shared memory.

The agent of CartPole-v1 (MLP 2x64), 32 observations a request. Server and clients are processes of
one machine. One client, the server on one core and the client on another, and in shared memory both
on one core too, as distrl has them if that is faster: the time from the request to the actions, all
in turns. Then many clients at once: requests a second, requests in
a batch, and the CPU time of all processes for a request. "network only" is the call of the compiled
network in a loop in one process, with nothing around it.

  python benchmarks/inference.py --rounds=3 --out=benchmarks/inference.md
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import threading
import time
from typing import Any

import numpy as np
import report

ROWS = 32
CLIENTS = (1, 4, 16, 64)
TRANSPORTS = ("courier", "shared_memory")
ONE_CORE = "shared_memory, one core"
_WARM_UP_S = 0.5
_MODULES = [f"distrl.inference.{name}" for name in ("server", "slot_server", "slot_client")]


def _agent() -> Any:
    from distrl import presets

    return presets.experiment("CartPole-v1").make_agent()


def _inferencer(agent: Any, count: int) -> tuple[Any, Any]:
    """Returns the layout of messages, and an inferencer that is compiled."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    from distrl.inference.messages import InferenceMessages
    from distrl.inferencer import Inferencer
    from distrl.variables.client import VariableClient

    class Source:
        def get_variables(self, newer_than: int) -> Any:
            return (0, agent.initial_params(jax.random.PRNGKey(0))) if newer_than < 0 else None

    messages, sizes = InferenceMessages(agent), [ROWS]
    while sizes[-1] < ROWS * count:
        sizes.append(2 * sizes[-1])
    inferencer = Inferencer(
        agent,
        VariableClient(Source(), 10**9),
        seed=0,
        max_streams=ROWS * count,
        batch_sizes=sizes,
        codec=messages,
    )
    inferencer.warm_up()
    return messages, inferencer


def _serve(transport: str, count: int, ports: list[int], name: str, pipe: Any, core: int) -> None:
    """Serves until the pipe is closed; sends `(batches, requests, CPU seconds)` when asked."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    import courier

    from distrl.inference.server import InferenceServer
    from distrl.inference.slot_server import SlotServer
    from distrl.inference.slots import Sizes, SlotFile
    from distrl.shared_memory.process import Process

    agent = _agent()
    messages, inferencer = _inferencer(agent, count)
    service: InferenceServer | SlotServer
    stop = threading.Event()
    if transport == "courier":
        service = InferenceServer(inferencer, messages, ROWS * count, 60.0)
        servers = [courier.Server(port=port, thread_pool_size=16) for port in ports]
        for server in servers:
            server.Bind("inference", service.inference)
            server.Start()
    else:
        file = SlotFile.create(name, Sizes(messages, count, ROWS), Process.parent())
        service = SlotServer(inferencer, messages, file)

    def answer() -> None:
        pipe.send("serving")
        try:
            while pipe.recv():
                pipe.send((service.batches, service.requests, time.process_time()))
        except EOFError:
            stop.set()

    threading.Thread(target=answer, daemon=True).start()
    if isinstance(service, SlotServer):
        service.serve(stop)
    else:
        stop.wait()
    os._exit(0)


def _ask(
    transport: str, count: int, index: int, port: int, name: str, pipe: Any, core: int
) -> None:
    """Asks for as many seconds as the pipe says, and sends `(latencies, CPU seconds)`."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    import courier

    from distrl import specs
    from distrl.inference.messages import InferenceMessages
    from distrl.inference.server import RemoteInferencer
    from distrl.inference.slot_client import SlotInferencer
    from distrl.inference.slots import Sizes, SlotFile

    class Service:
        life = 0

        def check(self, what: str, began: float) -> None:
            if time.monotonic() > began + 60.0:
                raise TimeoutError(what)

    agent = _agent()
    messages = InferenceMessages(agent)
    client: Any
    if transport == "courier":
        client = RemoteInferencer(courier.Client(f"localhost:{port}"), messages)
    else:
        file = SlotFile.open(name, Sizes(messages, count, ROWS), 60.0)
        client = SlotInferencer(file, index, messages, Service())  # type: ignore[arg-type]
    streams = np.arange(index * ROWS, (index + 1) * ROWS, dtype=np.int32)
    step = specs.zeros(specs.timestep_struct(agent.env_spec), ROWS)
    client.inference(streams, step)
    pipe.send("ready")
    for _ in range(2):  # to warm up, and to measure
        seconds = pipe.recv()
        latencies = []
        cpu, end = time.process_time(), time.perf_counter() + seconds
        now = time.perf_counter()
        while now < end:
            client.inference(streams, step)
            before, now = now, time.perf_counter()
            latencies.append(now - before)
        pipe.send((latencies, time.process_time() - cpu))
    pipe.recv()
    os._exit(0)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measure(transport: str, count: int, seconds: float, cores: tuple[int, int]) -> dict[str, float]:
    """Returns one figure of each kind, of `count` clients.

    Args:
      transport: one of TRANSPORTS.
      count: number of clients.
      seconds: that are measured.
      cores: of the server and of the clients; -1: any.
    """
    context = multiprocessing.get_context("forkserver")  # which imports once
    context.set_forkserver_preload(["courier", "distrl.presets", *_MODULES])
    ports = _free_ports(min(count, 8)) if transport == "courier" else [0]
    name = f"benchmark-{os.getpid()}-{time.monotonic_ns()}"
    server, server_end = context.Pipe()
    process = context.Process(
        target=_serve,
        args=(transport, count, ports, name, server_end, cores[0]),
        daemon=True,
    )
    process.start()
    server_end.close()
    clients, pipes = [], []
    try:
        server.recv()
        for index in range(count):
            pipe, end = context.Pipe()
            args = (transport, count, index, ports[index % len(ports)], name, end)
            client = context.Process(target=_ask, args=(*args, cores[1]), daemon=True)
            client.start()
            end.close()
            clients.append(client)
            pipes.append(pipe)
        for pipe in pipes:
            pipe.recv()
        for duration in (_WARM_UP_S, seconds):
            server.send(True)
            before = server.recv()
            for pipe in pipes:
                pipe.send(duration)
            measured = [pipe.recv() for pipe in pipes]
            server.send(True)
            after = server.recv()
        batches, requests, cpu = (b - a for a, b in zip(before, after, strict=True))
        latencies = np.concatenate([each[0] for each in measured]) * 1e6
        cpu += sum(each[1] for each in measured)
        return {
            "median us": float(np.median(latencies)),
            "p10 us": float(np.percentile(latencies, 10)),
            "p99 us": float(np.percentile(latencies, 99)),
            "requests/s": len(latencies) / seconds,
            "requests in a batch": requests / max(batches, 1),
            "CPU us a request": cpu / len(latencies) * 1e6,
        }
    finally:
        for each in (process, *clients):
            each.kill()
        for each in (process, *clients):
            each.join(20)
        _remove(name)


def _remove(name: str) -> None:
    from distrl.shared_memory import segment

    for file in segment.existing():
        if file.name == name:
            file.path.unlink(missing_ok=True)


def network_only(seconds: float) -> float:
    """Returns the median microseconds of the network's call for 32 observations, in a loop."""
    messages, inferencer = _inferencer(_agent(), 1)
    data, taken = messages.zeros(ROWS), []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        inferencer.infer_encoded(data, ROWS, 0, False)
        taken.append(time.perf_counter() - now)
    return statistics.median(taken) * 1e6


def main() -> None:
    """Measures, then prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--out", help="a Markdown file for the table")
    args = parser.parse_args()
    load = report.load()
    figures: dict[tuple[int, str], list[dict[str, float]]] = {}
    alone = []
    for round_index in range(args.rounds):
        alone.append(network_only(args.seconds))
        for count in args.clients:
            for transport in (*TRANSPORTS, ONE_CORE) if count == 1 else TRANSPORTS:
                last = 0 if transport == ONE_CORE else (os.cpu_count() or 1) - 1
                cores = (0, last) if count == 1 else (-1, -1)
                got = measure(transport.partition(",")[0], count, args.seconds, cores)
                figures.setdefault((count, transport), []).append(got)
                rounded = {name: round(value, 1) for name, value in got.items()}
                print(round_index, count, transport, rounded, flush=True)
    names = list(next(iter(figures.values()))[0])
    rows = []
    for (count, transport), runs in figures.items():
        values = [statistics.median(run[name] for run in runs) for name in names]
        cells = [
            f"{v:,.1f}" if n == "requests in a batch" else f"{v:,.0f}"
            for n, v in zip(names, values, strict=True)
        ]
        rows.append([f"{count}", transport, *cells])
    only = f"Network only: {statistics.median(alone):.0f} us for 32 observations."
    report.write(
        args.out,
        "The inference service",
        __doc__,
        f"medians of {args.rounds} rounds, {load}",
        [*report.table(["clients", "transport", *names], rows), "", only],
    )


if __name__ == "__main__":
    main()
