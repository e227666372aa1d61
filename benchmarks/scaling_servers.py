"""The servers that `scaling.py` measures, each in a process of its own, forked from one that has
imported all that they need.
"""

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 180.0  # for a server to be there

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["scaling_costs"])


class Server:
    """A server's process. `cpu()` is what it has computed, in all its threads."""

    def __init__(self, kind: str, **settings: Any):
        """Starts it, and waits until it can be called.

        Raises:
          RuntimeError: it ended, or was not there in time.
        """
        told, tell = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_serve, args=(kind, settings, tell), daemon=True)
        self._process.start()
        tell.close()
        try:
            if not told.poll(WAIT_S):
                raise RuntimeError(f"the {kind} server was not there in {WAIT_S:g} s")
            self.port: int = told.recv()
        except EOFError:
            raise RuntimeError(f"the {kind} server ended at its start") from None
        finally:
            told.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def address(self) -> str:
        """For clients on this host."""
        return f"127.0.0.1:{self.port}"

    def cpu(self) -> float:
        """Seconds, of its whole process."""
        return time.clock_gettime(~self.pid << 3 | 2)  # clock_getcpuclockid(3)

    def resident(self) -> int:
        """Bytes of memory, as it is now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.join(10.0)


class FixedParams:
    """A source of parameters of a size; an agent of them, as far as `VariableService` asks."""

    def __init__(self, nbytes: int, new_each_time: bool = False):
        import numpy as np

        self.version = 0
        self._new = new_each_time
        rng = np.random.default_rng(0)
        self._params = {"w": rng.normal(size=max(1, nbytes // 4)).astype(np.float32)}

    def initial_params(self, rng: Any) -> Any:
        """See `Agent`."""
        import jax.numpy as jnp

        return {"w": jnp.zeros(self._params["w"].shape, jnp.float32)}

    def get_variables(self, newer_than: int = -1) -> Any:
        """See `VariableSource`."""
        self.version += self._new
        return (self.version, self._params) if self.version > newer_than else None


def _serve_variables(told: dict[str, Any]) -> int:
    """`VariableService`s of parameters of each of `sizes`; behind a `VariableRelay` each, too."""
    from distrl.variables import VariableRelay, VariableService

    calls: dict[str, Callable[..., Any]] = {"take": lambda data: len(data)}
    for size in told["sizes"]:
        params: Any = FixedParams(size)
        service = VariableService(params, params)
        calls[f"service_{size}"] = service.get_variables
        calls[f"relay_{size}"] = VariableRelay(service).get_variables
    return _courier(calls)


def _serve_inference(told: dict[str, Any]) -> int:
    """An `InferenceServer` for one actor of a workload."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    from scaling_costs import inferencer_of, preset

    from distrl.inference.messages import InferenceMessages
    from distrl.inference.server import InferenceServer

    agent = preset(told["env"]).make_agent()
    messages = InferenceMessages(agent)
    inferencer = inferencer_of(agent, told["num_envs"], messages)
    inferencer.warm_up()
    return _courier(
        {"inference": InferenceServer(inferencer, messages, told["num_envs"], 60.0).inference}
    )


def _serve_monitor(told: dict[str, Any]) -> int:
    """A `Monitor`."""
    from distrl.goal import Goal
    from distrl.metrics import Monitor

    goal = Goal(mean_return=None, max_env_steps=10**15)
    monitor = Monitor(goal, lambda *_: None, None, printer=lambda _: None)
    return _courier({"report": monitor.report})


def _courier(calls: dict[str, Callable[..., Any]]) -> int:
    import courier
    import portpicker

    port = portpicker.pick_unused_port()
    server = courier.Server(port=port)  # with as many threads as a node's: Courier's default
    for name, call in calls.items():
        server.Bind(name, call)
    server.Start()
    _kept.append(server)
    return port


def _serve_reverb(told: dict[str, Any]) -> int:
    """A Reverb server with a queue for a workload's items."""
    import reverb
    from scaling_costs import config_of, preset

    from distrl.replay.reverb.buffer import reverb_tables

    experiment = preset(told["env"])
    struct, config = experiment.trajectory_struct(), config_of(experiment)
    tables = reverb_tables(
        config, struct, experiment.learner.batch_size, "scaling", told["per_item"]
    )
    server = reverb.Server(tables)
    _kept.append(server)
    return server.port


def _read_reverb(told: dict[str, Any]) -> int:
    """No server: a learner's side, which samples as fast as it can."""
    import reverb
    from scaling_costs import config_of, preset

    from distrl.replay.reverb.buffer import ReverbReplayBuffer

    experiment = preset(told["env"])
    buffer = ReverbReplayBuffer(
        reverb.Client(told["address"]),
        experiment.trajectory_struct(),
        config_of(experiment),
        experiment.learner.batch_size,
        "scaling",
        unrolls_per_item=told["per_item"],
    )
    buffer.wait_for_server(30.0)

    def sample() -> None:
        while True:
            buffer.sample(600.0)

    threading.Thread(target=sample, daemon=True).start()
    return 0


def _tunnel(told: dict[str, Any]) -> int:
    """One host's tunnel."""
    from distrl.launch.network import tunnel

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    credentials = tunnel.Credentials(told["certificate"].encode(), told["key"].encode())
    forwards = {path: tuple(where) for path, where in told["forwards"].items()}
    ready = threading.Event()

    def carry() -> None:
        tunnel.run(listener, credentials, told["open_ports"], forwards, ready.set)  # type: ignore[arg-type]

    threading.Thread(target=carry, daemon=True).start()
    if not ready.wait(30.0):
        raise RuntimeError("the tunnel is not ready")
    return listener.getsockname()[1]


_kept: list[Any] = []  # servers end when they are collected
_KINDS: dict[str, Callable[[dict[str, Any]], int]] = {
    "variables": _serve_variables,
    "inference": _serve_inference,
    "monitor": _serve_monitor,
    "reverb": _serve_reverb,
    "reverb reader": _read_reverb,
    "tunnel": _tunnel,
}


def _serve(kind: str, settings: dict[str, Any], tell: Any) -> None:
    """A server's process: tells its port, and serves until it is killed."""
    from distrl.launch.network import loopback

    loopback.close_ports()  # before a server is made
    tell.send(_KINDS[kind](settings))
    tell.close()
    threading.Event().wait()
