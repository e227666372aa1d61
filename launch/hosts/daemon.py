"""One on each host of a program over several machines: runs the nodes placed there, as it is told.

  python -m distrl.launch.hosts.daemon    stdin and stdout are the connection to the launcher

It ends, with all that it has started, when the connection does, or is silent for `LEASE_S`.
"""

import base64
import collections
import dataclasses
import os
import pathlib
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from distrl.launch.hosts.channel import JsonLineChannel
from distrl.launch.hosts.code_identity import identity
from distrl.launch.network.tunnel import Credentials, new_folder
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.signals import Signals, run_once

LEASE_S = 10.0  # without a word from the launcher, which speaks every second
REPORT_S = 1.0
OUTPUT_LIMIT = 8 << 20  # bytes on their way home; what comes then is left out


class ForwardedLog(NodeLog):
    """A node's output, sent to the launcher."""

    def __init__(self, name: str, lines: JsonLineChannel) -> None:
        self.path = pathlib.Path(name)
        self.broken = None
        self._name = name
        self._lines = lines
        self._left_out = 0

    def fds(self) -> list[int]:
        """None."""
        return []

    def feed(self, data: bytes) -> None:
        """See `NodeLog.feed`."""
        if self._lines.waiting() > OUTPUT_LIMIT:
            self._left_out += len(data)
            return
        if self._left_out:
            note = f"\n[{self._left_out} bytes left out: the launcher is slow to read]\n"
            data, self._left_out = note.encode() + data, 0
        self._lines.send("output", node=self._name, data=base64.b64encode(data).decode())

    def close(self) -> None:
        """Nothing is open."""


