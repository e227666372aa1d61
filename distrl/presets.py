"""Experiments by name: an environment and an algorithm, with sizes that suit them."""

import dataclasses
import difflib
import math

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.a2c import A2CConfig
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.envs import suites
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, AgentConfig, Experiment, LearnerConfig
from distrl.replay.buffer import ReplayConfig
from distrl.transforms.base import Transform
from distrl.transforms.observations import ObservationNormalizer
from distrl.transforms.rewards import RewardClip, RewardNormalizer, RewardScale

AGENTS = {
    "a2c": A2CConfig,
    "ddpg": DDPGConfig,
    "dqn": DQNConfig,
    "impala": IMPALAConfig,
    "ppo": PPOConfig,
    "r2d2": R2D2Config,
    "sac": SACConfig,
    "td3": TD3Config,
}


def experiment(env: str, agent: str = "impala", seed: int = 0) -> Experiment:
    """The experiment that the command line trains unless it is told otherwise.

    Args:
      env: a name, as `distrl.envs.make` takes it.
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
    environment = suites.make(env)
    observation = environment.spec().observation
    is_pixels = np.dtype(getattr(observation, "dtype", np.float32)) == np.uint8
    if agent == "dqn":
        return _dqn(environment, is_pixels, seed)
    if agent == "r2d2":
        return _r2d2(environment, is_pixels, seed)
    if agent == "ppo":
        return _ppo(environment, is_pixels, seed)
    if agent == "a2c":
        return _a2c(environment, is_pixels, seed)
    if agent in ("ddpg", "sac", "td3"):
        return _continuous(environment, AGENTS[agent](), seed)
    config = IMPALAConfig()
    if is_pixels:
        # Pixels: an environment step costs more than its share of a batch, and frames are large.
        return Experiment(
            environment,
            dataclasses.replace(config, learning_rate=6e-4),
            ReplayConfig(max_size=32),
            ActorsConfig(num_envs=8),
            learner=LearnerConfig(batch_size=16),
            transforms=(RewardClip(1.0),),
            seed=seed,
        )
    return Experiment(environment, config, transforms=(RewardScale(0.1),), seed=seed)


def _ppo(environment: Environment, is_pixels: bool, seed: int) -> Experiment:
    """A batch is one unroll of every stream: all that one version of the parameters did."""

    def experiment(
        agent: PPOConfig, num_envs: int, unroll_length: int, *transforms: Transform
    ) -> Experiment:
        actors = ActorsConfig(num_actors=2, num_envs=num_envs)
        batch_size = actors.num_actors * num_envs
        return Experiment(
            environment,
            agent,
            ReplayConfig(unroll_length=unroll_length, max_size=2 * batch_size),
            actors,
            learner=LearnerConfig(batch_size=batch_size),
            transforms=transforms,
            seed=seed,
        )

    if is_pixels:
        # On a CPU each update of a batch adds to the time to compile: three passes, not four.
        config = PPOConfig(epochs=3, learning_rate=5e-4, clip_ratio=0.1)
        return experiment(config, 4, 128, RewardClip(1.0))
    if isinstance(environment.spec().action, dm_specs.DiscreteArray):
        return experiment(PPOConfig(), 8, 64, RewardScale(0.1))
    config = PPOConfig(epochs=10, minibatches=32, learning_rate=3e-4, entropy_cost=0.0)
    normalizers = ObservationNormalizer(), RewardNormalizer(), RewardScale(0.1)
    return experiment(config, 4, 256, *normalizers)


def _a2c(environment: Environment, is_pixels: bool, seed: int) -> Experiment:
    """As PPO's: one unroll of every stream a batch, but short, since a batch is one update."""
    actors = ActorsConfig(num_actors=2, num_envs=8)
    return Experiment(
        environment,
        A2CConfig(learning_rate=6e-4) if is_pixels else A2CConfig(),
        ReplayConfig(unroll_length=16, max_size=32),
        actors,
        learner=LearnerConfig(batch_size=16),
        transforms=(RewardClip(1.0) if is_pixels else RewardScale(0.1),),
        seed=seed,
    )


def _dqn(environment: Environment, is_pixels: bool, seed: int) -> Experiment:
    """Each step is trained on eight times; ends of unrolls shorten the n-step returns."""
    actors = ActorsConfig(num_actors=2, num_envs=8)
    learner = LearnerConfig(batch_size=8)
    if is_pixels:
        # As many updates as in the paper: one of 32 transitions every four steps. Frames of 84x84
        # in stacks of four take 2.5 GB.
        epsilon = EpsilonSchedule(end=0.02, updates=10_000)
        return Experiment(
            environment,
            DQNConfig(n_step=3, learning_rate=2e-4, target_period=1_000, epsilon=epsilon),
            ReplayConfig("uniform", 8, 10_000, 500, samples_per_insert=8, error_buffer=256),
            actors,
            learner=LearnerConfig(batch_size=4),
            transforms=(RewardClip(1.0),),
            seed=seed,
        )
    return Experiment(
        environment,
        DQNConfig(n_step=5),
        ReplayConfig("uniform", 16, 4_000, 128, samples_per_insert=8, error_buffer=256),
        actors,
        learner=learner,
        transforms=(RewardScale(0.1),),
        seed=seed,
    )


def _r2d2(environment: Environment, is_pixels: bool, seed: int) -> Experiment:
    """Each step is trained on about eight times; rewards have their own size."""
    network = NetworkConfig(hidden_sizes=(128,), activation="relu", core="lstm", core_size=128)
    config = R2D2Config(network=network)
    size = 4_000
    if is_pixels:
        config, size = dataclasses.replace(config, learning_rate=1e-4, target_period=1_000), 1_000
    return Experiment(
        environment,
        config,
        ReplayConfig(
            "prioritized", 24, size, 128, samples_per_insert=8, error_buffer=256,
            priority_exponent=0.9,
        ),
        ActorsConfig(num_actors=2, num_envs=8),
        learner=LearnerConfig(batch_size=16),
        seed=seed,
    )  # fmt: skip


def _continuous(environment: Environment, config: AgentConfig, seed: int) -> Experiment:
    """One update of 256 transitions for each environment step."""
    leaves = jax.tree.leaves(specs.struct(environment.spec().observation))
    step_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    size = min(1_000_000, 2_000_000_000 // (2 * step_bytes + 100))  # about 2 GB at most
    return Experiment(
        environment,
        config,
        ReplayConfig("uniform", 1, size, 1_000, samples_per_insert=256, error_buffer=4_096),
        ActorsConfig(num_actors=2, num_envs=4),
        learner=LearnerConfig(batch_size=256),
        seed=seed,
    )
