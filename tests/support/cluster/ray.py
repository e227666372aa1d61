"""A real Ray cluster on virtual hosts: the head on h1, a node on every host.

    with Hosts(3) as hosts, Ray(hosts) as ray:
        program = Program(hosts, folder, *ray.flags, hosts_flag=None)

Its files are in each host's /dev/shm, and go with the hosts.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Sequence

import pytest

from tests.support.cluster.hosts import Hosts, Process

PORT = 6379
CPUS = 2
_START_S = 90.0
_CLUSTER = (
    "gcs_server",
    "raylet",
    "ray.util.client.server",
    "/ray/_private/",
    "/ray/dashboard/",
    "/ray/autoscaler/",
    "ray::DashboardAgent",  # as newer releases name them
    "ray::RuntimeEnvAgent",
)
_WORKER = ("ray::", "default_worker.py")
_OPTIONS = (
    f"--num-cpus={CPUS}", "--object-store-memory=100000000", "--disable-usage-stats",
)  # fmt: skip


class Ray:
    """Ray until the hosts are closed.

    Args:
      hosts: its nodes.
    """

    def __init__(self, hosts: Hosts):
        if importlib.util.find_spec("ray") is None:
            pytest.skip("Ray is not installed")
        self._hosts = hosts
        self.head = f"{hosts.address(hosts.names[0])}:{PORT}"
        self.flags = ("--launcher=ray", f"--ray={self.head}")
        self._files_before = {name: self._files(name) for name in hosts.names}
        for name in hosts.names:
            self.start(name)

    def start(self, host: str) -> None:
        """Starts a host's node, of the head on the first host."""
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", "--temp-dir=/dev/shm/ray"]
        which = head if host == self._hosts.names[0] else [f"--address={self.head}"]
        self._hosts.exec(
            host,
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", *which, *_OPTIONS,
                f"--node-ip-address={self._hosts.address(host)}",
            ],
            timeout=_START_S,
            env={**os.environ, "TMPDIR": "/dev/shm"},  # the daemons' too; goes with a power cut
        )  # fmt: skip

    def run(self, host: str, code: str) -> str:
        """Runs Python code on a host, connected to the cluster as `ray`; returns its output."""
        connect = f"import ray; ray.init({self.head!r}, log_to_driver=False, logging_level='ERROR')"
        done = self._hosts.exec(host, [sys.executable, "-c", f"{connect}\n{code}"])
        return done.stdout.strip()

    def groups(self, host: str) -> str:
        """Returns the states of all placement groups that are not removed."""
        return self.run(
            host,
            "from ray.util import placement_group_table\n"
            "states = [each['state'] for each in placement_group_table().values()]\n"
            "print(*[state for state in states if state != 'REMOVED'])",
        )

    def left(self, host: str) -> list[Process]:
        """Returns what runs on a host beside the cluster's own processes and idle workers."""
        return [
            each
            for each in self._hosts.processes(host)
            if not any(word in each.command for word in (*_CLUSTER, "ray::IDLE", _WORKER[1]))
        ]

    def nothing_is_left(self, hosts: Sequence[str], limit: float = 30.0) -> None:
        """Asserts that nothing but the cluster is left: no process, group or file."""
        deadline = time.monotonic() + limit
        while any(self.left(name) for name in hosts):
            left = {name: self.left(name) for name in hosts}
            assert time.monotonic() < deadline, f"left after {limit:g} s: {left}"
            time.sleep(0.1)
        assert self.groups(hosts[0]) == ""
        left_files = {name: self._files(name) - self._files_before[name] for name in hosts}
        assert not any(left_files.values()), left_files

    def _files(self, host: str) -> set[str]:
        """Returns the temporary files of a host's processes, but for the cluster's own."""
        space = self._hosts.exec(host, ["stat", "-Lc", "%i", "/proc/self/ns/pid"]).stdout.strip()
        names = self._hosts.exec(host, ["ls", "/dev/shm", "/tmp"]).stdout.split()
        return {name for name in names if name.startswith((f"distrl.{space}.", "distrl-"))}
