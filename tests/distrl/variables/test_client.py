"""When an actor's parameters are refreshed, by the versions that it records."""

import numpy as np

from distrl.actor import Actor
from distrl.agents.structs import extras_struct, state_struct
from distrl.envs import PythonEnvironment
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.specs import trajectory_struct
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.variables.client import VariableClient

T = 5


def test_what_an_unroll_teaches_is_fetched_right_after_it_is_inserted():
    """The learner is the bottleneck: an actor's insert waits until the update before is made."""
    environment = PythonEnvironment(CountingEnvironment)
    agent = CheckingConfig().make(environment.spec())
    struct = trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))
    config = ReplayConfig(unroll_length=T, max_size=8)
    learned = []

    class Learning(LocalReplayBuffer):
        def _insert(self, block):
            super()._insert(block)
            sample = self.sample(1.0)
            learner.update(sample)
            learned.append(sample.trajectory.version[:, 0])

    replay = Learning(LocalTable(struct, config, 2), struct, config, 2)
    learner = Learner(agent, replay, seed=0)
    inferencer = Inferencer(agent, VariableClient(learner, T), seed=0, max_streams=2)
    actor = Actor(environment.make_pool(2, 2, seeds=[3, 4]), inferencer, replay)
    logs = [actor.step() for _ in range(4 * T + 1)]
    report = actor.take_report()
    actor.close()
    # The actor's first step was received when it was made; each call receives the next one.
    assert sum(log["env_steps"] for log in logs) == report["env_steps"]
    assert [record for log in logs for record in log["episodes"]] == report["episodes"]
    assert [log["version"] for log in logs] == [max(0, i - 1) // T for i in range(4 * T + 1)]
    # The first row of an unroll is the last of the one before: its action was chosen already.
    expected = [np.full(T + 1, version) for version in range(4)]
    for version in range(1, 4):
        expected[version][0] = version - 1
    np.testing.assert_array_equal(learned, expected)