class HostDaemon:
    """The loop, from the first message to the last. It is a `processes.Hub`.

    Args:
      reader, writer: descriptors of the connection.
      folder: nobody else's, for sockets.
      way_home: the process of the tunnel that the connection goes through; 0: none.
      hello: what it says of itself beside what it finds.
      again: what this process becomes when it has lost the launcher; None: it ends.
      tunnel_port: for the other hosts; 0: as the launcher says.
    """

    def __init__(
        self,
        reader: int,
        writer: int,
        folder: pathlib.Path,
        way_home: int = 0,
        hello: Mapping[str, Any] | None = None,
        again: list[str] | None = None,
        tunnel_port: int = 0,
    ) -> None:
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.messages: collections.deque[Any] = collections.deque()
        self._workers: dict[str, Any] = {}
        self._folder = folder
        self._tunnel = 0  # its process
        self._way_home = way_home
        self._hello = dict(hello or {})
        self._again = again
        self._tunnel_port = tunnel_port
        self._refused = False
        self._heard = self._reported = time.monotonic()
        self._lines = JsonLineChannel(self.selector, reader, writer, self._take, self._leave)

    def run(self) -> NoReturn:
        """Until the launcher says goodbye, or nothing more."""
        with Signals() as signals:
            self._signals = signals
            self.selector.register(signals, selectors.EVENT_READ)
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
            self._lines.send(
                "hello",
                identity=identity(),
                host=socket.gethostname(),
                cores=len(os.sched_getaffinity(0)),
                gpus=gpus,
                **self._hello,
            )
            while True:
                run_once(self.selector, 0.2)
                signals.pending()  # of SIGTERM and Ctrl-C, which the launcher gets too
                for name, worker in self._workers.items():
                    if worker.alive and worker.collect():
                        self._tell()
                        worker.heartbeat.end(False)
                        self._lines.send("exit", node=name, **dataclasses.asdict(worker.exit))
                self._tell()
                self._report()
                if time.monotonic() - self._heard > LEASE_S:
                    self._leave(f"no word from the launcher for {LEASE_S:g} s")

    # What the launcher says.

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        kind = message.pop("kind")
        try:
            getattr(self, f"_on_{kind}")(**message)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            self._lines.send("broken", error=f"{type(error).__name__}: {error}", traceback=text)
        self._heard = time.monotonic()  # to make a program takes long

    def _on_ping(self) -> None:
        pass

    def _on_begin(self, payload: str, own: list[str], tunnel_port: int) -> None:
        """Makes the program; answers with the ports of its nodes here."""
        import cloudpickle

        from distrl.runtime.jax_import import import_jax

        import_jax()
        from distrl.launch import launchpad_adapter
        from distrl.launch.network.ports import Ports
        from distrl.programs.resources import node_environments

        self._program, experiment, topology, run_dir, credentials = cloudpickle.loads(
            base64.b64decode(payload)
        )
        self._credentials = Credentials(*credentials)
        self._nodes = launchpad_adapter.named_nodes(self._program)
        self._own = set(own)
        self._environments = node_environments(experiment, topology)
        pathlib.Path(run_dir).mkdir(parents=True, exist_ok=True)
        self._ports = Ports()
        self._taken = {
            node.name: [self._ports.take() for _ in node.node.addresses]
            for node in self._nodes
            if node.name in self._own
        }
        self._listener = socket.create_server(("", self._tunnel_port or tunnel_port), backlog=128)
        port = self._listener.getsockname()[1]
        self._lines.send("ready", ports=self._taken, tunnel=port)

    def _on_wire(self, others: dict[str, list[list[Any]]]) -> None:
        """Args: others: by node, address by address: host, port of its tunnel, port there."""
        import launchpad as lp

        from distrl.launch import launchpad_adapter
        from distrl.launch.local import processes
        from distrl.launch.network import loopback
        from distrl.launch.network.tunnel_process import start_tunnel
        from distrl.launch.supervision.restart_policy import RestartPolicy
        from distrl.runtime.heartbeat import HeartbeatTable

        forwards: dict[str, tuple[str, int, int]] = {}

        def address(name: str, number: int) -> str:
            if name in self._own:
                return launchpad_adapter.local(self._taken[name][number])
            path = str(self._folder / str(len(forwards)))
            if name in others:
                host, tunnel, port = others[name][number]
                forwards[path] = host, tunnel, port
            return f"unix:{path}"

        processes.check_can_fork()
        loopback.check()
        launchpad_adapter.prepare_launchpad()
        heartbeats = HeartbeatTable([node.name for node in self._nodes])
        self._heartbeats = heartbeats
        for node in self._nodes:
            if node.name not in self._own:
                continue
            heartbeat = heartbeats.of(node.name)
            assert heartbeat is not None
            self._workers[node.name] = processes.SupervisedProcess(
                node,
                ForwardedLog(node.name, self._lines),
                self,
                self._environments.get(node.name, self._environments.get(node.label, {})),
                None,
                self._fds,
                heartbeat,
                RestartPolicy(),
                stop_signal=signal.SIGUSR1,  # Slurm sends SIGTERM to all processes of a job
            )
        launchpad_adapter.wire(self._program, lp.LaunchType("local_mp"), self._stopper, address)
        open_ports = {port for ports in self._taken.values() for port in ports}
        self._tunnel = start_tunnel(self._listener, self._credentials, open_ports, forwards)
        self._lines.send("wired")

    def _stopper(self, name: str) -> Any:
        from distrl.launch.local.node_hooks import Stopper

        worker = self._workers.get(name)
        return Stopper(name, worker.tell if worker is not None else self.messages.append)

    def _on_seats(self, heartbeats: dict[str, list[int]]) -> None:
        """Of the nodes of all hosts: status and life."""
        for name, (status, life) in heartbeats.items():
            heartbeat = self._heartbeats.of(name)
            if heartbeat is not None and name not in self._own:
                heartbeat.mirror(status, life)

    def _on_start(self, node: str, life: int) -> None:
        worker = self._workers[node]
        worker.heartbeat.begin(life)
        worker.start()

    def _on_stop(self, node: str) -> None:
        if self._workers[node].alive:
            self._workers[node].ask_to_stop()

    def _on_kill(self, node: str) -> None:
        if self._workers[node].alive:
            self._workers[node].kill()

    def _on_stacks(self, node: str, also_if_stopped: bool) -> None:
        if self._workers[node].alive:
            self._workers[node].show_stacks(also_if_stopped)

    def _on_refused(self, why: str) -> None:
        self._refused = True
        self._leave(why)

    def _on_bye(self) -> None:
        self._leave("")

    # What it says.

    def _tell(self) -> None:
        while self.messages:
            message = dataclasses.asdict(self.messages.popleft())
            message["age"] = time.monotonic() - message.pop("time")
            message["what"] = message.pop("kind")
            self._lines.send("message", **message)

    def _report(self) -> None:
        """How the nodes are; also a sign of life."""
        now = time.monotonic()
        if now - self._reported < REPORT_S:
            return
        self._reported = now
        if self._tunnel and os.waitpid(self._tunnel, os.WNOHANG) != (0, 0):
            self._tunnel = 0
            self._leave("its tunnel to the other hosts has ended")
        nodes = {}
        for name, worker in self._workers.items():
            usage = worker.usage() if worker.alive else None
            if usage is not None:
                heartbeat = worker.heartbeat
                state = [heartbeat.at_work(), heartbeat.silent(), worker.pid]
                nodes[name] = [*state, dataclasses.asdict(usage)]
        self._lines.send("report", nodes=nodes)

    # What it starts and ends.

    def _fds(self) -> Iterable[int]:
        """Which a node's process has no use for."""
        yield from self._signals.fds()
        yield from self._lines.fds()
        yield from self._ports.fds()
        yield self._listener.fileno()
        yield self.selector.fileno()  # type: ignore[attr-defined]
        for worker in self._workers.values():
            yield from worker.fds()

    def _leave(self, why: str) -> NoReturn:
        """Ends this process and all that it has started."""
        if why:
            sys.stderr.write(f"distrl agent on {socket.gethostname()}: {why}: ends its nodes\n")
            sys.stderr.flush()
        for worker in self._workers.values():
            worker.destroy()
        tunnels = [pid for pid in (self._tunnel, self._way_home) if pid]
        if tunnels:  # else what it takes to import may not be there yet
            from distrl.launch.network.tunnel_process import end_tunnel

            for pid in tunnels:
                end_tunnel(pid)
        if self._workers:
            from distrl.replay.shared import segment

            segment.sweep(of_this_process=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        if why and self._again is not None and not self._refused:
            os.execv(self._again[0], self._again)
        os._exit(1 if why else 0)


def main() -> NoReturn:
    """Keeps the connection to itself: whatever else is printed goes to stderr."""
    reader, writer = os.dup(0), os.dup(1)
    os.set_inheritable(reader, False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    HostDaemon(reader, writer, new_folder()).run()


if __name__ == "__main__":
    main()
