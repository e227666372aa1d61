"""What each node of a program gets of the machine: GPUs, threads. For `local_resources`."""

import glob
import math
import os

from distrl.errors import ConfigError
from distrl.experiment import Experiment

Env = dict[str, str]

# Small networks: XLA's threads would take the cores that other nodes act on.
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
_GROUPS = ("replay", "monitor", "learner", "inferencer", "relay", "actor", "evaluator")
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MEMORY_SHARE = 0.75  # of a GPU: what JAX takes at its start unless told otherwise


def node_environments(experiment: Experiment, topology: str) -> dict[str, Env]:
    """Environment variables by group, and by name ("inferencer/0") of nodes that differ from it.

    A node sees a GPU only where the experiment declares one for its group
    (`learner.num_gpus`, `inference.num_gpus`), counted from the user's own
    `CUDA_VISIBLE_DEVICES` where it is set. The learner sees all of its GPUs, an inferencer one,
    which it shares where there are fewer GPUs than inferencers.

    Raises:
      ConfigError: more GPUs are declared than there are, or they are declared and hidden.
    """
    mine, shared = _take_gpus(experiment, topology)
    environments = {group: _without_gpu(group) for group in _GROUPS}
    if mine:
        environments["learner"] = _with_gpus(*mine)
    if shared:
        count = experiment.inference.num_inferencers
        users = math.ceil(count / len(shared))
        for index in range(count):
            own = _with_gpus(shared[index % len(shared)])
            if users > 1 and _MEMORY not in os.environ:
                own[_MEMORY] = f"{_MEMORY_SHARE / users:.2f}"
            environments[f"inferencer/{index}"] = own
    return environments


def describe_gpus(environments: dict[str, Env]) -> str:
    """Which nodes have which GPUs, in one line; empty where none has any."""
    having = [
        f"{name} {environment['CUDA_VISIBLE_DEVICES']}"
        for name, environment in environments.items()
        if environment["CUDA_VISIBLE_DEVICES"]
    ]
    return f"GPUs: {'; '.join(having)}; no other node sees one" if having else ""


def _take_gpus(experiment: Experiment, topology: str) -> tuple[list[str], list[str]]:
    """The learner's GPUs and the inferencers'."""
    wanted = {"learner": experiment.learner.num_gpus}
    if topology == "light_env":
        wanted["inference"] = experiment.inference.num_gpus
    asked = ", ".join(f"{part}.num_gpus={count}" for part, count in wanted.items() if count)
    visible = visible_gpus()
    if sum(wanted.values()) > len(visible):
        raise ConfigError(
            f"GPUs declared: {asked}; this machine shows {len(visible)} "
            f"({','.join(visible) or 'none'})"
        )
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if asked and platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        raise ConfigError(f"GPUs declared: {asked}; JAX_PLATFORMS={platforms} hides them; unset it")
    count = wanted["learner"]
    return visible[:count], visible[count : sum(wanted.values())]


def _with_gpus(*gpus: str) -> Env:
    # Named, or JAX goes on with the CPU where it is not built for GPUs.
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "JAX_PLATFORMS": "cuda,cpu"}


def _without_gpu(group: str) -> Env:
    environment = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    if group in ("actor", "inferencer", "relay", "evaluator"):
        flags = os.environ.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} {_ONE_THREAD}".strip()
    return environment


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:  # CUDA counts from 0 what it finds, whatever the files' numbers are
        return [str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    gpus: list[str] = []
    for name in (part.strip() for part in mask.split(",")):
        if name.startswith("-") or name == "NoDevFiles":  # for CUDA, the mask ends there
            break
        if name:
            gpus.append(name)
    return gpus
