"""The launcher's side of a Ray cluster: the bridge process that starts the hosts' daemons there."""

import contextlib
import importlib.util
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.hosts import ray_relay
from distrl.launch.hosts.ray_resources import Node, bundle, why_unplaced
from distrl.launch.network.private_folder import new_folder
from distrl.launch.paths import python_command
from distrl.programs.placement import Host
from distrl.runtime.durations import longest_wait
from distrl.runtime.sockets import parse_address

CONNECT_S = 60.0  # for Ray to connect, besides what the placement may take
_PROBE_S = 5.0  # for the head's port to answer
_CLOSE_S = 30.0  # for the bridge to end, which takes less (`ray_bridge.LEAVE_S`)
_SOCKET, _ERRORS = "socket", "errors"  # files of the bridge
_ERROR_LINES = 3


def cluster_address(flag: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the address of the cluster: the flag's, RAY_ADDRESS, or "auto", this machine's.

    Raises:
      ConfigError: Ray is not installed, the address is malformed, or nothing answers there.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--launcher=ray: Ray is not installed here: pip install 'distrl[ray]'")
    address = flag or environ.get("RAY_ADDRESS") or "auto"
    if address == "auto":
        return address
    if re.match(r"\w+://", address):
        raise ConfigError(
            f"--ray={address}: give HOST:PORT of the cluster's head, and run this command on a "
            "node of the cluster, as by `ray job submit`"
        )
    host, port = parse_address(address, "--ray")
    try:
        socket.create_connection((host, port), _PROBE_S).close()
    except OSError as error:
        raise ConfigError(
            f"--ray={address}: no Ray cluster is there: {error.strerror or error}"
        ) from None
    return address


def cluster_nodes(address: str) -> list[Node]:
    """Returns the cluster's nodes. Raises ConfigError if that is not possible."""
    with _bridge({"address": address}, CONNECT_S) as bridge:
        nodes: list[Node] = bridge.answer["nodes"]
        return nodes


@contextlib.contextmanager
def hosts_on_cluster(
    address: str, hosts: Sequence[Host], daemon: Sequence[str], wait: float
) -> Iterator["RayCluster"]:
    """While entered, holds a place for each host on a Ray cluster.

    Args:
      address: from `cluster_address`.
      hosts: each gets a separate node.
      daemon: the command that runs a host's daemon.
      wait: seconds for the cluster to have room for them.

    Raises:
      ConfigError: on entering; the cluster cannot be used, or has no room.
    """
    task = {
        "address": address,
        "bundles": {host.name: bundle(host) for host in hosts},
        "daemon": list(daemon),
        "wait": wait,
    }
    with _bridge(task, CONNECT_S + wait) as bridge:
        if "no_room" in bridge.answer:
            reason = why_unplaced(hosts, bridge.answer["no_room"])
            raise ConfigError(f"Ray: {reason} (waited {wait:g} s; --ray_wait)")
        yield bridge


class RayCluster:
    """A Ray cluster, as its bridge process shows it.

    Args:
      process: the bridge.
      folder: has its socket, and what it says on stderr.

    Attributes:
      answer: the bridge's, to its task (see `ray_bridge`).
    """

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._received = b""
        self._lost: str | None = None
        self.answer: dict[str, Any] = {}

    def connect(self, host: Host) -> list[str]:
        """Returns the command that connects to a host's daemon, and starts it."""
        path = str(self._folder / _SOCKET)
        return [sys.executable, "-I", "-S", ray_relay.__file__, path, host.name]

    def lost(self) -> str | None:
        """Returns why no host can be reached any more; None while they can."""
        if self._lost is None:
            line = self._read_line(0.0)
            if line is not None:
                self._lost = json.loads(line)["lost"] if line else self._why_ended()
        return self._lost

    def wait_for_answer(self, timeout: float) -> None:
        """Sets `answer`. Raises ConfigError if it is a refusal, or none comes in time."""
        line = self._read_line(timeout)
        if line is None:
            raise ConfigError(f"Ray did not answer in {timeout:g} s{self._last_errors()}")
        if not line:
            raise ConfigError(self._why_ended())
        self.answer = json.loads(line)
        if "error" in self.answer:
            raise ConfigError(self.answer["error"])

    def _read_line(self, timeout: float) -> bytes | None:
        """Returns a line of the bridge; b"": it has ended; None: there is none in time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(longest_wait(max(0.0, deadline - time.monotonic()))):
                    return None
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return b""
                self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _why_ended(self) -> str:
        return f"the connection to the Ray cluster has ended{self._last_errors()}"

    def _last_errors(self) -> str:
        try:
            text = (self._folder / _ERRORS).read_text(errors="replace")
        except FileNotFoundError:  # the bridge has ended in order, and removed it
            return ""
        lines = [line.strip() for line in text.splitlines()[-_ERROR_LINES:]]
        return f" ({' | '.join(lines)})" if lines else ""


@contextlib.contextmanager
def _bridge(task: Mapping[str, Any], timeout: float) -> Iterator[RayCluster]:
    """Runs the bridge while it is entered; waits for its answer to a task on entering.

    Args:
      task: see `ray_bridge`.
      timeout: seconds for the answer.
    """
    with contextlib.ExitStack() as stack:
        folder = new_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with (folder / _ERRORS).open("wb") as errors:
            process = subprocess.Popen(
                python_command("distrl.launch.hosts.ray_bridge"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is the launcher's
            )
        stack.callback(_end, process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            line = json.dumps({**task, "socket": str(folder / _SOCKET)})
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        cluster = RayCluster(process, folder)
        cluster.wait_for_answer(timeout)
        yield cluster


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a bridge in order, by closing its stdin, or kills it."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
