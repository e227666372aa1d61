"""The servers that `scaling.py` measures, each in a separate process.

They are forked from a server process that has imported what they need.
"""

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import courier
import jax
import portpicker
import reverb
from scaling_workloads import FixedParams, fixed_inferencer, preset, replay_config

from distrl.goal import Goal
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer
from distrl.launch.network import loopback, tunnel
from distrl.launch.network.credentials import Credentials
from distrl.metrics.monitor import Monitor
from distrl.replay.reverb.buffer import ReverbReplayBuffer
from distrl.replay.reverb.server import reverb_tables
from distrl.variables.relay import VariableRelay
from distrl.variables.service import VariableService

WAIT_S = 180.0  # for a server to start

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["scaling_servers"])


class Server:
    """A server in another process."""

    def __init__(self, kind: str, **settings: Any) -> None:
        """Starts the server and waits until it can be called.

        Args:
          kind: a key of `_KINDS`.
          **settings: passed to the function that serves this kind.

        Raises:
          RuntimeError: the server ended, or did not start in time.
        """
        reader, writer = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_serve, args=(kind, settings, writer), daemon=True)
        self._process.start()
        writer.close()
        try:
            if not reader.poll(WAIT_S):
                raise RuntimeError(f"the {kind} server did not start within {WAIT_S:g} s")
            self.port: int = reader.recv()
        except EOFError:
            raise RuntimeError(f"the {kind} server ended at its start") from None
        finally:
            reader.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def address(self) -> str:
        """The address for clients on this host."""
        return f"127.0.0.1:{self.port}"

    def cpu(self) -> float:
        """Returns the CPU seconds of the process, all its threads included."""
        return time.clock_gettime(~self.pid << 3 | 2)  # clock_getcpuclockid(3)

    def resident(self) -> int:
        """Returns its current resident memory in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Returns the number of its open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def close(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.join(10.0)


def _serve_variables(settings: dict[str, Any]) -> int:
    """Serves parameters of each of `sizes`, directly and through a `VariableRelay`."""
    calls: dict[str, Callable[..., Any]] = {"take": lambda data: len(data)}
    for size in settings["sizes"]:
        params: Any = FixedParams(size)
        service = VariableService(params, params)
        calls[f"service_{size}"] = service.get_variables
        calls[f"relay_{size}"] = VariableRelay(service).get_variables
    return _courier(calls)


def _serve_inference(settings: dict[str, Any]) -> int:
    """Serves inference for one actor of a workload."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    agent = preset(settings["env"]).make_agent()
    messages = InferenceMessages(agent)
    inferencer = fixed_inferencer(agent, settings["num_envs"], messages)
    inferencer.warm_up()
    return _courier(
        {"inference": InferenceServer(inferencer, messages, settings["num_envs"], 60.0).inference}
    )


def _serve_monitor(settings: dict[str, Any]) -> int:
    """Serves a `Monitor`."""
    del settings
    goal = Goal(mean_return=None, max_env_steps=10**15)
    monitor = Monitor(goal, lambda *_: None, None, printer=lambda _: None)
    return _courier({"report": monitor.report})


def _courier(calls: dict[str, Callable[..., Any]]) -> int:
    port = portpicker.pick_unused_port()
    server = courier.Server(port=port)  # with as many threads as a node's: Courier's default
    for name, call in calls.items():
        server.Bind(name, call)
    server.Start()
    _kept.append(server)
    return port


def _serve_reverb(settings: dict[str, Any]) -> int:
    """Serves a Reverb queue for a workload's items."""
    experiment = preset(settings["env"])
    struct, config = experiment.trajectory_struct(), replay_config(experiment)
    tables = reverb_tables(
        config, struct, experiment.learner.batch_size, "scaling", settings["per_item"]
    )
    server = reverb.Server(tables)
    _kept.append(server)
    return server.port


def _read_reverb(settings: dict[str, Any]) -> int:
    """Samples from a Reverb server as fast as it can, as a learner; serves nothing."""
    experiment = preset(settings["env"])
    buffer = ReverbReplayBuffer(
        reverb.Client(settings["address"]),
        experiment.trajectory_struct(),
        replay_config(experiment),
        experiment.learner.batch_size,
        "scaling",
        unrolls_per_item=settings["per_item"],
    )
    buffer.wait_for_server(30.0)

    def sample() -> None:
        while True:
            buffer.sample(600.0)

    threading.Thread(target=sample, daemon=True).start()
    return 0


def _tunnel(settings: dict[str, Any]) -> int:
    """Runs the tunnel of one host."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    credentials = Credentials(settings["certificate"].encode(), settings["key"].encode())
    forwards = {path: tuple(where) for path, where in settings["forwards"].items()}
    ready = threading.Event()

    def carry() -> None:
        tunnel.run(listener, credentials, settings["open_ports"], forwards, ready.set)

    threading.Thread(target=carry, daemon=True).start()
    if not ready.wait(30.0):
        raise RuntimeError("the tunnel is not ready")
    return listener.getsockname()[1]


_kept: list[Any] = []  # servers, which stop when they are collected
_KINDS: dict[str, Callable[[dict[str, Any]], int]] = {
    "variables": _serve_variables,
    "inference": _serve_inference,
    "monitor": _serve_monitor,
    "reverb": _serve_reverb,
    "reverb reader": _read_reverb,
    "tunnel": _tunnel,
}


def _serve(kind: str, settings: dict[str, Any], port: Connection) -> None:
    """Runs in the server's process: sends the port, then serves until it is killed."""
    loopback.close_ports()  # before a server is created
    port.send(_KINDS[kind](settings))
    port.close()
    threading.Event().wait()
