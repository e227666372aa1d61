"""Algorithms bring their own defaults: an experiment needs no more than environment and agent."""

import dataclasses

import pytest

from distrl import envs, presets
from distrl.agents.defaults import Defaults
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.experiment import Experiment
from distrl.replay.config import ReplayConfig

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
