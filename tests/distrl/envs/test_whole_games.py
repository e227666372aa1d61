"""Scores of Atari are of whole games and their own rewards, whatever options learning has."""

import numpy as np
import pytest

from distrl import envs
from distrl.agents.a2c import A2CConfig
from distrl.config import EvaluatorConfig
from distrl.envs.whole_games import whole_games
from distrl.experiment import Experiment
from distrl.programs.pools import evaluator_pool
from distrl.testing import CountingEnvironment
from distrl.types import StepType

pytest.importorskip("envpool")

LIVES = {"episodic_life": True, "reward_clip": True}


def test_only_what_changes_returns_is_left_out():
    learned_in = envs.make("Breakout-v5", stack_num=2, **LIVES)
    whole = envs.make("Breakout-v5", stack_num=2)
    assert whole_games(learned_in) == whole
    assert whole_games(envs.Copies(learned_in, 2)) == envs.Copies(whole, 2)
    for other in (whole, envs.make("CartPole-v1"), envs.PythonEnvironment(CountingEnvironment)):
        assert whole_games(other) is other


def first_end(pool):
    """Returns the lives that are left where the first episode of a pool of one ends."""
    timestep = pool.reset()
    for _ in range(1_000):
        if timestep.step_type[0] == StepType.LAST:
            return timestep.env_info["lives"][0]
        timestep = pool.step(np.array([1], np.int32))  # starts the ball
    raise AssertionError("no episode of Breakout has ended")


def test_an_evaluator_plays_whole_games():
    environment = envs.make("Breakout-v5", stack_num=1, img_height=8, img_width=8, **LIVES)
    evaluator = EvaluatorConfig(num_evaluators=1, num_envs=1)
    experiment = Experiment(environment, A2CConfig(), evaluator=evaluator)
    pool = environment.make_pool(1, 1, [0])
    assert first_end(pool) > 0
    pool.close()
    pool = evaluator_pool(experiment, lambda line: None)
    assert first_end(pool) == 0
    pool.close()
    given = Experiment(
        environment, A2CConfig(), evaluator=evaluator, evaluation_environment=environment
    )
    pool = evaluator_pool(given, lambda line: None)
    assert first_end(pool) > 0
    pool.close()
