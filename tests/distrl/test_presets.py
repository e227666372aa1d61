"""What the presets choose by environment."""

import dataclasses

import numpy as np
import pytest

import distrl
from distrl import envs, presets
from distrl.agents.impala import IMPALAConfig
from distrl.agents.ppo import PPOConfig
from distrl.errors import ConfigError
from distrl.transforms import FrameStack
from distrl.types import StepType

pytest.importorskip("envpool")


def test_the_agent_follows_the_actions():
    assert isinstance(presets.experiment("CartPole-v1").agent, IMPALAConfig)
    assert isinstance(presets.experiment("Pendulum-v1").agent, PPOConfig)


@pytest.mark.parametrize("agent", [None, "sac"])
def test_an_environment_has_the_settings_that_its_name_has(agent):
    by_name = presets.experiment("Pendulum-v1", agent, seed=3)
    given = envs.make("Pendulum-v1", num_threads=1)
    own = presets.experiment(given, agent, seed=3)
    assert own.environment is given
    assert bool(own.transforms) == (agent is None)  # PPO's; SAC has none
    assert dataclasses.replace(own, environment=by_name.environment) == by_name


def test_an_atari_environment_keeps_its_own_options():
    given = envs.make("Breakout-v5", stack_num=2)
    made = presets.experiment(given, "dqn")
    assert made.environment is given
    assert not any(isinstance(transform, FrameStack) for transform in made.transforms)


@pytest.mark.parametrize("agent", [PPOConfig(), PPOConfig])
def test_settings_are_no_name_of_an_agent(agent):
    for make in (presets.experiment, distrl.train):
        with pytest.raises(ConfigError, match=r"agent: expected a name, .* got PPOConfig.*write E"):
            make("CartPole-v1", agent)


def test_what_is_no_environment_is_refused():
    with pytest.raises(ConfigError, match="goes into PythonEnvironment"):
        presets.experiment(3, "ppo")  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", ["impala", "dqn", "r2d2"])
def test_frames_of_atari_are_stored_once(agent):
    made = presets.experiment("Breakout-v5", agent)
    assert made.environment.spec().observation.shape == (1, 84, 84)
    assert made.transforms[-1] == FrameStack(4)
    assert made.make_agent().agent.env_spec.observation.shape == (4, 84, 84)
    struct = made.only_task.trajectory_struct()
    assert made.replay.nbytes(struct) < 3.7e9


@pytest.mark.parametrize("agent", ["ppo", "r2d2"])
def test_a_lost_life_ends_returns_and_not_episodes(agent):
    """R2D2's paper has no such signal."""
    environment = presets.experiment("Breakout-v5", agent).environment
    pool = environment.make_pool(4, 4, [0, 1, 2, 3])
    try:
        pool.reset()
        rng = np.random.default_rng(0)
        lost = 0
        for _ in range(150):
            timestep = pool.step(rng.integers(4, size=4).astype(np.int32))
            inside = timestep.step_type == StepType.MID
            lost += np.count_nonzero(inside & (timestep.discount == 0))
    finally:
        pool.close()
    assert (lost > 0) == (agent == "ppo")
