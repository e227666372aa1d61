"""The evaluator of several policies and agents: exact returns, and goals that they reach."""

import csv
import dataclasses
import json
import sys

import numpy as np
import pytest

from distrl import seeds
from distrl.config import EvaluatorConfig
from distrl.envs import PythonEnvironment
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.launch.local.single_process import run_single_process
from distrl.launch.run_dir.run_dir import ResumePoint
from distrl.programs.single_process_parts import SingleProcess
from distrl.testing import CountingAgents, CountingEnvironment
from tests.support.commands import EXPERIMENTS, finish
from tests.support.experiments import agents

EVALUATOR = EvaluatorConfig(1, num_envs=3, episodes=7, interval=0.5)


def episodes(seed, count):
    """The returns of each agent in the first episodes of an environment."""
    env = CountingAgents(seed)
    played = []
    for _ in range(count):
        env.reset()
        returns = dict.fromkeys(env.possible_agents, 0.0)
        while env.agents:
            for agent, reward in env.step(dict.fromkeys(env.agents, 0))[1].items():
                returns[agent] += reward
        played.append(returns)
    return played


@pytest.mark.parametrize("rule", [False, True])
def test_whole_episodes_of_all_agents_count(rule):
    made = agents.with_rule() if rule else agents.experiment()
    made = dataclasses.replace(made, evaluator=EVALUATOR)
    pool_seeds = seeds.environment_seeds(0, "evaluator", 0, 3, 0)
    with SingleProcess(made, printer=lambda line: None) as parts:
        pool = parts.evaluator._evaluator._pool
        for number in (1, 2):
            # Whole ones: those that the evaluation before has begun and not ended do not count.
            first = pool.episode_numbers + (pool.step_types != 0)
            reports = parts.evaluator.evaluate(lambda: False)
            counted = [
                returns
                for seed, begin, share in zip(pool_seeds, first, (3, 2, 2), strict=True)
                for returns in episodes(seed, begin + share)[begin:]
            ]
            assert len(counted) == 7 and (number == 1) == (first.tolist() == [0, 0, 0])
            assert set(reports) == ({"outer"} if rule else {"outer", "inner"})
            means = {agent: np.mean([each[agent] for each in counted]) for agent in "abc"}
            for name, report in reports.items():
                assert report["evaluation_agents"] == pytest.approx(means)
                own = [each[a] for each in counted for a in ("ac" if name == "outer" else "b")]
                assert report["evaluation_return"] == pytest.approx(np.mean(own))
                assert report["evaluation_return_min"] == min(own)
                assert report["evaluation_return_max"] == max(own)
                assert report["version"] == 0
        assert parts.evaluator.evaluate(lambda: True) == {}


def test_a_goal_of_evaluations_and_what_is_reported(tmp_path):
    made = dataclasses.replace(
        agents.experiment(), evaluator=EVALUATOR, goal=Goal(None, evaluation_return=1.0)
    )
    assert run_single_process(made, tmp_path, ResumePoint()) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert "the evaluation's mean return is" in result["reason"]
    evaluation = result["saved"]["evaluation"]
    assert set(evaluation["policies"]) == {"outer", "inner"}
    assert set(evaluation["agents"]) == {"a", "b", "c"}
    with open(tmp_path / "tasks" / "outer" / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["evaluation_return"]) == evaluation["policies"]["outer"] > 1.0
    assert float(row["evaluation_return_b"]) == evaluation["agents"]["b"]


@pytest.mark.full
@pytest.mark.parametrize("topology", ["heavy_env", "light_env"])
def test_an_evaluator_of_policies_in_nodes(tmp_path, topology):
    command = [
        sys.executable, "-m", "distrl", "train",
        f"--experiment={EXPERIMENTS / 'agents.py'}:experiment", f"--topology={topology}",
        f"--run_dir={tmp_path / 'run'}", "--config.evaluator.num_evaluators=1",
        "--config.evaluator.interval=0.5", "--config.goal.mean_return=None",
        "--config.goal.evaluation_return=1",
    ]  # fmt: skip
    done = finish(command, 180.0)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result["saved"]["evaluation"]["policies"]) == {"outer", "inner"}
    assert min(result["saved"]["evaluation"]["policies"].values()) > 1.0


def test_what_cannot_be_evaluated_is_refused():
    made = agents.experiment()
    with pytest.raises(ConfigError, match=r"goal\.evaluation_return=3 needs an evaluator"):
        dataclasses.replace(made, goal=Goal(evaluation_return=3.0))
    other = PythonEnvironment(CountingEnvironment, "counting")
    with pytest.raises(ConfigError, match="one has several agents and the other one"):
        dataclasses.replace(made, evaluation_environment=other)
    same = MultiAgentEnvironment(CountingAgents, "other")
    dataclasses.replace(made, evaluation_environment=same)
