"""Two policies in one environment of three agents: exact arithmetic on every step."""

import types

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.exploration import stream_shares
from distrl.agents.structs import extras_struct, state_struct
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.copies import CopiesPool
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.multi_agent.joint import JointSpec
from distrl.envs.multi_agent.pool import AgentPool
from distrl.envs.pool_config import PoolConfig
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.multi_agent.actor import MultiAgentActor
from distrl.policy_streams import PolicyStreams
from distrl.replay.config import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.rules import Rule
from distrl.testing import SEED, CheckingConfig, CountingAgents
from distrl.variables.client import VariableClient

NUM_ENVS, UNROLL, BATCH = 4, 5, 6
SPEC = specs.EnvironmentSpec(dm_specs.Array((1,), np.float32), dm_specs.DiscreteArray(2, np.int32))
POLICY_OF = {"a": "outer", "b": "inner", "c": "outer"}


def make_agent_pool(environment, num_envs, wait_num, seeds, assignment, first_environment=0):
    pool = environment.make_pool(num_envs, wait_num, seeds)
    return AgentPool(pool, environment.agents(), assignment, first_environment)


class Parts:
    """What one policy has, in this process."""

    def __init__(self, spec, num_streams):
        agent = CheckingConfig().make(spec)
        struct = specs.trajectory_struct(spec, extras_struct(agent), state_struct(agent))
        config = ReplayConfig(unroll_length=UNROLL, max_size=100)
        table = LocalTable(struct, config, BATCH, "table", 0, num_streams)
        self.replay = LocalReplayBuffer(table, struct, config, BATCH)
        self.learner = Learner(agent, self.replay, seed=0)
        self.variables = VariableClient(self.learner, 2**62)
        inferencer = Inferencer(
            agent, self.variables, seed=0, max_streams=num_streams, batch_sizes=(4, 8, 12)
        )
        self.streams = PolicyStreams(inferencer, self.replay, spec, num_streams)
        self.seeds = set()
        add = self.replay.add

        def noting_add(streams, timestep, *rest):
            self.seeds.update(zip(streams.tolist(), timestep.observation[:, SEED].tolist()))
            add(streams, timestep, *rest)

        self.replay.add = noting_add


@pytest.mark.parametrize(("kind", "wait_num"), [("loop", 4), ("loop", 3), ("processes", 4)])
def test_every_step_of_two_policies_is_exact(kind, wait_num):
    environment = MultiAgentEnvironment(CountingAgents, pool=PoolConfig(kind=kind))
    spec = environment.agents()
    assignment = Assignment(spec, ["outer", "inner"], POLICY_OF)
    pool = make_agent_pool(environment, NUM_ENVS, wait_num, range(NUM_ENVS), assignment, 12)
    parts = {name: Parts(spec.agents["a"], pool.num_streams) for name in assignment.policies}
    streams = {name: part.streams for name, part in parts.items()}
    actor = MultiAgentActor(pool, streams)
    updates = 0
    logs = []
    while updates < 60:
        logs.append(actor.step())
        for part in parts.values():
            if part.replay.can_sample():
                part.learner.step()
                part.variables.refresh()
                updates += 1
    reports = actor.take_report()
    actor.close()
    for name, report in reports.items():
        ended = [record for log in logs for record in log["episodes"].get(name, ())]
        assert ended == report["episodes"]
        assert sum(log["env_steps"] for log in logs) == report["env_steps"]
        assert max(log["version"].get(name, 0) for log in logs) > 0
    for name, part in parts.items():
        report = part.learner.take_report()
        wrong = {key: value for key, value in report.items() if key.startswith("wrong_")}
        assert wrong == dict.fromkeys(wrong, 0)
        assert len(wrong) == 6
        assert report["checked"] > 400
        assert part.learner.version > 10  # the actions follow: `wrong_version` is 0
        assert reports[name]["env_steps"] == actor.acted > 100
        # The observations of agent k of environment e, which is the 12 + e-th, have seed 3 e + k.
        first, agents = (12 * 2, (0, 2)) if name == "outer" else ((1 << 30) + 12, (1,))
        seeds = [3 * e + k for e in range(NUM_ENVS) for k in agents]
        assert part.seeds == {(first + n, float(seed)) for n, seed in enumerate(seeds)}


@pytest.mark.parametrize("kind", [AgentPool, CopiesPool])
@pytest.mark.parametrize(
    ("owners", "num_envs"),
    [("p", 8), ("pq", 8), ("pq", 1), ("pqrp", 4), ("pqqq", 1), ("pppp", 1), ("abcdefgh", 1)],
)
def test_the_epsilons_of_each_policy_are_spread_evenly(kind, owners, num_envs):
    policy_of = {str(k): name for k, name in enumerate(owners)}
    names = sorted(set(owners))
    spec = JointSpec(dict.fromkeys(policy_of, SPEC), in_turns=False)
    assignment = Assignment(spec, names, policy_of)
    size = num_envs * (len(policy_of) if kind is CopiesPool else 1)
    steps = types.SimpleNamespace(num_envs=size, env_ids=np.arange(size, dtype=np.int32), spec=SPEC)
    pools = [kind(steps, spec, assignment, actor * num_envs) for actor in range(8)]
    every_id = []
    for name in names:
        ids = np.concatenate([pool.program_ids()[name] for pool in pools])
        ids = ids[ids >= 0]
        assert len(ids) == 8 * num_envs * len(assignment.agents_of(name))
        in_eighths = np.bincount((stream_shares(ids) * 8).astype(int), minlength=8)
        assert in_eighths.tolist() == [len(ids) // 8] * 8
        every_id += ids.tolist()
    assert len(set(every_id)) == len(every_id)


def test_a_rule_beside_a_learned_policy():
    environment = MultiAgentEnvironment(CountingAgents, pool=PoolConfig(kind="loop"))
    spec = environment.agents()
    assignment = Assignment(spec, ["outer", "inner"], POLICY_OF)
    pool = make_agent_pool(environment, NUM_ENVS, NUM_ENVS, range(NUM_ENVS), assignment)
    learned = Parts(spec.agents["a"], pool.num_streams)
    seen = []

    def rule(observation):
        seen.append(observation.copy())
        return 7

    fixed = Rule(rule).make_source(spec.agents["b"], pool.num_streams, 0)
    streams = {
        "outer": learned.streams,
        "inner": PolicyStreams(fixed, None, spec.agents["b"], pool.num_streams),
    }
    actor = MultiAgentActor(pool, streams)
    while learned.learner.version < 5:
        actor.step()
        if learned.replay.can_sample():
            learned.learner.step()
    reports = actor.take_report()
    actor.close()
    assert {int(row[SEED]) % 3 for row in seen} == {1}
    assert {float(row[3]) for row in seen} == {-1.0, 7.0}  # the environment echoes the action
    assert reports["inner"]["env_steps"] == actor.acted > 50
    report = learned.learner.take_report()
    assert not any(value for key, value in report.items() if key.startswith("wrong_"))
    assert np.mean([record[1] for record in reports["inner"]["episodes"]]) == pytest.approx(
        5, abs=2
    )
