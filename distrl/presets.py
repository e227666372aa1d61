"""Experiments by name: an environment of EnvPool and an algorithm, with sizes that suit them."""

import dataclasses
import difflib

import numpy as np

from distrl.agents.impala import IMPALAConfig
from distrl.envs.native import NativeEnvironment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.replay.buffer import ReplayConfig

AGENTS = {"impala": IMPALAConfig}


def experiment(env: str, agent: str = "impala", seed: int = 0) -> Experiment:
    """The experiment that the command line trains unless it is told otherwise.

    Args:
      env: as EnvPool names it.
      agent: one of AGENTS.
      seed: the root of the run's seeds.

    Raises:
      ConfigError: no such environment or agent; the message has near matches.
    """
    if agent not in AGENTS:
        near = difflib.get_close_matches(agent, AGENTS, n=1)
        raise ConfigError(
            f"agent: no {agent!r}"
            + (f"; did you mean {near[0]}?" if near else f"; there is {', '.join(sorted(AGENTS))}")
        )
    environment = NativeEnvironment(env)
    config = AGENTS[agent]()
    observation = environment.spec().observation
    if np.dtype(getattr(observation, "dtype", np.float32)) == np.uint8:
        # Pixels: an environment step costs more than its share of a batch, and frames are large.
        return Experiment(
            environment,
            dataclasses.replace(config, reward_clip=1.0, reward_scale=1.0, learning_rate=6e-4),
            ReplayConfig(max_size=32),
            ActorsConfig(num_envs=8),
            learner=LearnerConfig(batch_size=16),
            seed=seed,
        )
    return Experiment(environment, config, seed=seed)
