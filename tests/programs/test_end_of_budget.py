"""One process: all that was made within a budget is learned from, the last step too."""

import csv
import threading

import gymnasium
import numpy as np
import pytest
from dm_env import specs as dm_specs
from gymnasium import spaces

from distrl.agents.reinforce import ReinforceConfig
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.simulator import Simulator
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.programs.single_process import single_process
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingAgents, CountingEnvironment

LENGTH = 5  # of the episodes


class Fives(gymnasium.Env):
    observation_space = spaces.Box(0, LENGTH, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == LENGTH, False, {}


class LateFives(Simulator):
    """`Fives` whose rewards are known two steps later, or at the episode's end."""

    reward_delay = 2

    def reset_simulator(self):
        self.steps = 0

    def step_simulator(self, env_action):
        self.steps += 1
        return self.steps == LENGTH, False

    def get_state(self):
        return np.full(1, self.steps, np.float32)

    def get_reward(self, step):
        return 1.0

    def observation_spec(self):
        return dm_specs.Array((1,), np.float32)

    def action_spec(self):
        return dm_specs.DiscreteArray(2)


def train(made, run_dir):
    ended = single_process(made, stop=threading.Event(), run_dir=run_dir, printer=lambda line: None)
    assert ended is not None and ended[1], ended
    last = {}
    for name in made.tasks:
        folder = made.task_dir(run_dir, name)
        with open(folder / "metrics.csv") as file:
            last[name] = list(csv.DictReader(file))[-1]
        with open(folder / "episodes.csv") as file:
            last[name]["lengths"] = [int(row["length"]) for row in csv.DictReader(file)]
    return last


@pytest.mark.parametrize("environment", [Fives, LateFives])
@pytest.mark.parametrize(("episodes", "batch_size", "updates"), [(6, 3, 2), (2, 2, 1)])
def test_the_last_episodes_are_whole(tmp_path, environment, episodes, batch_size, updates):
    made = Experiment(
        PythonEnvironment(environment),
        ReinforceConfig(),
        replay=ReplayConfig(unroll_length=LENGTH, whole_episodes=True),
        learner=LearnerConfig(batch_size=batch_size),
        actors=ActorsConfig(num_actors=1, num_envs=2),
        goal=Goal(max_episodes=episodes),
    )
    (row,) = train(made, tmp_path).values()
    assert int(row["learner_steps"]) == updates
    assert int(row["trained_steps"]) == int(row["env_steps"]) == episodes * LENGTH


@pytest.mark.parametrize("wait_num", [2, 1])
def test_the_last_transitions(tmp_path, wait_num):
    """Also of a pool that returns when one of its two environments has made a step."""
    made = Experiment(
        PythonEnvironment(CountingEnvironment),
        CheckingConfig(),
        replay=ReplayConfig(unroll_length=1),
        learner=LearnerConfig(batch_size=1),
        actors=ActorsConfig(num_actors=1, num_envs=2, wait_num=wait_num),
        goal=Goal(max_env_steps=17),
    )
    (row,) = train(made, tmp_path).values()
    assert 17 <= int(row["trained_steps"]) == int(row["env_steps"]) < 17 + wait_num
    assert [float(value) for name, value in row.items() if name.startswith("wrong_")] == [0.0] * 6


def test_the_last_transitions_of_several_agents(tmp_path):
    replay, learner = ReplayConfig(unroll_length=1), LearnerConfig(batch_size=1)
    made = Experiment(
        MultiAgentEnvironment(CountingAgents),
        policies={name: LearnedPolicy(CheckingConfig(), replay, learner) for name in ("ac", "b")},
        policy_of={"a": "ac", "b": "b", "c": "ac"},
        actors=ActorsConfig(num_actors=1, num_envs=1),
        goal=Goal(max_episodes=2),
    )
    last = train(made, tmp_path)
    assert {name: len(row["lengths"]) for name, row in last.items()} == {"ac": 4, "b": 2}
    for row in last.values():
        assert int(row["trained_steps"]) == sum(row["lengths"])
