"""A real Slurm on virtual hosts: the controller on h1, a node on every host.

    with Hosts(3) as hosts, Slurm(hosts) as slurm:
        slurm.exec("h1", ["srun", "-N3", "hostname"])

Slurm holds a job that it requeues for two minutes; `start_now(job)` spares a test the wait. cgroups
are not used, so a job is not held to the cores and the memory that it asked for.
"""

import datetime
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.machines import find_tools

PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
}
_UP_S = 30.0
_LOOK_S = 0.1
_HELD = datetime.timedelta(seconds=10)  # a job that is not to start sooner is held
_CONFIG = """
ClusterName=virtual
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=1,bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
GresTypes=gpu
SlurmdTimeout={node_timeout}
MessageTimeout=10
KillWait={kill_wait}
InactiveLimit=0
JobRequeue=1
NodeName={nodes} CPUs={cpus} CoresPerSocket={cpus} RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm until `close()`, or until the hosts are closed.

    Args:
      hosts: its nodes.
      cpus: how many each node says it has.
      gpus: likewise; Slurm passes on their indices, but there is nothing behind them.
      node_timeout: seconds until a silent node is down and its jobs are requeued.
      kill_wait: seconds between SIGTERM and SIGKILL for a job that is to end.
    """

    def __init__(
        self,
        hosts: Hosts,
        cpus: int = 4,
        gpus: int = 2,
        node_timeout: int = 10,
        kill_wait: int = 10,
    ):
        self._tools = find_tools(PACKAGES)
        self._hosts = hosts
        self._folder = hosts.folder / "slurm"
        (self._folder / "state").mkdir(parents=True)
        (self._folder / "munge.key").write_bytes(os.urandom(1024))
        (self._folder / "munge.key").chmod(0o400)
        self.config = self._folder / "slurm.conf"
        self.config.write_text(
            _CONFIG.format(
                controller=hosts.names[0],
                folder=self._folder,
                nodes=",".join(hosts.names),
                cpus=cpus,
                gpus=gpus,
                node_timeout=node_timeout,
                kill_wait=kill_wait,
            )
        )
        devices = [self._folder / f"gpu{index}" for index in range(gpus)]
        for device in devices:
            os.mknod(device, stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        (self._folder / "gres.conf").write_text(
            "".join(f"Name=gpu File={device}\n" for device in devices)
        )
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        for host in hosts.names:
            (self._folder / host).mkdir()
            self._start_munge(host)
        self.exec(hosts.names[0], [self._tools["slurmctld"]])
        for host in hosts.names:
            self.exec(host, [self._tools["slurmd"], "-N", host])
        self.await_idle()

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the jobs; the servers end with their hosts."""
        if self._hosts.is_up(self._hosts.names[0]):
            self.exec(self._hosts.names[0], ["scancel", "--user=root"], check=False)

    @property
    def environ(self) -> dict[str, str]:
        """What Slurm's commands need, beside this process's environment."""
        return {"SLURM_CONF": str(self.config)}

    def exec(self, host: str, command: Sequence[str | Path], **options: Any) -> Any:
        """As `Hosts.exec`, with what Slurm's commands need."""
        return self._hosts.exec(host, command, env={**os.environ, **self.environ}, **options)

    def popen(self, host: str, command: Sequence[str | Path], **options: Any) -> Any:
        """As `Hosts.popen`, likewise."""
        return self._hosts.popen(host, command, env={**os.environ, **self.environ}, **options)

    def boot(self, host: str) -> None:
        """Boots a host that was powered off, and its node with it."""
        self._hosts.boot(host)
        self._start_munge(host)
        if host == self._hosts.names[0]:
            self.exec(host, [self._tools["slurmctld"]])
        self.exec(host, [self._tools["slurmd"], "-N", host])

    def await_idle(self, limit: float = _UP_S) -> None:
        """Waits until every node that is up waits for jobs."""
        wanted = {name for name in self._hosts.names if self._hosts.is_up(name)}
        deadline = time.monotonic() + limit
        while True:
            listed = self.exec(
                self._hosts.names[0], ["sinfo", "-hN", "-o", "%N %T %E"], check=False
            )
            idle = {line.split()[0] for line in listed.stdout.splitlines() if " idle " in line}
            if wanted <= idle:
                return
            assert time.monotonic() < deadline, (
                f"Slurm: {', '.join(sorted(wanted - idle))} not idle in {limit:g} s\n"
                f"{listed.stdout}{listed.stderr}{self.log()}"
            )
            time.sleep(_LOOK_S)

    def state(self, job: int) -> str:
        """RUNNING, PENDING, COMPLETED, ...; empty once the job is forgotten."""
        return self._shown(job).get("JobState", "")

    def await_state(self, job: int, state: str, limit: float = _UP_S, now: bool = False) -> None:
        """Waits until a job's state is `state`; `now` does not let a requeued job be held."""
        deadline = time.monotonic() + limit
        while (found := self.state(job)) != state:
            if now:
                self.start_now(job)
            assert time.monotonic() < deadline, (
                f"Slurm: job {job} is {found or 'forgotten'}, not {state}, after {limit:g} s\n"
                f"{self.log()}"
            )
            time.sleep(_LOOK_S)

    def start_now(self, job: int) -> None:
        """Lets a requeued job start in two seconds. While its last life ends, that does not hold.

        Sooner, a node may refuse it: what it revoked, it revoked for the whole second.
        """
        shown = self._shown(job)
        eligible = shown.get("EligibleTime", "Unknown")
        if shown.get("JobState") != "PENDING" or eligible == "Unknown":
            return
        if datetime.datetime.fromisoformat(eligible) - datetime.datetime.now() > _HELD:
            command = ["scontrol", "update", f"JobId={job}", "StartTime=now+2"]
            self.exec(self._hosts.names[0], command, check=False)

    def _shown(self, job: int) -> dict[str, str]:
        command = ["scontrol", "-o", "show", "job", str(job)]
        shown = self.exec(self._hosts.names[0], command, check=False)
        return dict(word.split("=", 1) for word in shown.stdout.split() if "=" in word)

    def log(self) -> str:
        """The controller's last lines."""
        path = self._folder / "slurmctld.log"
        return "\n".join(path.read_text().splitlines()[-20:]) if path.exists() else ""

    def _start_munge(self, host: str) -> None:
        self._hosts.exec(host, ["mkdir", "-m", "755", "/run/munge"])
        # Its key must be in a folder that no one else can write.
        self._hosts.exec(
            host, ["install", "-m", "400", self._folder / "munge.key", "/run/munge/key"]
        )
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}=/run/munge/{file}" for option, file in files.items()]
        self._hosts.exec(host, [self._tools["munged"], *options])
