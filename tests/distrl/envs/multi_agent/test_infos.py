"""What PettingZoo's environments declare of their agents' infos reaches the agents' time steps."""

import numpy as np
import pytest
from gymnasium import spaces

from distrl.envs import MultiAgentEnvironment, PoolConfig, WrapperConfig
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.pool import AgentPool
from distrl.errors import ConfigError, EnvironmentFault
from distrl.types import StepType

pettingzoo = pytest.importorskip("pettingzoo")
from pettingzoo.utils import parallel_to_aec  # noqa: E402


class Miners(pettingzoo.ParallelEnv):
    """Three steps an episode; in step k miner i has dug (k, 10 * i), and b alone succeeds."""

    render_mode = None
    reports_success = True

    def __init__(self):
        self.metadata = {"name": "miners_v0", "is_parallelizable": True}
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def info_space(self, agent):
        return spaces.Dict(dug=spaces.Box(0, 100, (2,), np.float32))

    def reset(self, seed=None, options=None):
        self.agents, self._k = list(self.possible_agents), 0
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self._k += 1
        done = dict.fromkeys(self.agents, self._k == 3)
        infos = {
            agent: {"dug": np.array([self._k, 10 * i], np.float32), "success": agent == "b"}
            for i, agent in enumerate(self.agents)
        }
        answer = self._see(), dict.fromkeys(self.agents, 1.0), done, dict.fromkeys(done, False)
        if self._k == 3:
            self.agents = []
        return *answer, infos

    def _see(self):
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def close(self):
        """Nothing to close."""


class Forgetful(Miners):
    """Its infos lack what it has declared."""

    def step(self, actions):
        return *super().step(actions)[:4], {"a": {}, "b": {}}


class Breaking(Miners):
    """Its second step fails."""

    def step(self, actions):
        if self._k == 1:
            raise OSError("the mine has collapsed")
        return super().step(actions)


class Nested(Breaking):
    """Its infos have a part with parts."""

    def info_space(self, agent):
        position = spaces.Dict(x=spaces.Box(0, 255, (), np.uint8))
        return spaces.Dict(dug=spaces.Box(0, 100, (2,), np.float32), position=position)

    def step(self, actions):
        answer = super().step(actions)
        for info in answer[-1].values():
            info["position"] = {"x": np.uint8(7)}
        return answer


class Wrong(Miners):
    def info_space(self, agent):
        return spaces.Discrete(3)


def play(builder, joint_steps, **settings):
    environment = MultiAgentEnvironment(builder, **settings)
    agents = environment.agents()
    assert set(agents.agents["a"].env_info) >= {"dug", "success"}
    pool = AgentPool(
        environment.make_pool(1, 1, (0,)), agents, Assignment(agents, ["p"], {"a": "p", "b": "p"})
    )
    seen = []
    try:
        pool.start()
        for _ in range(joint_steps):
            timestep = pool.recv()["p"]
            rows = zip(
                timestep.env_id.tolist(),
                timestep.step_type.tolist(),
                timestep.env_info["dug"].tolist(),
                timestep.env_info["success"].tolist(),
                strict=True,
            )
            seen += rows
            pool.send({"p": np.zeros(len(timestep.env_id), np.int32)})
    finally:
        pool.close()
    return seen


def test_agents_that_act_together():
    first, mid, last = StepType.FIRST, StepType.MID, StepType.LAST
    episode = [(i, first, [0, 0], -1) for i in (0, 1)]
    episode += [
        (i, last if k == 3 else mid, [k, 10 * i], i) for k in (1, 2, 3) for i in (0, 1)
    ]  # fmt: skip
    assert play(Miners, 8) == 2 * episode


def test_a_time_limit_leaves_the_infos_of_its_step():
    seen = play(Miners, 3, wrappers=WrapperConfig(max_episode_steps=2))
    assert seen[4:] == [(i, StepType.LAST, [2, 10 * i], i) for i in (0, 1)]


@pytest.mark.parametrize("builder", [Breaking, Nested])
def test_a_fault_leaves_no_infos(builder):
    seen = play(builder, 3, pool=PoolConfig(kind="loop", on_fault="restart"))
    assert seen[4:] == [(i, StepType.LAST, [0, 0], -1) for i in (0, 1)]


def test_agents_that_take_turns():
    seen = play(lambda: parallel_to_aec(Miners()), 7)
    of_b = [row[1:] for row in seen if row[0] == 1]
    assert of_b[0][0] == StepType.FIRST
    assert of_b[1][1:] == ([1, 10], 1) and of_b[3] == (StepType.LAST, [3, 10], 1)


def test_what_is_declared_and_missing_is_a_fault():
    with pytest.raises(EnvironmentFault, match=r"expected 'dug', as info_space declares"):
        play(Forgetful, 3)


def test_an_info_space_that_is_no_dict():
    with pytest.raises(ConfigError, match="info_space must be a Dict space"):
        MultiAgentEnvironment(Wrong).agents()
