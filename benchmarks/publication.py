"""What the publication of large parameters costs a learner, and how long its readers wait.

A learner's process has parameters of 100 MB and 16 readers in processes of their own, which fetch
every version over a Courier server. Its main thread does nothing but look at the clock: whenever it
neither ran nor waited for a core, it was held, by Python's global lock. In turns: parameters in
files of shared memory, as readers of the learner's machine get them, and as bytes, as others do.

  python benchmarks/publication.py --megabytes=100 --readers=16 --out=benchmarks/publication.md
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import courier
import jax
import numpy as np

from distrl.shared_memory.process import Process
from distrl.shared_memory.published import PublishedVersions
from distrl.variables import RemoteVariables, VariableService


class Parameters:
    """A source whose parameters are one array, and the agent that has them."""

    def __init__(self, nbytes: int):
        self._shape = (nbytes // 4,)
        self.version = -1
        self.packed = 0

    def initial_params(self, rng: Any) -> Any:
        """Zeros."""
        del rng
        return {"w": np.zeros(self._shape, np.float32)}

    def publish(self) -> None:
        """Makes the next version."""
        self._params = {"w": np.full(self._shape, self.version + 1, np.float32)}
        self.version += 1

    def get_variables(self, newer_than: int) -> tuple[int, Any] | None:
        """See `VariableSource`."""
        if newer_than == self.version:
            return None
        self.packed += 1
        return self.version, self._params


class Client:
    """A service over Courier."""

    def __init__(self, address: str, is_near: bool):
        self._client = courier.Client(address)
        self._is_near = is_near

    def get_variables(self, newer_than: int, place: str) -> Any:
        """As a reader of this machine, or of another."""
        return self._client.get_variables(newer_than, place if self._is_near else "")


def read(address: str, nbytes: int, is_near: bool, last: int, times: Any) -> None:
    """A reader: fetches versions until the last one, and says when it had each."""
    jax.config.update("jax_platforms", "cpu")
    variables = RemoteVariables(Client(address, is_near), Parameters(nbytes))
    version = -1
    while version < last:
        answer = variables.get_variables(version)
        if answer is None:
            time.sleep(0.02)
            continue
        version, params = answer
        assert int(params["w"][-1]) == version
        times.put((version, time.monotonic()))


def waited(thread: int) -> float:
    """Returns the seconds that a thread of this process ran or waited for a core."""
    ran, queued, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
    return (int(ran) + int(queued)) / 1e9


class Held(NamedTuple):
    """What one publication cost."""

    total_s: float
    all_have_it_s: float
    packed: int


def measure(nbytes: int, readers: int, versions: int, is_near: bool) -> list[Held]:
    """Publishes versions, each when all readers have the one before."""
    source = Parameters(nbytes)
    source.publish()
    files = PublishedVersions(f"benchmark-{os.getpid()}", Process.this())
    service = VariableService(source, source, files)
    server = courier.Server(thread_pool_size=readers)
    server.Bind("get_variables", service.get_variables)
    server.Start()
    context = multiprocessing.get_context("spawn")
    times: Any = context.Queue()
    address = f"127.0.0.1:{server.port}"
    processes = [
        context.Process(target=read, args=(address, nbytes, is_near, versions, times))
        for _ in range(readers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        times.get(timeout=600)
    results = []
    for version in range(1, versions + 1):
        packed = source.packed
        source.publish()
        began = time.monotonic()
        done = threading.Event()
        ends: list[float] = []

        def collect(ends: list[float] = ends, done: threading.Event = done) -> None:
            for _ in range(readers):
                ends.append(times.get(timeout=600)[1])
            done.set()

        threading.Thread(target=collect).start()
        total = watch(done)
        results.append(Held(total, max(ends) - began, source.packed - packed))
        print(f"version {version}: {results[-1]}", file=sys.stderr)
    for process in processes:
        process.join(60)
    server.Stop()
    service.close()
    return results


def watch(done: threading.Event) -> float:
    """Looks at the clock until `done`; returns the seconds that this thread was held."""
    thread = threading.get_native_id()
    began, counted = time.monotonic(), waited(thread)
    while not done.is_set():
        for _ in range(200):
            pass
    time.sleep(0)  # the kernel counts a thread's time when it leaves its core
    return time.monotonic() - began - (waited(thread) - counted)


def table(results: dict[str, list[Held]], megabytes: int, readers: int, command: str) -> str:
    """Returns the report."""
    lines = [
        "# The publication of large parameters",
        "",
        f"Parameters of {megabytes} MB, {readers} readers on the learner's machine, medians of "
        f"{len(next(iter(results.values())))} versions. `{command}`, on {os.cpu_count()} cores:",
        "",
        "| readers get | packed, times a version | learner's thread held, ms | "
        "all readers have it after, s |",
        "|---|---|---|---|",
    ]
    for name, held in results.items():
        total, seconds, packed = (statistics.median(values) for values in zip(*held, strict=True))
        lines.append(f"| {name} | {packed:g} | {1e3 * total:.1f} | {seconds:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures both, and prints or writes a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = {
        name: measure(args.megabytes * 1_000_000, args.readers, args.versions, is_near)
        for name, is_near in (("files of shared memory", True), ("bytes", False))
    }
    command = (
        f"python benchmarks/publication.py --megabytes={args.megabytes} --readers={args.readers}"
    )
    report = table(results, args.megabytes, args.readers, command)
    print(report)
    if args.out:
        args.out.write_text(report)


if __name__ == "__main__":
    main()
