"""GPUs and threads of each node of a program, as environment variables for `local_resources`."""

import collections
import glob
import importlib.util
import itertools
import os
from collections.abc import Sequence

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.groups import (
    GROUPS,
    INFERENCER,
    LEARNER,
    NO_GPU,
    NodeGroup,
    num_gpus_by_node,
    num_gpus_together,
)

Env = dict[str, str]

_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")  # JAX's builds for NVIDIA GPUs
_THREADS = "PJRT_NPROC"  # number of threads of JAX's client for the CPU
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # for matrix products and some other code
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MEMORY_SHARE = 0.75  # the share of a GPU's memory that JAX takes at its start by default


def node_environments(
    experiment: Experiment, topology: str, has_gpus: bool = True
) -> dict[str, Env]:
    """Returns environment variables by group, and by name for nodes that differ from their group.

    A node sees a GPU only where the experiment declares one for its group
    (`learner.num_gpus`, `inference.num_gpus`), counted from the user's own
    `CUDA_VISIBLE_DEVICES` where it is set. A learner sees all of its GPUs, an inferencer one, which
    it shares where there are fewer GPUs than inferencers, or with `inference.share_gpus`.

    Args:
      experiment: the experiment.
      topology: its topology's name.
      has_gpus: whether the machine is the one whose nodes get the GPUs.

    Raises:
      ConfigError: more GPUs are declared than there are, or they are declared and hidden.
    """
    environments = {name: _without_gpu(group) for name, group in GROUPS.items()}
    nodes = _take_gpus(experiment, topology == "light_env") if has_gpus else {}
    users = collections.Counter(gpu for gpus in nodes.values() for gpu in gpus)
    for name, gpus in nodes.items():
        environments[name] = _with_gpus(gpus)
        most = max(users[gpu] for gpu in gpus)
        if most > 1 and _MEMORY not in os.environ:
            environments[name][_MEMORY] = f"{_MEMORY_SHARE / most:.2f}"
    return environments


def process_environment(experiment: Experiment | None) -> Env:
    """Returns environment variables of a process that is no node, which JAX reads.

    JAX has GPUs as in a node: those that are declared for the learner. A user's `JAX_PLATFORMS`
    holds where none is. What else runs there, such as a simulator in PyTorch, sees the user's own.

    Args:
      experiment: the experiment that is trained in this process; None: it only plays.

    Raises:
      ConfigError: see `node_environments`.
    """
    gpus = [] if experiment is None else [*_take_gpus(experiment, light=False).values()]
    if gpus:
        return _with_gpus([name for each in gpus for name in each])
    return {} if "JAX_PLATFORMS" in os.environ else {"JAX_PLATFORMS": NO_GPU["JAX_PLATFORMS"]}


def unused_gpus(experiment: Experiment, light: bool) -> str:
    """Returns a line for a user whose GPUs nothing uses; empty where JAX is not built for them.

    Args:
      experiment: what is trained.
      light: whether inferencers serve the actors.
    """
    if num_gpus_together(experiment, light) or "JAX_PLATFORMS" in os.environ:
        return ""
    if not visible_gpus() or not any(map(importlib.util.find_spec, _PLUGINS)):
        return ""
    part = f"policies.{next(iter(experiment.learned))}." if experiment.policies else ""
    flag = f"--config.{part}learner.num_gpus=1"
    return f"no part uses this machine's GPU; {flag} gives it to the learner"


def describe_gpus(environments: dict[str, Env]) -> str:
    """Returns one line that says which nodes have which GPUs; empty if none has any."""
    assigned = [
        f"{name} {environment['CUDA_VISIBLE_DEVICES']}"
        for name, environment in environments.items()
        if environment["CUDA_VISIBLE_DEVICES"]
    ]
    return f"GPUs: {'; '.join(assigned)}; no other node sees a GPU" if assigned else ""


def _take_gpus(experiment: Experiment, light: bool) -> dict[str, list[str]]:
    """Returns, by name, the nodes that get GPUs. Args: light: whether there are inferencers."""
    of_learners, inference = LEARNER.num_gpus(experiment), experiment.inference
    declared = {"learner.num_gpus": of_learners}
    if light:
        declared["inference.num_gpus"] = INFERENCER.num_gpus(experiment)
    asked = ", ".join(f"{name}={count}" for name, count in declared.items() if count)
    visible, wanted = visible_gpus(), num_gpus_together(experiment, light)
    if wanted > len(visible):
        fits = len(visible) >= max(declared.values())
        share = "; inference.share_gpus=True lets the services use the learner's" if fits else ""
        raise ConfigError(
            f"GPUs declared: {asked}; this machine shows {len(visible)} "
            f"({','.join(visible) or 'none'}){share}"
        )
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if asked and platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        raise ConfigError(f"GPUs declared: {asked}; JAX_PLATFORMS={platforms} hides them; unset it")
    first = 0 if inference.share_gpus else of_learners
    services = itertools.cycle(visible[first : first + inference.num_gpus])
    learners = iter(visible)
    return {
        node: list(itertools.islice(learners if node.startswith(LEARNER.name) else services, count))
        for node, count in num_gpus_by_node(experiment, light).items()
    }


def _with_gpus(gpus: Sequence[str]) -> Env:
    # Named, or JAX silently takes the CPU if it is not built for GPUs.
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "JAX_PLATFORMS": "cuda,cpu"}


def _without_gpu(group: NodeGroup) -> Env:
    environment = dict(NO_GPU)
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
