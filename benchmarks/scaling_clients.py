"""Measures what a call costs when a thousand clients make it at once, each by its own connection.

Everything runs in four processes on this machine: the clients, the tunnel of their host, that of
the server's host, and the server. gRPC gives the clients of one address in a process a common
connection, so each uses its own Unix socket, through both tunnels, as actors of other hosts do.
"""

import concurrent.futures
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import courier
import reverb
from scaling_costs import two_hosts
from scaling_servers import Server
from scaling_workloads import Bench, replay_config

from distrl.replay.reverb.buffer import ReverbReplayBuffer

CLIENTS_TUNNEL, SERVER_TUNNEL = "client tunnel", "server tunnel"
CALL_S = 200.0  # deadline of a call made by a thousand clients at once
CONNECTING = 32  # writers at a time: of 1,000 at once, most had no connection after 100 s


class _Watch:
    """Measures how the server and the tunnels change after its creation."""

    def __init__(self, **servers: Server) -> None:
        self._servers = servers
        self._before = self._now()

    def _now(self) -> dict[str, tuple[float, int, int]]:
        return {
            name: (each.cpu(), each.resident(), each.descriptors())
            for name, each in self._servers.items()
        }

    def change(self, count: int) -> dict[str, float]:
        """Returns CPU seconds, bytes of memory and descriptors per client, by server."""
        changes = {}
        for name, now in self._now().items():
            cpu, resident, descriptors = (a - b for a, b in zip(now, self._before[name]))
            changes[f"{name} cpu"] = cpu / count
            changes[f"{name} memory"] = resident / count
            changes[f"{name} descriptors"] = descriptors / count
        return changes


def _all_at_once(calls: Sequence[Callable[[], concurrent.futures.Future]]) -> dict[str, Any]:
    """Makes all calls at once; returns the seconds until all, and until half, were answered."""
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
    """Lets `count` clients fetch parameters of each size at once; returns a row for each round."""
    rows = []
    server = Server("variables", sizes=sizes)
    with closing(server), two_hosts(server.port, count) as (near, far, addresses):
        servers = {"server": server, CLIENTS_TUNNEL: near, SERVER_TUNNEL: far}
        watch = _Watch(**servers)
        clients = [courier.Client(address, call_timeout=CALL_S) for address in addresses]
        answered = _all_at_once([functools.partial(c.futures.take, b"") for c in clients])
        rows.append({"what": "connect", "size": 0, **answered, **watch.change(count)})
        for size in sizes:
            for kind in ("service", "relay"):
                for _ in range(rounds):
                    name = f"{kind}_{size}"
                    calls = [functools.partial(getattr(c.futures, name), -1) for c in clients]
                    watch = _Watch(**servers)
                    answered = _all_at_once(calls)
                    rows.append({"what": kind, "size": size, **answered, **watch.change(count)})
        del clients
    return rows


def inserts(bench: Bench, count: int, rounds: int) -> list[dict[str, Any]]:
    """Lets `count` writers insert an item each; returns a row for each round.

    A reader samples the items meanwhile.
    """
    rows = []
    experiment, per_item = bench.experiment, bench.block.size
    settings = {"env": bench.env, "per_item": per_item}
    server = Server("reverb", **settings)
    with closing(server), two_hosts(server.port, count) as (near, far, addresses):
        reader = Server("reverb reader", **settings, address=server.address)
        with closing(reader):
            servers = {"server": server, CLIENTS_TUNNEL: near, SERVER_TUNNEL: far}
            buffers = [
                ReverbReplayBuffer(
                    reverb.Client(address),
                    experiment.trajectory_struct(),
                    replay_config(experiment),
                    experiment.learner.batch_size,
                    "scaling",
                    unrolls_per_item=per_item,
                    flush_timeout=CALL_S,
                )
                for address in addresses
            ]
            for round_index in range(rounds + 1):
                watch, began = _Watch(**servers), time.monotonic()
                error = ""
                try:
                    together = count if round_index else CONNECTING
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
                        "what": "insert" if round_index else "connect and insert",
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
