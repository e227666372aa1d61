"""The hosts of a Slurm job and their steps, without Slurm; the rest is in tests/cluster."""

import itertools
import os
from pathlib import Path

import pytest

from distrl.errors import ConfigError
from distrl.launch.hosts import slurm
from distrl.programs.placement import Host

# What Slurm 22.05 shows of jobs: with GPUs for all nodes; with another of its array; of two groups.
TOTAL = (
    "JobId=7 JobName=slurm.sh JOB_GRES=gpu:3 Nodes=h1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)   "
    "Nodes=h[2-3] CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:0) MinCPUsNode=1 TresPerJob=gres:gpu:4 \n"
)
TASKS = (
    "JobId=7 ArrayJobId=7 ArrayTaskId=1 Nodes=h1 CPU_IDs=0 Mem=0 GRES=gpu:a:1(IDX:1),gpu:b:2(IDX:"
    "0,2),shard:4(CNT:4) \n"
    "JobId=6 ArrayJobId=7 ArrayTaskId=0 Nodes=h1 CPU_IDs=1 Mem=0 GRES=gpu:4(IDX:0-3) \n"
)
FIRST = (
    "JobId=7 HetJobId=7 HetJobOffset=0 Nodes=h1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) MinCPUsNode=1\n"
)
SECOND = "JobId=8 HetJobId=7 HetJobOffset=1 Nodes=h[2-3] CPU_IDs=0-1 Mem=0 GRES= MinCPUsNode=2\n"
NAMES = {"h[1-3]": "h1\nh2\nh3\n", "h[2-3]": "h2\nh3\n", "h1": "h1\n"}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch):
    """Makes this process one of a job, with these variables and these answers of scontrol."""

    def make(variables: dict[str, str], **shown: str) -> None:
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

        def run(command: list[str]) -> str:
            if command[:3] == ["scontrol", "show", "hostnames"]:
                return NAMES[command[3]]
            assert command[:-1] == ["scontrol", "--details", "--oneliner", "show", "job"]
            return shown[f"job_{command[-1]}"]

        monkeypatch.setattr(slurm, "_run", run)

    return make


def asked(host: Host) -> list[str]:
    """Returns the options of a host's step up to its GPUs."""
    command = slurm.step(host, ("--mem=0",), ["daemon"])
    assert command[0] == "env" and command[-2:] == ["--mem=0", "daemon"]
    assert "--cpu-bind=none" in command
    return list(itertools.takewhile(lambda word: word != "--cpu-bind=none", command))[1:]


def test_each_node_has_the_gpus_that_are_allocated_there(job):
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-3]", "SLURM_GPUS_ON_NODE": "2"}
    job({**variables, "SLURM_JOB_CPUS_PER_NODE": "4(x2),8", "SLURM_GPUS": "4"}, job_7=TOTAL)
    hosts = slurm.hosts()
    assert hosts == (
        Host("h1", cores=4, gpus=2),
        Host("h2", cores=4, gpus=1),
        Host("h3", cores=8, gpus=1),
    )
    h1 = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=h1", "--gpus=2"]
    assert asked(hosts[0]) == h1  # a step with GPUs per node is refused here
    assert asked(Host("h1"))[-1] == "--gres=none"


def test_a_step_asks_for_all_gpus_of_its_node(job):
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h1", "SLURM_GPUS_PER_TASK": "a:1"}
    job(variables, job_7=TASKS)
    (host,) = slurm.hosts()
    assert host == Host("h1", gpus=3)
    h1 = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=h1", "--gres=gpu:3"]
    assert asked(host) == ["--unset=SLURM_GPUS_PER_TASK", *h1]


@pytest.mark.parametrize(
    "variable",
    ["SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK"],
)
def test_a_step_has_all_that_its_job_has_on_the_node(job, monkeypatch, variable):
    """Not what one task of the job has, nor the cores of the shell that the launcher runs in."""
    monkeypatch.delenv("SRUN_CPUS_PER_TASK", raising=False)
    job({"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"})
    monkeypatch.setenv(variable, "1")
    step = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=h1", "--gres=gpu:3"]
    assert asked(Host("h1", gpus=3)) == [f"--unset={variable}", *step]


def test_the_gpus_of_a_heterogeneous_job(job):
    variables = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "h1",
        "SLURM_GPUS_HET_GROUP_0": "1",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_JOB_GPUS": "0",
    }
    nodes = {"0": "h1", "1": "h[2-3]"}
    cpus = {"0": "1", "1": "2(x2)"}
    for group, job_id in (("0", "7"), ("1", "8")):
        variables[f"SLURM_JOB_ID_HET_GROUP_{group}"] = job_id
        variables[f"SLURM_JOB_NODELIST_HET_GROUP_{group}"] = nodes[group]
        variables[f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{group}"] = cpus[group]
    job(variables, job_7=FIRST + SECOND, job_8=SECOND)
    hosts = slurm.hosts()
    assert hosts == (Host("h1", cores=1, gpus=1), Host("h2", cores=2), Host("h3", cores=2))
    on = ["--nodes=1", "--ntasks=1"]
    assert asked(hosts[0]) == ["srun", "--het-group=0", *on, "--nodelist=h1", "--gpus=1"]
    assert asked(hosts[2]) == ["srun", "--het-group=1", *on, "--nodelist=h3", "--gres=none"]


@pytest.mark.parametrize("option", ["--array=0-1", "-a0-1", "-a"])
def test_the_jobs_of_an_array_would_share_one_run_folder(tmp_path: Path, option: str):
    with pytest.raises(ConfigError, match=r"^--slurm: the jobs of an --array would share one run"):
        slurm.submit(["--env=CartPole-v1"], tmp_path / "run", ["--nodes=2", option])
    assert not (tmp_path / "run").exists()


def test_slurm_replaces_nothing_in_the_name_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(slurm, "_run", " ".join)  # the command in place of the job's id
    command = slurm.submit(["--env=CartPole-v1"], tmp_path / "50%j", ["--nodes=2"])
    assert f" --output={tmp_path}/50%%j/slurm.log " in command
    assert command.endswith(f" {tmp_path}/50%j/{slurm.SUBMITTED[0]}")
