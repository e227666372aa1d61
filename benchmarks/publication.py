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
import report

from distrl.shared_memory.process import Process
from distrl.shared_memory.published import PublishedVersions
from distrl.variables.service import RemoteVariables, VariableService

_POLL_S = 0.02  # between two questions of a reader
_LIMIT_S = 600.0


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

    def get_variables(self, newer_than: int, reader_domain: str) -> Any:
        """As a reader of this machine, or of another."""
        return self._client.get_variables(newer_than, reader_domain if self._is_near else "")


def read(address: str, nbytes: int, is_near: bool, last: int, index: int, had: Any) -> None:
    """A reader: fetches versions until the last one, and says which it has, and since when."""
    jax.config.update("jax_platforms", "cpu")
    variables = RemoteVariables(Client(address, is_near), Parameters(nbytes))
    version = -1
    while version < last:
        answer = variables.get_variables(version)
        if answer is None:
            time.sleep(_POLL_S)
            continue
        version, params = answer
        assert int(params["w"][-1]) == version
        had[2 * index] = time.monotonic()
        had[2 * index + 1] = version


def on_core(thread: int) -> float:
    """Returns the seconds that the calling thread ran, or waited for a core."""
    queued = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]
    return time.thread_time() + int(queued) / 1e9


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
    # Of each reader the time, and the version. No thread of this process has to wait for it.
    had: Any = context.RawArray("d", [0.0, -1.0] * readers)
    address = f"127.0.0.1:{server.port}"
    processes = [
        context.Process(target=read, args=(address, nbytes, is_near, versions, index, had))
        for index in range(readers)
    ]
    for process in processes:
        process.start()
    results = []
    for version in range(versions + 1):
        packed, began = source.packed, time.monotonic()
        if version:
            source.publish()
        total = watch(had, version, processes)
        if version:
            results.append(Held(total, max(had[::2]) - began, source.packed - packed))
            print(f"version {version}: {results[-1]}", file=sys.stderr)
    for process in processes:
        process.join(60)
    server.Stop()
    service.close()
    return results


def watch(had: Any, version: int, processes: list[Any]) -> float:
    """Looks at the clock until all have a version; returns the seconds this thread was held."""
    thread = threading.get_native_id()
    began, counted = time.monotonic(), on_core(thread)
    while min(had[1::2]) < version:
        for _ in range(200):
            pass
        if time.monotonic() - began > _LIMIT_S or any(p.exitcode for p in processes):
            raise SystemExit(f"not all readers have version {version}")
    return time.monotonic() - began - (on_core(thread) - counted)


def main() -> None:
    """Measures both, and prints or writes a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = report.load()
    results = {
        name: measure(args.megabytes * 1_000_000, args.readers, args.versions, is_near)
        for name, is_near in (("files of shared memory", True), ("bytes", False))
    }
    rows = []
    for name, held in results.items():
        total, seconds, packed = (statistics.median(values) for values in zip(*held, strict=True))
        rows.append([name, f"{packed:g}", f"{1e3 * total:.1f}", f"{seconds:.2f}"])
    header = [
        "readers get", "packed, times a version", "learner's thread held, ms",
        "all readers have it after, s",
    ]  # fmt: skip
    report.write(
        args.out,
        "The publication of large parameters",
        __doc__,
        f"{args.megabytes} MB, {args.readers} readers on the learner's machine, medians of "
        f"{args.versions} versions, {load}",
        report.table(header, rows),
    )


if __name__ == "__main__":
    main()
