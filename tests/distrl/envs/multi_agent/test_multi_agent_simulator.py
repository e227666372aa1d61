"""A simulator with several agents: own clocks, and rewards that are known late."""

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.multi_agent.pool import AgentPool
from distrl.envs.multi_agent.simulator import MultiAgentSimulator
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError, EnvironmentFault
from distrl.types import StepType

NUMBER = dm_specs.Array((), np.float32)


def make_agent_pool(environment, num_envs, wait_num, seeds, assignment, first_environment=0):
    pool = environment.make_pool(num_envs, wait_num, seeds)
    return AgentPool(pool, environment.agents(), assignment, first_environment)


class Warehouses(MultiAgentSimulator):
    """ "fast" decides at every event, "slow" at every third; 8 events; reward i is 100 + i."""

    reward_delay = 2

    def agent_specs(self):
        return {"fast": (NUMBER, NUMBER), "slow": (NUMBER, NUMBER)}

    def reset_simulator(self):
        self._event = 0
        self._rewarded = {"fast": 0, "slow": 0}

    def acting_agents(self):
        return ["fast", "slow"] if self._event % 3 == 0 else ["fast"]

    def step_simulator(self, env_actions):
        assert set(env_actions) == set(self.acting_agents())
        assert all(value < 0 for value in env_actions.values())
        self._event += 1
        return self._event == 8, True and self._event == 8

    def get_state(self, agent):
        return np.float32(self._event)

    def to_env_action(self, agent, action):
        return -1 - float(action)

    def get_reward(self, agent, step):
        assert step == self._rewarded[agent]
        self._rewarded[agent] += 1
        return 100.0 + step

    def success(self, agent):
        assert self._rewarded[agent] == {"fast": 8, "slow": 3}[agent]
        return agent == "fast"


def _steps(simulator, rounds):
    environment = MultiAgentEnvironment(simulator, pool=PoolConfig(kind="loop"))
    assignment = Assignment(environment.agents(), ["p"], {"fast": "p", "slow": "p"})
    pool = make_agent_pool(environment, 1, 1, [0], assignment)
    pool.start()
    history = {0: [], 1: []}
    for _ in range(rounds):
        actions = {}
        for timestep in pool.recv().values():
            for row, stream in enumerate(timestep.env_id.tolist()):
                history[stream].append([leaf[row] for leaf in timestep[:4]] + [
                    {name: leaf[row] for name, leaf in timestep.env_info.items()}
                ])  # fmt: skip
            actions["p"] = np.ones(len(timestep.env_id), np.float32)
        pool.send(actions)
    pool.close()
    return history


def test_each_agent_has_its_own_clock_and_late_rewards():
    history = _steps(Warehouses, 12)
    fast, slow = history[0][:9], history[1][:4]
    kinds = [StepType.FIRST, *[StepType.MID] * 7, StepType.LAST]
    assert [step[0] for step in fast] == kinds
    assert [step[0] for step in slow] == [kinds[0], kinds[1], kinds[1], kinds[-1]]
    assert [float(step[3]) for step in fast] == list(range(9))
    assert [float(step[3]) for step in slow] == [0, 3, 6, 8]
    assert [float(s[1]) for s in fast] == [0, 0, 0, 100, 101, 102, 103, 104, 105 + 106 + 107]
    assert fast[-1][4]["late_reward"].tolist() == [107, 106, 105]
    assert slow[-1][4]["late_reward"].tolist() == [102, 101, 100]
    assert [int(step[4]["success"]) for step in fast] == [-1] * 8 + [1]
    assert slow[-1][4]["success"] == 0
    assert fast[-1][2] == slow[-1][2] == 0
    assert history[0][9][0] == history[1][4][0] == StepType.FIRST


def test_late_rewards_that_are_never_late():
    class Prompt(Warehouses):
        reward_delay = 0

    fast = _steps(Prompt, 9)[0]
    assert [float(step[1]) for step in fast] == [0, *range(100, 108)]
    assert "late_reward" not in fast[0][4]


def test_values_of_64_bits_become_those_of_32_and_actions_are_given_back():
    class Wide(Warehouses):
        def agent_specs(self):
            wide = dm_specs.Array((1,), np.float64), dm_specs.BoundedArray((1,), np.int64, 0, 9)
            return {"fast": wide, "slow": wide}

        def get_state(self, agent):
            return np.full(1, self._event, np.float64)

        def to_env_action(self, agent, action):
            assert action.dtype == np.int64
            return -1 - int(action[0])

    environment = MultiAgentEnvironment(Wide)
    spec = environment.agents().agents["slow"]
    assert (spec.observation.dtype, spec.action.dtype) == (np.float32, np.int32)
    pool = environment.make_pool(1, 1, (0,))
    assert pool.reset().observation["slow"].dtype == np.float32
    action = np.full((1, 1), 9, np.int32)
    assert pool.step({"fast": action, "slow": action}).observation["fast"] == [[1]]
    pool.close()


def test_a_share_is_no_success():
    class Graded(Warehouses):
        def success(self, agent):
            return 0.3

    with pytest.raises(EnvironmentFault, match=r"Graded.success\('fast'\): .*, got 0.3"):
        _steps(Graded, 9)


def test_a_wrong_simulator_is_named():
    class Negative(Warehouses):
        reward_delay = -1

    with pytest.raises(ConfigError, match=r"Negative.reward_delay must be a whole number"):
        MultiAgentEnvironment(Negative).agents()

    class Nobody(Warehouses):
        def acting_agents(self):
            return []

    with pytest.raises(ConfigError, match="acting_agents returned no agent"):
        MultiAgentEnvironment(Nobody).make_stepper(0).reset()
