"""Copies of an environment with one agent: every policy's steps are those of its own copies."""

import dataclasses
import types

import numpy as np
import pytest

from distrl import envs
from distrl.config import ActorsConfig, EvaluatorConfig, LearnerConfig
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.config import ReplayConfig
from distrl.seeds import environment_seeds
from distrl.testing import SEED, CheckingConfig, CountingAgents, CountingEnvironment
from distrl.types import StepType

MEMBERS, NUM_ENVS = 3, 4
POLICY = LearnedPolicy(
    CheckingConfig(), ReplayConfig(unroll_length=5, max_size=100), LearnerConfig(batch_size=6)
)


def experiment(kind="loop", wait_num=None, policy_of=None, names=("m0", "m1", "m2")):
    environment = envs.PythonEnvironment(CountingEnvironment, pool=PoolConfig(kind=kind))
    return Experiment(
        envs.Copies(environment, MEMBERS),
        policies=dict.fromkeys(names, POLICY),
        policy_of=policy_of or {str(k): f"m{k}" for k in range(MEMBERS)},
        actors=ActorsConfig(1, NUM_ENVS, wait_num=wait_num),
    )


def learn(made, updates=40):
    """Returns the reports of the learners, and the seeds in each policy's batches by stream."""
    with SingleProcess(made, printer=lambda line: None) as parts:
        seeds = {name: {} for name in parts.tasks}
        for name, part in parts.tasks.items():
            update = part.learner.update

            def noting(sample, name=name, update=update):
                seen = sample.trajectory.timestep.observation[..., SEED]
                for stream, column in zip(sample.trajectory.stream_id, seen.T, strict=True):
                    seeds[name].setdefault(int(stream), set()).update(column.tolist())
                update(sample)

            part.learner.update = noting
        for _ in range(updates):
            assert parts.run_once()
        reports = {name: part.learner.take_report() for name, part in parts.tasks.items()}
        return reports, seeds, parts.actor.acted, parts.actor.episodes


@pytest.mark.parametrize(("kind", "wait_num"), [("loop", None), ("loop", 3), ("threads", None)])
def test_every_step_of_every_copy_is_exact(kind, wait_num):
    reports, seeds, acted, episodes = learn(experiment(kind, wait_num))
    for name, report in reports.items():
        assert [value for key, value in report.items() if key.startswith("wrong_")] == [0] * 6
        assert report["checked"] > 100
        assert len(seeds[name]) == NUM_ENVS  # each stream one seed, no seed twice
    of_stream = [(stream, each) for member in seeds.values() for stream, each in member.items()]
    assert all(len(each) == 1 for _, each in of_stream)
    ids = [(k << 29) + e for k in range(MEMBERS) for e in range(NUM_ENVS)]
    assert sorted(stream for stream, _ in of_stream) == ids
    assert len({seed for _, each in of_stream for seed in each}) == MEMBERS * NUM_ENVS
    assert acted > 3 * 40 and episodes > 10


def test_a_policy_may_have_several_copies():
    names, policy_of = ("outer", "inner"), {"0": "outer", "1": "inner", "2": "outer"}
    reports, seeds, _, _ = learn(experiment(policy_of=policy_of, names=names))
    for report in reports.values():
        assert [value for key, value in report.items() if key.startswith("wrong_")] == [0] * 6
    assert {name: sorted(each) for name, each in seeds.items()} == {
        "outer": list(range(2 * NUM_ENVS)),
        "inner": [(1 << 30) + e for e in range(NUM_ENVS)],
    }


def test_envpool_steps_all_copies_as_one_pool():
    made = Experiment(
        envs.Copies(envs.make("CartPole-v1"), 2),
        policies={"a": POLICY, "b": POLICY},
        policy_of={"0": "a", "1": "b"},
        actors=ActorsConfig(num_envs=3),
    )
    raw = made.environment.make_pool(3, 3, (5, 6, 7))
    try:
        assert type(raw).__name__ == "NativePool"
        pool = made.environment.agent_pool(raw, made.assignment, 0)
        pool.start()
        for step in range(30):
            steps = pool.recv()
            assert [each.env_id.tolist() for each in steps.values()] == [[0, 1, 2], [3, 4, 5]]
            first = np.concatenate([each.step_type == StepType.FIRST for each in steps.values()])
            assert first.all() if step == 0 else True
            pool.send({"a": np.zeros(3, np.int32), "b": np.ones(3, np.int32)})
            prev = {name: each.prev_action for name, each in steps.items()}
            if step:
                assert (prev["a"] == 0).all() and set(prev["b"].tolist()) <= {0, 1}
        assert pool.episodes > 6 and pool.env_steps > 100
    finally:
        raw.close()


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="has several agents already"):
        envs.Copies(envs.MultiAgentEnvironment(CountingAgents), 2)
    with pytest.raises(ConfigError, match="count must be a whole number"):
        envs.Copies(envs.make("CartPole-v1"), 0)
    with pytest.raises(ConfigError, match="copies of an environment have one policy each"):
        experiment(policy_of=lambda agent, episode: "m0")
    with pytest.raises(ConfigError, match=r"num_envs=1366 .* 4098 environments .* take 1365 or"):
        dataclasses.replace(experiment(), actors=ActorsConfig(1, 1366))
    with pytest.raises(ConfigError, match="copies have none"):
        dataclasses.replace(experiment(), evaluator=EvaluatorConfig(1))
    with pytest.raises(ConfigError, match="no policy for"):
        experiment(policy_of={"0": "m0"})


def test_one_pool_of_several_actors_has_distinct_seeds():
    stub = types.SimpleNamespace(spec=dict, make_pool=lambda num_envs, wait_num, seeds: seeds)
    of_actors = [s for k in (0, 1) for s in environment_seeds(0, "actor", k, 1365)]
    of_copies = envs.Copies(stub, MEMBERS).make_pool(2 * 1365, 2 * 1365, of_actors)
    assert len(set(of_copies)) == len(of_copies) == MEMBERS * 2 * 1365
