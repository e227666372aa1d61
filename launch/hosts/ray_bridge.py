"""The launcher's driver process on a Ray cluster: a placement group, and an actor for each host.

It is a separate process because Ray ends a driver that has lost the cluster's head, and installs
threads and signal handlers. It reads one JSON line, its task, from stdin, answers with one on
stdout, and ends when stdin does, as when the launcher is killed; nothing of the program is left on
the cluster then. When the cluster's head is lost, it writes one more line that says so.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

import ray
import ray.cloudpickle
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distrl.launch.hosts import ray_actor
from distrl.runtime.traceback_text import one_line

ACTOR_S = 45.0  # for a host's actor to start; less than the launcher waits for a sign of its daemon
READ_S = 5.0  # seconds of one call that waits for output
CALL_S = 30.0  # for an actor to answer, beyond what it is asked to wait
HEAD_S = 20.0  # seconds without an answer of the head; after 60 s Ray itself ends this process
TERMINATE_S = 2.0  # for an actor to end itself
END_S = 10.0  # for the daemons to end after their input has ended
LEAVE_S = 20.0  # for this process to end after its stdin has
_CHUNK = 1 << 20
_LOOK_S = 1.0  # between two questions to the head


class Connections:
    """Passes on what goes between the launcher and the hosts' daemons.

    Args:
      bundles: the resources of each host, by its name.
      group: the placement group, with these bundles.
      daemon: the command that runs a daemon.
    """

    def __init__(
        self, bundles: Mapping[str, Mapping[str, float]], group: Any, daemon: Sequence[str]
    ) -> None:
        self._bundles = bundles
        self._group = group
        self._daemon = list(daemon)
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._actor_class = ray.remote(ray_actor.DaemonActor)
        self._lock = threading.Lock()
        self._actors: list[Any] = []  # with a daemon that runs
        self._ended = threading.Condition(self._lock)

    def serve(self, connection: socket.socket) -> None:
        """Serves a relay: starts its host's daemon, and returns when that has ended."""
        with connection:
            name, fds, _, _ = socket.recv_fds(connection, 1 << 10, 3)
            reader, writer, errors = fds
            try:
                self._run(name.decode(), reader, writer, errors)
                connection.send(b"0")
            except (ray.exceptions.RayError, ValueError) as error:  # ValueError: the group is gone
                _say(errors, f"Ray: {_first_line(error)}")
            except OSError as error:  # the launcher has closed the connection
                _say(errors, f"the connection broke: {error.strerror}")
            finally:
                for fd in fds:
                    os.close(fd)

    def close(self) -> None:
        """Ends the daemons' input, and waits until they have ended."""
        deadline = time.monotonic() + END_S
        with self._lock:
            for actor in self._actors:
                actor.close_input.remote()
            while self._actors and (left := deadline - time.monotonic()) > 0:
                self._ended.wait(left)

    def _run(self, name: str, reader: int, writer: int, errors: int) -> None:
        wanted = self._bundles[name]
        index = list(self._bundles).index(name)
        actor = self._actor_class.options(
            num_cpus=wanted["CPU"],
            num_gpus=wanted.get("GPU", 0),
            memory=wanted.get("memory"),
            max_restarts=0,  # the launcher asks again, and says so
            max_concurrency=4,  # a read waits while others write
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
        ).remote()
        try:
            try:
                address = ray.get(actor.node_address.remote(), timeout=ACTOR_S)
            except ray.exceptions.GetTimeoutError:
                _say(errors, f"Ray has started no actor for it within {ACTOR_S:g} s")
                return
            command = ["env", f"{ray_actor.ADDRESS_VARIABLE}={address}", *self._daemon]
            ray.get(actor.start.remote(command), timeout=CALL_S)
            with self._lock:
                self._actors.append(actor)
            forward = threading.Thread(
                target=_forward_input, args=(actor, os.dup(reader)), daemon=True
            )
            forward.start()
            _forward_output(actor, writer, errors)
        finally:
            # Without the cluster's head an actor can only end itself, and `kill` does nothing.
            ray.wait([actor.__ray_terminate__.remote()], timeout=TERMINATE_S)
            ray.kill(actor)
            with self._lock:
                if actor in self._actors:
                    self._actors.remove(actor)
                self._ended.notify_all()


