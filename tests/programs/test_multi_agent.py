"""Experiments with several agents and policies, by exact arithmetic, under the topologies."""

import threading

import pytest

from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.programs.single_process import SingleProcess, single_process
from distrl.replay.config import ReplayConfig
from distrl.rules import Rule
from distrl.testing import CheckingConfig, CountingAgents

REPLAY = ReplayConfig(unroll_length=5, max_size=100)


def experiment(**settings):
    return Experiment(
        MultiAgentEnvironment(CountingAgents),
        policies={
            "outer": LearnedPolicy(CheckingConfig(), REPLAY, LearnerConfig(batch_size=6)),
            "inner": LearnedPolicy(CheckingConfig(False), REPLAY, LearnerConfig(batch_size=4)),
        },
        policy_of={"a": "outer", "b": "inner", "c": "outer"},
        actors=ActorsConfig(num_actors=2, num_envs=3),
        goal=Goal(max_env_steps=1500),
        **settings,
    )


def test_two_policies_learn_in_one_process():
    with SingleProcess(experiment(), printer=lambda line: None) as parts:
        for _ in range(60):
            assert parts.run_once()
        for name, part in parts.tasks.items():
            report = part.learner.take_report()
            wrong = [value for key, value in report.items() if key.startswith("wrong_")]
            assert wrong == [0] * 6
            assert report["checked"] > (300 if name == "outer" else 100)
            assert part.learner.version > 10


def test_a_run_of_two_policies_keeps_its_budget(tmp_path):
    lines = []
    ended = single_process(
        experiment(), stop=threading.Event(), run_dir=tmp_path, printer=lines.append
    )
    assert ended is not None
    reason, reached = ended
    assert reached
    steps = int(reason.split(" ")[0].replace(",", ""))
    assert 1500 <= steps < 1506
    for name in ("outer", "inner"):
        folder = tmp_path / "tasks" / name
        assert (folder / "params.npz").exists()
        assert len((folder / "metrics.csv").read_text().splitlines()) > 1
        assert any(line.startswith(f"{name}: ") for line in lines)


def test_one_policy_for_all_agents_is_as_short_as_ever():
    made = Experiment(
        MultiAgentEnvironment(CountingAgents), CheckingConfig(), actors=ActorsConfig(2, 3)
    )
    assert made.only_task.agents == ("a", "b", "c")
    with SingleProcess(made, printer=lambda line: None) as parts:
        for _ in range(5):
            parts.run_once()
        report = parts.learner.take_report()
    assert not any(value for key, value in report.items() if key.startswith("wrong_"))
    assert report["checked"] > 1000


def _policies(**changes):
    settings = {
        "policies": {"p": CheckingConfig()},
        "policy_of": dict.fromkeys("abc", "p"),
        **changes,
    }
    return lambda: Experiment(MultiAgentEnvironment(CountingAgents), **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_policies(policies={}), "it needs an agent, or policies"),
        (_policies(agent=CheckingConfig()), "agent beside policies: each policy has its own"),
        (_policies(learner=LearnerConfig()), "learner beside policies"),
        (_policies(policy_of=None), "policy_of must say which of the policies ['p']"),
        (_policies(policies={"p": Rule(int)}), "there is nothing to learn"),
        (_policies(policies={"a b": CheckingConfig()}), "letters, digits and _; got 'a b'"),
        (
            _policies(policies={"p": CheckingConfig(), "q": CheckingConfig()}),
            "policies ['q'] act for no agent",
        ),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    from distrl.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)
