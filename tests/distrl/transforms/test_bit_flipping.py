"""The hindsight example: its environment's rules, and that hindsight is what makes it learn."""

import dataclasses
import importlib.util
import pathlib
import threading

import dm_env
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.exploration import EpsilonSchedule
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess


@pytest.fixture(scope="module")
def example():
    path = pathlib.Path(__file__).parents[3] / "examples" / "bit_flipping.py"
    spec = importlib.util.spec_from_file_location("bit_flipping", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_by_hand(example):
    env = example.BitFlipping(seed=3, num_bits=6)
    successes = set()
    for episode in range(20):
        step = env.reset()
        assert step.first() and env.env_info()["success"] == -1
        flips = np.flatnonzero(
            step.observation["achieved_goal"] != step.observation["desired_goal"]
        )
        assert len(flips) > 0
        # Straight to the goal; or the last flip is not made, but another one back and forth.
        solve = episode % 2 == 0
        if not solve:
            flips = np.resize(flips[:1], 6 + len(flips) % 2)[:6]
        for number, bit in enumerate(flips, 1):
            before = step.observation["achieved_goal"]
            step = env.step(np.int32(bit))
            after = step.observation["achieved_goal"]
            assert np.flatnonzero(before != after).tolist() == [bit]
            assert step.reward == example.reward(
                jnp.asarray(after), step.observation["desired_goal"]
            )
            if solve:
                assert step.last() == (number == len(flips))
            elif step.last():
                break
        if solve:
            assert (step.reward, step.discount, env.env_info()["success"]) == (0, 0, 1)
        elif env.env_info()["success"] == 0:
            assert (step.step_type, step.reward, step.discount) == (dm_env.StepType.LAST, -1, 1)
            assert number == 6
        successes.add(int(env.env_info()["success"]))
    assert successes == {0, 1}


@pytest.mark.full
def test_hindsight_learns_what_the_same_agent_without_it_does_not(example):
    """8 bits: nearly all of the episodes succeed, against three in a hundred."""
    share = {}
    for hindsight in (True, False):
        experiment = example.experiment(hindsight, num_bits=8)
        agent = dataclasses.replace(
            experiment.agent, learning_rate=4e-3, epsilon=EpsilonSchedule(1.0, 0.02, 200)
        )
        replay = dataclasses.replace(experiment.replay, samples_per_insert=8)
        parts = SingleProcess(dataclasses.replace(experiment, agent=agent, replay=replay))
        (task,) = parts.tasks.values()
        try:
            while task.learner.version < 550:
                parts.run_once()
                if task.learner.version == 450:
                    parts.actor.take_report()
            episodes = parts.actor.take_report()["episodes"]
        finally:
            parts.actor.close()
        share[hindsight] = np.mean([episode[0] > -8 for episode in episodes])
    assert share[True] > 0.9
    assert share[False] < 0.2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_example_reaches_its_goal_only_with_hindsight(example, seed):
    """15 bits. The goal is a mean return that needs 0.9 of the episodes to succeed."""
    reached = {}
    for hindsight in (True, False):
        experiment = dataclasses.replace(example.experiment(hindsight), seed=seed)
        _, reached[hindsight] = single_process(experiment, stop=threading.Event())
    assert reached == {True: True, False: False}
