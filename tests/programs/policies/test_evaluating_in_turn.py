"""Learners that act for no agent: their own evaluations, the best checkpoint, and their goals."""

import dataclasses
import json
from typing import ClassVar

import jax.numpy as jnp
import pytest

from distrl.agents.tunable import Tunable
from distrl.checkpointing.store import Checkpoints
from distrl.config import EvaluatorConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.launch.local.single_process import run_single_process
from distrl.launch.run_dir.run_dir import ResumePoint
from distrl.policy import load_policy
from distrl.programs.single_process_parts import SingleProcess
from distrl.rules import Rule
from distrl.testing import STEP, CountingEnvironment
from tests.support.experiments.agents import experiment as agents
from tests.support.experiments.tasks import ACTORS, REPLAY
from tests.support.product_agent import ProductAgent, ProductConfig

EVALUATOR = EvaluatorConfig(1, num_envs=3, episodes=7, interval=0.01)


class Paid(CountingEnvironment):
    """Episodes of 5 steps, whose reward is the action."""

    _length = 5

    def step(self, action):
        """See dm_env."""
        return super().step(action)._replace(reward=float(action))


@dataclasses.dataclass(frozen=True)
class Always(ProductConfig):
    """Of an agent that always takes the action."""

    learning_rate: float = 1e-3
    target: int = STEP
    action: int = 0

    def make(self, env_spec):
        """See `AgentConfig`."""
        return AlwaysAgent(self, env_spec)


class AlwaysAgent(ProductAgent):
    """See `Always`."""

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        """See `Agent`."""
        output, state = super().actor_step(rng, params, timestep, state, evaluation)
        return output._replace(action=jnp.full_like(output.action, self.config.action)), state


class Silent(ProductConfig):
    """Of an agent that chooses no actions."""

    acts: ClassVar[bool] = False


def learner(agent, teacher="rule", **settings):
    return LearnedPolicy(agent, REPLAY, LearnerConfig(4), learns_from=teacher, **settings)


def experiment(goal, policies=None, **settings):
    policies = policies or {"one": learner(Always(action=1)), "two": learner(Always(action=2))}
    return Experiment(
        PythonEnvironment(Paid),
        policies={"rule": Rule(lambda observation: 7), **policies},
        actors=ACTORS,
        goal=goal,
        **settings,
    )


def test_each_learner_that_can_act_is_evaluated_alone():
    policies = {
        "none": learner(Silent()),
        "tuned": learner(Tunable(Silent(), {"learning_rate": (1e-4, 1e-2)})),
        "one": learner(Always(action=1)),
        "two": learner(Always(action=2)),
    }
    made = experiment(Goal(max_env_steps=100), policies, evaluator=EVALUATOR)
    with SingleProcess(made, printer=lambda line: None) as parts:
        for _ in range(2):
            reports = parts.evaluator.evaluate(lambda: False)
            returns = {
                name: (report["evaluation_return_min"], report["evaluation_return_max"])
                for name, report in reports.items()
            }
            assert returns == {"one": (5, 5), "two": (10, 10)}
            assert [report["evaluation_episodes"] for report in reports.values()] == [7, 7]
        assert parts.evaluator.evaluate(lambda: True) == {}


def test_a_goal_of_evaluations_is_judged_for_each(tmp_path):
    made = experiment(Goal(mean_return=None, evaluation_return=5.0), evaluator=EVALUATOR)
    assert run_single_process(made, tmp_path, ResumePoint()) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["saved"]["evaluation"]["policies"] == {"one": 5.0, "two": 10.0}
    for name, score in (("one", 5.0), ("two", 10.0)):
        best = Checkpoints(tmp_path / "tasks" / name).best()
        assert best.manifest["evaluation_return"] == score


def test_returns_of_another_policy_make_no_checkpoint_the_best(tmp_path):
    policies = {
        "main": LearnedPolicy(Always(action=3), REPLAY, LearnerConfig(4)),
        "other": learner(Always(action=1), "main"),
    }
    made = Experiment(
        PythonEnvironment(Paid), policies=policies, actors=ACTORS, goal=Goal(max_env_steps=200)
    )
    assert run_single_process(made, tmp_path, ResumePoint()) == 0
    assert Checkpoints(tmp_path / "tasks" / "main").best().manifest["mean_return"] == 15.0
    other = Checkpoints(tmp_path / "tasks" / "other")
    assert other.best() is None and other.latest().manifest["mean_return"] is None
    assert not (other.folder / "best.json").exists()
    with pytest.raises(ConfigError, match=r"no checkpoint of .* take which='latest'"):
        load_policy(tmp_path / "tasks" / "other", "best", trust=True)


def test_an_evaluation_that_nobody_can_play_is_refused():
    goal = Goal(evaluation_return=3.0)
    with pytest.raises(ConfigError, match=r"goal\.evaluation_return=3 needs an evaluator"):
        experiment(goal)
    with pytest.raises(ConfigError, match=r"could play with none of the .* \['none'\]"):
        experiment(Goal(), {"none": learner(Silent())}, evaluator=EVALUATOR)
    policies = {"none": learner(Silent()), "one": learner(Always(action=1))}
    message = r"'none' has goal\.evaluation_return=3, and is never evaluated.* \['one'\] only"
    with pytest.raises(ConfigError, match=message):
        experiment(goal, policies, evaluator=EVALUATOR)
    policies["none"] = learner(Silent(), goal=Goal(mean_return=None, max_learner_steps=10))
    experiment(goal, policies, evaluator=EVALUATOR)


def test_a_learner_beside_several_agents_is_not_evaluated():
    made = agents()
    policies = {**made.policies, "other": learner(ProductConfig(), "inner")}
    dataclasses.replace(made, policies=policies, evaluator=EVALUATOR)
    with pytest.raises(ConfigError, match=r"'other' has goal\.evaluation_return=3, and is never"):
        dataclasses.replace(
            made, policies=policies, evaluator=EVALUATOR, goal=Goal(evaluation_return=3.0)
        )
