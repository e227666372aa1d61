"""Observations of which an array has no elements: whole runs of a few updates."""

import threading
import uuid

import dm_env
import numpy as np
import pytest
from dm_env import specs

from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.sac import SACConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.programs import single_process as program
from distrl.programs.build import Builder
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.transforms import ObservationNormalizer
from tests.support.selection import full


class PartlyEmpty(dm_env.Environment):
    """Observes three numbers, and an array without elements."""

    _count = 0

    def observation_spec(self):
        return {
            "empty": specs.Array((0,), np.float32, "empty"),
            "full": specs.Array((3,), np.float32, "full"),
        }

    def action_spec(self):
        return specs.DiscreteArray(2)

    def reset(self):
        self._count = 0
        return dm_env.restart(self._observe())

    def step(self, action):
        self._count += 1
        step = dm_env.termination if self._count == 7 else dm_env.transition
        return step(1.0, self._observe())

    def _observe(self):
        return {"empty": np.zeros(0, np.float32), "full": np.full(3, self._count, np.float32)}


class Continuous(PartlyEmpty):
    """The same, with a continuous action."""

    def action_spec(self):
        return specs.BoundedArray((1,), np.float32, -1, 1)


def shared(builder, saved, stop):
    """In the place of `Builder.make_local_replay`: a client of a table in shared memory."""
    task, name = builder.task, f"zero_size.{uuid.uuid4().hex[:8]}"
    table = SharedTable.create(builder.struct, task.replay, task.learner.batch_size, name, seed=0)
    replay = SharedReplayBuffer(name, builder.struct, task.replay, task.learner.batch_size, stop)
    close = replay.close

    def close_both():
        close()
        table.close()

    replay.close = close_both
    return replay


@pytest.mark.parametrize(
    "agent, memory",
    [
        (IMPALAConfig(), "local"),
        full(IMPALAConfig(), "shared"),
        full(PPOConfig(), "local"),
        full(DQNConfig(), "local"),
        full(DQNConfig(), "shared"),
        full(SACConfig(), "local"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_run_with_an_empty_array(tmp_path, monkeypatch, agent, memory):
    if memory == "shared":
        monkeypatch.setattr(Builder, "make_local_replay", shared)
    environment = Continuous if isinstance(agent, SACConfig) else PartlyEmpty
    made = Experiment(
        PythonEnvironment(environment),
        agent,
        actors=ActorsConfig(num_actors=1, num_envs=8),
        learner=LearnerConfig(batch_size=4),
        transforms=(ObservationNormalizer(),),
        goal=Goal(max_learner_steps=3),
    )
    reason, reached = program.single_process(
        made, stop=threading.Event(), run_dir=tmp_path, printer=lambda line: None
    )
    assert reached and reason == "3 updates"