def _forward_input(actor: Any, reader: int) -> None:
    """Passes the launcher's bytes to the daemon, in order, until either ends.

    A daemon that they do not reach, because its actor is lost or stuck, ends by itself.
    """
    with contextlib.suppress(ray.exceptions.RayError), open(reader, "rb", buffering=0) as source:
        while data := source.read(_CHUNK):
            ray.get(actor.write.remote(data), timeout=CALL_S)
        ray.get(actor.close_input.remote(), timeout=CALL_S)


def _forward_output(actor: Any, writer: int, errors: int) -> None:
    """Passes the daemon's bytes to the launcher until the daemon has ended."""
    ended = False
    while not ended:
        output, error, ended = ray.get(actor.read.remote(READ_S), timeout=READ_S + CALL_S)
        for fd, data in ((errors, error), (writer, output)):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]


def _say(errors: int, line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(errors, f"{line}\n".encode())


def _first_line(error: BaseException) -> str:
    """Returns the first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(":") if lines else type(error).__name__


class _Refused(Exception):
    """The cluster cannot be used. The message is one line."""


def _connect(address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        where = "runs on this machine" if address == "auto" else f"is at {address}"
        raise _Refused(
            f"no Ray cluster {where}, or this machine is no node of it: give --ray=HOST:PORT of "
            f"its head, and run this command on one of its nodes ({_first_line(error)})"
        ) from None
    except RuntimeError as error:  # the cluster has another version of Ray or Python
        raise _Refused(f"Ray: {one_line(error)}") from None
    except ValueError as error:
        raise _Refused(f"--ray={address}: {_first_line(error)}") from None


def _nodes() -> list[dict[str, Any]]:
    """Returns the cluster's nodes, with what is free of each."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [{**node, "Available": free.get(node["NodeID"], {})} for node in ray.nodes()]


def _place(
    bundles: Sequence[Mapping[str, float]], wait: float, launcher_ended: threading.Event
) -> Any:
    """Returns a placement group with the bundles on separate nodes; None: no room in time."""
    group = placement_group([dict(each) for each in bundles], strategy="STRICT_SPREAD")
    deadline = time.monotonic() + wait
    while not group.wait(_LOOK_S):
        if time.monotonic() > deadline or launcher_ended.is_set():
            return None
    return group


def _watch_head(out: IO[str]) -> None:
    """Reports once that the head has been silent for `HEAD_S`."""
    answered = time.monotonic()

    def ask() -> None:
        nonlocal answered
        while True:
            ray.nodes()
            answered = time.monotonic()
            time.sleep(_LOOK_S)

    threading.Thread(target=ask, name="ask", daemon=True).start()
    while time.monotonic() - answered < HEAD_S:
        time.sleep(_LOOK_S)
    _reply(out, lost=f"the head of the Ray cluster has not answered for {HEAD_S:g} s")


def _accept(listener: socket.socket, connections: Connections) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=connections.serve, args=(connection,), daemon=True).start()


def _reply(out: IO[str], **fields: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the launcher has ended
        print(json.dumps(fields), file=out, flush=True)


def _run(task: dict[str, Any], out: IO[str], launcher_ended: threading.Event) -> None:
    _connect(task["address"])
    if "bundles" not in task:
        _reply(out, nodes=_nodes())
        return
    bundles = task["bundles"]
    group = _place(list(bundles.values()), task["wait"], launcher_ended)
    if group is None:
        _reply(out, no_room=_nodes())
        return
    connections = Connections(bundles, group, task["daemon"])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(task["socket"])
    listener.listen(len(bundles))
    _reply(out, placed=len(bundles))
    for target, argument in ((_accept, (listener, connections)), (_watch_head, (out,))):
        threading.Thread(target=target, args=argument, daemon=True).start()
    launcher_ended.wait()
    connections.close()


def _watch_launcher(launcher_ended: threading.Event, folder: str) -> None:
    """Makes sure that this process ends after the launcher: without the head, Ray may hang."""
    sys.stdin.read()
    launcher_ended.set()
    time.sleep(LEAVE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Does the task on stdin; what Ray prints goes to stderr."""
    # `ray job stop` signals all processes, but the launcher saves first. Ray replaces handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    folder = os.path.dirname(task["socket"])  # the launcher may have been killed, or end at once
    launcher_ended = threading.Event()
    watch = threading.Thread(target=_watch_launcher, args=(launcher_ended, folder), daemon=True)
    watch.start()
    status = 0
    try:
        _run(task, out, launcher_ended)
    except _Refused as refused:
        _reply(out, error=str(refused))
        status = 1
    ray.shutdown()  # removes what this process has on the cluster, actors and groups
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)  # threads that wait for an actor do not end


if __name__ == "__main__":
    main()
