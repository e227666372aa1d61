"""GPUs and threads of each node of a program, as environment variables for `local_resources`."""

import glob
import math
import os

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.groups import GROUPS, INFERENCER, LEARNER, NodeGroup

Env = dict[str, str]

_THREADS = "PJRT_NPROC"  # of JAX's client for the CPU
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # for products, and of some other code
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MEMORY_SHARE = 0.75  # of a GPU: what JAX takes at its start unless told otherwise


def node_environments(experiment: Experiment, topology: str) -> dict[str, Env]:
    """Returns environment variables by group, and by name for nodes that differ from their group.

    A node sees a GPU only where the experiment declares one for its group
    (`learner.num_gpus`, `inference.num_gpus`), counted from the user's own
    `CUDA_VISIBLE_DEVICES` where it is set. The learner sees all of its GPUs, an inferencer one,
    which it shares where there are fewer GPUs than inferencers.

    Raises:
      ConfigError: more GPUs are declared than there are, or they are declared and hidden.
    """
    of_learner, of_inferencers = _take_gpus(experiment, topology)
    environments = {name: _without_gpu(group) for name, group in GROUPS.items()}
    if of_learner:
        environments[LEARNER.name] = _with_gpus(*of_learner)
    if of_inferencers:
        count = experiment.inference.num_inferencers
        users = math.ceil(count / len(of_inferencers))
        for index in range(count):
            environment = _with_gpus(of_inferencers[index % len(of_inferencers)])
            if users > 1 and _MEMORY not in os.environ:
                environment[_MEMORY] = f"{_MEMORY_SHARE / users:.2f}"
            environments[f"{INFERENCER.name}/{index}"] = environment
    return environments


def describe_gpus(environments: dict[str, Env]) -> str:
    """Returns one line that says which nodes have which GPUs; empty if none has any."""
    assigned = [
        f"{name} {environment['CUDA_VISIBLE_DEVICES']}"
        for name, environment in environments.items()
        if environment["CUDA_VISIBLE_DEVICES"]
    ]
    return f"GPUs: {'; '.join(assigned)}; no other node sees a GPU" if assigned else ""


def _take_gpus(experiment: Experiment, topology: str) -> tuple[list[str], list[str]]:
    """Returns the learner's GPUs and the inferencers'."""
    wanted = {"learner": LEARNER.num_gpus(experiment)}
    if topology == "light_env":
        wanted["inference"] = INFERENCER.num_gpus(experiment)
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
    # Named, or JAX silently takes the CPU if it is not built for GPUs.
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "JAX_PLATFORMS": "cuda,cpu"}


def _without_gpu(group: NodeGroup) -> Env:
    environment = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    if group.one_thread:
        flags = os.environ.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} {_ONE_THREAD}".strip()
        environment[_THREADS] = os.environ.get(_THREADS, "1")
    return environment


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:  # CUDA counts what it finds from 0, whatever the files' numbers are
        return [str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    gpus: list[str] = []
    for name in (part.strip() for part in mask.split(",")):
        if name.startswith("-") or name == "NoDevFiles":  # for CUDA, the mask ends there
            break
        if name:
            gpus.append(name)
    return gpus
