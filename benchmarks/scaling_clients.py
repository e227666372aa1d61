"""A thousand clients, each with a connection of its own, at one server: what a call costs then.

All in four processes on this machine: the clients, the tunnel of their host, that of the server's,
and the server. gRPC gives the clients of one address in a process one connection together, so each
comes by a Unix socket of its own, through both tunnels, as actors of other hosts do.
"""

import concurrent.futures
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import courier
import reverb
from scaling_costs import Bench, config_of, two_hosts
from scaling_servers import Server

from distrl.replay.reverb.buffer import ReverbReplayBuffer

CALL_S = 200.0  # for a call of a thousand at once
CONNECTING = 32  # writers at a time: of 1,000 at once most had no connection after 100 s


class _Watch:
    """How the server and the tunnels change from when it is made."""

    def __init__(self, **servers: Server):
        self._servers = servers
        self._before = self._now()

    def _now(self) -> dict[str, tuple[float, int, int]]:
        return {
            name: (each.cpu(), each.resident(), each.descriptors())
            for name, each in self._servers.items()
        }

    def change(self, count: int) -> dict[str, float]:
        """For each of `count`: processor seconds, bytes of memory and descriptors, by server."""
        found = {}
        for name, now in self._now().items():
            cpu, resident, descriptors = (a - b for a, b in zip(now, self._before[name]))
            found[f"{name} cpu"] = cpu / count
            found[f"{name} memory"] = resident / count
            found[f"{name} descriptors"] = descriptors / count
        return found


def _all_at_once(calls: Sequence[Callable[[], concurrent.futures.Future]]) -> dict[str, Any]:
    """Makes all calls, and waits for them: seconds until all and until half had answered."""
    began = time.monotonic()
    took: list[float] = []
    futures = []
    for call in calls:
        future = call()
        future.add_done_callback(lambda _: took.append(time.monotonic() - began))
        futures.append(future)
    errors = [repr(error) for future in futures if (error := future.exception(CALL_S + 30.0))]
    return {
        "seconds": time.monotonic() - began,
        "median_seconds": statistics.median(took),
        "errors": len(errors),
        "first_error": errors[0] if errors else "",
    }


def parameters(count: int, sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """So many clients fetch parameters of each size, all at once: a row a step of it."""
    rows = []
    server = Server("variables", sizes=sizes)
    with closing(server), two_hosts(server.port, count) as (near, far, addresses):
        servers = {"server": server, "their tunnel": near, "its tunnel": far}
        watch = _Watch(**servers)
        clients = [courier.Client(address, call_timeout=CALL_S) for address in addresses]
        came = _all_at_once([lambda c=c: c.futures.take(b"") for c in clients])
        rows.append({"what": "connect", "size": 0, **came, **watch.change(count)})
        for size in sizes:
            for kind in ("service", "relay"):
                for _ in range(rounds):
                    calls = [
                        lambda c=c, name=f"{kind}_{size}": getattr(c.futures, name)(-1)
                        for c in clients
                    ]
                    watch = _Watch(**servers)
                    came = _all_at_once(calls)
                    rows.append({"what": kind, "size": size, **came, **watch.change(count)})
        del clients
    return rows


def inserts(bench: Bench, count: int, rounds: int) -> list[dict[str, Any]]:
    """So many writers insert an item each, a round; one reader samples them."""
    rows = []
    experiment, per_item = bench.experiment, bench.block.size
    told = {"env": bench.env, "per_item": per_item}
    server = Server("reverb", **told)
    with closing(server), two_hosts(server.port, count) as (near, far, addresses):
        reader = Server("reverb reader", **told, address=server.address)
        with closing(reader):
            servers = {"server": server, "their tunnel": near, "its tunnel": far}
            buffers = [
                ReverbReplayBuffer(
                    reverb.Client(address),
                    experiment.trajectory_struct(),
                    config_of(experiment),
                    experiment.learner.batch_size,
                    "scaling",
                    unrolls_per_item=per_item,
                    flush_timeout=CALL_S,
                )
                for address in addresses
            ]
            for turn in range(rounds + 1):
                watch, began = _Watch(**servers), time.monotonic()
                error = ""
                try:
                    together = count if turn else CONNECTING
                    for start in range(0, count, together):
                        group = buffers[start : start + together]
                        for buffer in group:
                            buffer._write(bench.block)
                        for buffer in group:
                            buffer.flush()
                except Exception as failure:
                    error = repr(failure)
                rows.append(
                    {
                        "what": "insert" if turn else "connect and insert",
                        "size": bench.columns.nbytes(per_item),
                        "seconds": time.monotonic() - began,
                        "errors": int(bool(error)),
                        "first_error": error,
                        **watch.change(count),
                    }
                )
            if not rows[-1]["errors"]:
                for buffer in buffers:
                    buffer.close()
    return rows
