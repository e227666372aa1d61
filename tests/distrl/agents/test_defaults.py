"""Algorithms bring their own defaults: an experiment needs no more than environment and agent."""

import dataclasses

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import envs, presets
from distrl.agents.defaults import Defaults, defaults_of
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec

CONTINUOUS = ("ddpg", "sac", "td3")


@pytest.mark.parametrize("agent", sorted(presets.AGENTS))
def test_an_experiment_by_hand_has_the_parts_of_the_preset(agent):
    env = "Pendulum-v1" if agent in CONTINUOUS else "CartPole-v1"
    preset = presets.experiment(env, agent)
    made = Experiment(envs.make(env), presets.AGENTS[agent]())
    assert (made.replay, made.actors, made.learner) == (
        preset.replay,
        preset.actors,
        preset.learner,
    )
    assert made.transforms == ()  # what the agent sees changes only by what is given


@pytest.mark.parametrize("agent", sorted(presets.AGENTS))
@pytest.mark.parametrize("batch_size", [None, 8, 512])
@pytest.mark.parametrize("streams", [(1, 1), (8, 32)])
def test_other_parts_fit_the_given_ones(agent, batch_size, streams):
    env = envs.make("Pendulum-v1" if agent in CONTINUOUS else "CartPole-v1")
    actors = ActorsConfig(*streams)
    given = {"actors": actors}
    if batch_size is not None:
        given["learner"] = LearnerConfig(batch_size)
    config = presets.AGENTS[agent]()
    if agent == "ppo":  # its minibatches must divide the batch, whatever the defaults
        config = dataclasses.replace(config, minibatches=1)
    made = Experiment(env, config, **given)  # it is checked when made
    assert made.actors == actors
    assert batch_size is None or made.learner == LearnerConfig(batch_size)


@pytest.mark.parametrize("agent", ["dqn", "r2d2", *CONTINUOUS])
@pytest.mark.parametrize("size", [1_000, 1_000_000, 600_000_000])
def test_a_table_of_large_observations_can_be_sampled(agent, size):
    """Its `max_size` is cut to the bytes that it may take: all are checked when made."""
    action = dm_specs.DiscreteArray(2)
    if agent in CONTINUOUS:
        action = dm_specs.BoundedArray((1,), np.float32, -1, 1)
    spec = EnvironmentSpec(dm_specs.Array((size,), np.float32), action)
    replay = defaults_of(presets.AGENTS[agent](), spec).replay
    small = {"dqn": 26, "r2d2": 17}.get(agent, 124)
    wanted = 128 if agent in ("dqn", "r2d2") else presets.AGENTS[agent].RANDOM_STEPS
    least = {1_000: wanted, 1_000_000: small, 600_000_000: 1}[size]
    assert replay.min_size_to_sample == least
    assert replay.max_size >= 2 * least or replay.max_size == 1


def test_sizes_are_for_the_streams_of_all_agents():
    pytest.importorskip("mpe2")
    made = presets.experiment("mpe2:simple_spread_v3", "ppo")  # three agents
    streams = 3 * made.actors.num_streams
    assert (made.learner.batch_size, made.replay.max_size) == (streams, 2 * streams)


def test_what_is_given_wins():
    replay = ReplayConfig("uniform", 5, 1_000, 16)
    made = Experiment(envs.make("CartPole-v1"), DQNConfig(), replay)
    assert made.replay is replay
    assert made.learner == LearnerConfig(batch_size=8)
    changed = dataclasses.replace(made, agent=IMPALAConfig(), replay=ReplayConfig())
    assert changed.learner == made.learner


def test_an_agent_without_defaults_gets_those_of_the_parts():
    class Config:
        """Settings from a user's own file."""

        make = IMPALAConfig().make

    made = Experiment(envs.make("CartPole-v1"), Config(), actors=ActorsConfig(num_envs=8))
    plain = Defaults()
    assert (made.replay, made.learner) == (plain.replay, plain.learner)
    assert made.actors == ActorsConfig(num_envs=8)


def test_an_agent_without_defaults_that_learns_from_whole_episodes_gets_them():
    class WholeConfig:
        """Settings from a user's own file."""

        whole_episodes = True
        make = IMPALAConfig().make

    actors, learner = ActorsConfig(num_envs=8), LearnerConfig(batch_size=5)
    made = Experiment(envs.make("CartPole-v1"), WholeConfig(), actors=actors, learner=learner)
    assert made.replay == ReplayConfig(unroll_length=1_000, max_size=32, whole_episodes=True)
    with pytest.raises(ConfigError, match="False cuts episodes, and Whole needs all rewards"):
        dataclasses.replace(made, replay=ReplayConfig(unroll_length=1_000, max_size=64))
