"""What each group of a program gets of the machine: GPUs, threads. For `local_resources`."""

import glob
import os

from distrl.errors import ConfigError
from distrl.experiment import Experiment

Env = dict[str, str]

# Small networks: XLA's threads would take the cores that other nodes act on.
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def node_environments(experiment: Experiment, topology: str) -> dict[str, Env]:
    """Environment variables of every group's nodes, by group.

    A node sees a GPU only where the experiment declares one for its group
    (`learner.num_gpus`, `inference.num_gpus`), counted from the user's own
    `CUDA_VISIBLE_DEVICES` where it is set.

    Raises:
      ConfigError: more GPUs are declared than there are.
    """
    wanted = {"learner": experiment.learner.num_gpus}
    if topology == "light_env":
        wanted["inferencer"] = experiment.inference.num_gpus
    visible = _visible_gpus()
    if sum(wanted.values()) > len(visible):
        asked = ", ".join(f"{group} {count}" for group, count in wanted.items() if count)
        raise ConfigError(
            f"GPUs declared: {asked}; this machine shows {len(visible)} "
            f"({','.join(visible) or 'none'})"
        )
    environments: dict[str, Env] = {}
    for group in ("replay", "monitor", "learner", "inferencer", "relay", "actor", "evaluator"):
        count = wanted.get(group, 0)
        mine, visible = visible[:count], visible[count:]
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(mine)}
        if not mine:
            environment["JAX_PLATFORMS"] = "cpu"
            if group in ("actor", "inferencer", "relay", "evaluator"):
                flags = os.environ.get("XLA_FLAGS", "")
                environment["XLA_FLAGS"] = f"{flags} {_ONE_THREAD}".strip()
        environments[group] = environment
    return environments


def _visible_gpus() -> list[str]:
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        return [gpu for gpu in mask.split(",") if gpu.strip()]
    return [path.removeprefix("/dev/nvidia") for path in sorted(glob.glob("/dev/nvidia[0-9]*"))]
