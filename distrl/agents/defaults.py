"""Settings of an experiment's other parts that suit an algorithm."""

import dataclasses
import math
from typing import Any, Protocol

import jax
import numpy as np

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.modules import images
from distrl.config import ActorsConfig, LearnerConfig
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec

FRAMES = 4
"""Frames in a stack of the presets for Atari (Mnih et al. 2015)."""

NORMALIZERS = ("observation_normalizer", "reward_normalizer", "reward_scale")
"""Transforms for continuous control, instead of VecNormalize of openai/baselines and
rl-baselines3-zoo, which divides rewards by the deviation of discounted returns."""


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Parts of an experiment that suit an algorithm and each other.

    Attributes:
      actors, learner, replay: the parts.
      transforms: names of transforms, as `distrl.transforms.by_name` takes them. Presets use them;
        an `Experiment` without transforms has none.
    """

    actors: ActorsConfig = ActorsConfig()
    learner: LearnerConfig = LearnerConfig()
    replay: ReplayConfig = ReplayConfig()
    transforms: tuple[str, ...] = ()


class AlgorithmConfig(Protocol):
    """An algorithm's settings that bring defaults for the rest of an experiment."""

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "AlgorithmConfig":
        """Returns settings that suit an environment, for `distrl train --agent=...`."""

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `defaults_of`."""

    def make(self, env_spec: EnvironmentSpec) -> Agent:
        """Returns the agent. Raises ConfigError if it does not suit the environment."""


def defaults_of(
    agent: Any,
    env_spec: EnvironmentSpec,
    actors: ActorsConfig | None = None,
    learner: LearnerConfig | None = None,
) -> Defaults:
    """Returns the parts of an experiment that suit an algorithm and those that are given.

    Args:
      agent: the algorithm's settings; those without `defaults` get the parts' own defaults, or a
        queue of whole episodes if they learn from such.
      env_spec: spec of the environment, before transforms.
      actors: the actors, if given: they are kept, and the other parts are sized for them.
      learner: the learner, likewise.
    """
    if hasattr(agent, "defaults"):
        return agent.defaults(env_spec, actors, learner)
    actors, learner = actors or ActorsConfig(), learner or LearnerConfig()
    if getattr(agent, "whole_episodes", False):
        return Defaults(actors, learner, episode_queue(actors, learner))
    return Defaults(actors, learner)


def lost_ratio(
    agent: Any, env_spec: EnvironmentSpec, replay: ReplayConfig, learner: LearnerConfig
) -> str | None:
    """Returns a warning if an algorithm's number of samples for each insert was dropped.

    With nodes of their own, the actors then insert as fast as they can, and how many updates a
    learner makes of their steps depends on its speed.
    """
    if replay.table == "queue" or replay.samples_per_insert is not None:
        return None
    if learner.every_unrolls is not None or learner.every_steps is not None:
        return None
    usual = defaults_of(agent, env_spec, None, learner).replay.samples_per_insert
    if usual is None:
        return None
    name = type(agent).__name__.removesuffix("Config")
    return (
        f"replay.samples_per_insert is None, so that actors do not wait for the learner: it may "
        f"make far fewer updates than with {name}'s default, {usual:g}; to keep the algorithm's "
        "replay settings, change those that the experiment has: docs/replay.md"
    )


def has_pixels(env_spec: EnvironmentSpec) -> bool:
    """Whether an observation has an image of at least 36x36 pixels, by itself or among others.

    Small images, such as the cells of a grid, cost little: the settings for vectors suit them.
    """
    return images.has_large(env_spec.observation)


def has_grid(env_spec: EnvironmentSpec) -> bool:
    """Whether an observation has an image, but none as large as `has_pixels` means: MiniGrid's."""
    return images.has_any(env_spec.observation) and not has_pixels(env_spec)


def has_symbols(env_spec: EnvironmentSpec) -> bool:
    """Whether every image of an observation is a grid of symbols, which become one-hot."""
    leaves = jax.tree.leaves(env_spec.observation, is_leaf=specs.is_spec)
    return all(images.symbol_values(leaf) for leaf in leaves if images.is_image(leaf))


def is_discrete(env_spec: EnvironmentSpec) -> bool:
    """Whether actions are choices among a few: no part of them is continuous."""
    leaves = jax.tree.leaves(env_spec.action, is_leaf=specs.is_spec)
    return all(np.issubdtype(leaf.dtype, np.integer) for leaf in leaves)


def step_bytes(env_spec: EnvironmentSpec) -> int:
    """Returns the bytes of one observation."""
    leaves = jax.tree.leaves(specs.struct(env_spec.observation))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def unrolls_within(max_size: int, env_spec: EnvironmentSpec, unroll_length: int) -> int:
    """Returns `max_size` unrolls, or as many as fit into about 3.6 GB if that is less.

    With pixels it leaves room for the frames before an unroll, which a `FrameStack` keeps with it.
    """
    steps = unroll_length + 1 + (FRAMES - 1 if has_pixels(env_spec) else 0)
    return min(max_size, 3_600_000_000 // (steps * (step_bytes(env_spec) + 20)))


def reward_transforms(env_spec: EnvironmentSpec) -> tuple[str, ...]:
    """Returns the transforms that suit algorithms which learn values from rewards of any size."""
    if has_pixels(env_spec):
        return ("reward_clip",)
    if has_grid(env_spec):  # rewards are in [0, 1], once in an episode
        return ()
    return ("reward_scale",) if is_discrete(env_spec) else NORMALIZERS


def queue(actors: ActorsConfig, learner: LearnerConfig, unroll_length: int) -> ReplayConfig:
    """Returns a queue of two batches, or of two unrolls of every stream if that is more."""
    size = 2 * max(learner.batch_size, actors.num_streams)
    return ReplayConfig(unroll_length=unroll_length, max_size=size)


def episode_queue(actors: ActorsConfig, learner: LearnerConfig) -> ReplayConfig:
    """Returns a queue of whole episodes of at most 1,000 transitions, as large as `queue`'s."""
    return dataclasses.replace(queue(actors, learner, 1_000), whole_episodes=True)


def sampled(
    actors: ActorsConfig,
    learner: LearnerConfig,
    table: str,
    *,
    unroll_length: int,
    max_size: int,
    min_size_to_sample: int,
    samples_per_insert: int,
    error_buffer: int,
    priority_exponent: float = ReplayConfig.priority_exponent,
) -> ReplayConfig:
    """Returns the config of a table to sample from, whose error buffer has room for all streams.

    A table that large observations have made small is sampled once it is half full, at the latest.

    Args:
      actors: the actors, which insert.
      learner: the learner, which samples.
      table: "uniform" or "prioritized".
      error_buffer: the least error buffer.
      unroll_length, max_size, min_size_to_sample, samples_per_insert, priority_exponent: as in
        `ReplayConfig`.
    """
    max_size = max(1, max_size)
    room = learner.batch_size + samples_per_insert * actors.num_streams
    return ReplayConfig(
        table,
        unroll_length,
        max_size,
        min(min_size_to_sample, max(1, max_size // 2)),
        samples_per_insert=samples_per_insert,
        error_buffer=max(error_buffer, room),
        priority_exponent=priority_exponent,
    )
