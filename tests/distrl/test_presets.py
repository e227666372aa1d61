"""What the presets choose by environment."""

import numpy as np
import pytest

from distrl import presets
from distrl.agents.impala import IMPALAConfig
from distrl.agents.ppo import PPOConfig
from distrl.transforms import FrameStack
from distrl.types import StepType

pytest.importorskip("envpool")


def test_the_agent_follows_the_actions():
    assert isinstance(presets.experiment("CartPole-v1").agent, IMPALAConfig)
    assert isinstance(presets.experiment("Pendulum-v1").agent, PPOConfig)


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
