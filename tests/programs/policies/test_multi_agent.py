"""Experiments with several agents and policies, by exact arithmetic, under the topologies."""

import csv
import dataclasses
import json
import sys
import threading

import numpy as np
import pytest
from absl import flags

from distrl.checkpointing.resume_point import ResumePoint
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.launch.cli import config_flags
from distrl.launch.run_dir import config_dict
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.config import ReplayConfig
from distrl.rules import RandomPolicy, Rule
from distrl.testing import CheckingConfig, CountingAgents
from tests.support.commands import EXPERIMENTS, finish, skip_without_reverb
from tests.support.experiments import agents

REPLAY = ReplayConfig(unroll_length=5, max_size=100)
GOAL = LearnedPolicy(CheckingConfig(), goal=Goal(max_env_steps=10))


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


def test_a_check_says_which_policy_is_wrong():
    small = dataclasses.replace(REPLAY, max_size=5)
    policies = {
        "outer": LearnedPolicy(CheckingConfig(), REPLAY, LearnerConfig(batch_size=6)),
        "inner": LearnedPolicy(CheckingConfig(False), small, LearnerConfig(batch_size=4)),
    }
    with pytest.raises(ConfigError, match=r"^policy 'inner': replay\.max_size=5 would stall"):
        dataclasses.replace(experiment(), policies=policies)


def test_one_policy_for_all_agents_is_as_short_as_ever():
    made = Experiment(
        MultiAgentEnvironment(CountingAgents), CheckingConfig(), actors=ActorsConfig(2, 3)
    )
    assert made.only_task.agents == ("a", "b", "c")
    with SingleProcess(made, printer=lambda line: None) as parts:
        for _ in range(5):
            parts.run_once()
        (task,) = parts.tasks.values()
        report = task.learner.take_report()
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
        (_policies(policies={}), "it needs an agent, as in Experiment("),
        (_policies(agent=CheckingConfig()), "agent beside policies: each policy has its own"),
        (_policies(learner=LearnerConfig()), "learner beside policies"),
        (_policies(lockstep=True), "lockstep is for environments with one agent"),
        (_policies(policies={"p": GOAL}), "the goal of policy 'p' has max_env_steps"),
        (_policies(learners="two"), "learners: expected one of each, one; got 'two'"),
        (_policies(policies={"p": 3}), "policy 'p' must be a LearnedPolicy"),
        (_policies(policies={"p": CheckingConfig}), "CheckingConfig of 'p' is a class; write"),
        (_policies(policies={"p": Rule}), "policies: Rule of 'p' is a class; write Rule(...)"),
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
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("topology", "name", "learners"),
    [
        ("heavy_env", "experiment", "each"),
        ("heavy_env", "reverb", "one"),
        ("heavy_env", "with_rule", "each"),
        ("light_env", "experiment", "one"),
        ("light_env", "asynchronous", "each"),
    ],
)
def test_policies_in_nodes_are_exact(tmp_path, topology, name, learners):
    """No step of one policy is ever another's, and every action reached its own agent."""
    skip_without_reverb(name)
    run = tmp_path / "run"
    command = [
        sys.executable, "-m", "distrl", "train",
        f"--experiment={EXPERIMENTS / 'agents.py'}:{name}", f"--topology={topology}",
        f"--run_dir={run}", "--max_env_steps=4000", f"--config.learners={learners}",
    ]  # fmt: skip
    done = finish(command, 180.0)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    tasks = ["outer"] if name == "with_rule" else ["outer", "inner"]
    for task in tasks:
        folder = run if len(tasks) == 1 else run / "tasks" / task
        assert (folder / "params.npz").exists()
        with open(folder / "metrics.csv") as file:
            row = list(csv.DictReader(file))[-1]
        assert not [key for key, value in row.items() if key.startswith("wrong_") and float(value)]
        assert 4000 <= int(row["env_steps"]) < 4004
        assert float(row["checked"]) > (5900 if task == "outer" else 2900)
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished"
    nodes = sum(path.name.startswith("learner") for path in (run / "logs").iterdir())
    assert nodes == (1 if learners == "one" else len(tasks))


def learner_steps(run):
    """Returns by policy the updates in the last row of its metrics, and of its last checkpoint."""
    steps = {}
    for name in ("outer", "inner"):
        folder = run / "tasks" / name
        with open(folder / "metrics.csv") as file:
            row = list(csv.DictReader(file))[-1]
        newest = max(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir())
        steps[name] = int(row["learner_steps"]), int(newest[:6])
    return steps


LIMITED = {
    "limited": {"outer": (5, 5), "inner": (60, 60)},
    "limited_ratio": {"outer": (60, 60), "inner": (5, 5)},
}


@pytest.mark.parametrize("name", LIMITED)
def test_each_policy_keeps_its_own_limit_of_updates_in_one_process(tmp_path, name):
    made, stop = getattr(agents, name)(), threading.Event()
    ended = single_process(made, stop=stop, run_dir=tmp_path, printer=lambda line: None)
    reason = "; ".join(f"{policy}: {made[0]} updates" for policy, made in LIMITED[name].items())
    assert ended == (reason, True)
    assert learner_steps(tmp_path) == LIMITED[name]
    newest = {
        task: str(tmp_path / "tasks" / task / "checkpoints" / f"{updates[0]:06}")
        for task, updates in LIMITED[name].items()
    }
    point = ResumePoint(checkpoints=newest)
    with SingleProcess(made, printer=lambda line: None, resume_point=point) as parts:
        assert parts.run_once()  # acts no more, as nobody would learn
        assert parts.actor.acted == 0
    last = max(LIMITED[name], key=lambda policy: LIMITED[name][policy])
    policies = dict(made.policies)
    policies[last] = dataclasses.replace(policies[last], goal=Goal(max_learner_steps=70))
    more = dataclasses.replace(made, policies=policies)
    single_process(more, stop=stop, run_dir=tmp_path, printer=lambda line: None, resume_point=point)
    assert learner_steps(tmp_path) == {**LIMITED[name], last: (70, 70)}


def test_a_limit_of_transitions_ends_the_learning_of_its_policy_alone(tmp_path):
    made = agents.limited_transitions()
    single_process(made, stop=threading.Event(), run_dir=tmp_path, printer=lambda line: None)
    with open(tmp_path / "tasks" / "outer" / "metrics.csv") as file:
        trained = int(list(csv.DictReader(file))[-1]["trained_steps"])
    assert 100 <= trained < 100 + 6 * 5  # exceeded by less than a batch
    steps = learner_steps(tmp_path)
    assert steps["outer"][0] == steps["outer"][1] < 10 and steps["inner"] == (60, 60)


@pytest.mark.full
@pytest.mark.parametrize(
    ("topology", "name", "learners"),
    [
        ("heavy_env", "limited", "each"),
        ("heavy_env", "limited", "one"),
        ("heavy_env", "limited_ratio", "each"),
        ("light_env", "limited", "each"),
        ("light_env", "limited_ratio", "one"),
    ],
)
def test_a_policy_with_all_its_updates_holds_up_nobody(tmp_path, topology, name, learners):
    command = [
        sys.executable, "-m", "distrl", "train",
        f"--experiment={EXPERIMENTS / 'agents.py'}:{name}", f"--topology={topology}",
        f"--run_dir={tmp_path}", f"--config.learners={learners}",
    ]  # fmt: skip
    done = finish(command, 120.0)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert learner_steps(tmp_path) == LIMITED[name]
    for policy, (updates, _) in LIMITED[name].items():
        assert f"[monitor/0] {policy}: {updates} updates\n" in done.stdout


def test_settings_of_policies_are_flags_and_kept():
    before, made = set(flags.FLAGS), experiment()
    config_flags.define_flags(made)
    try:
        flags.FLAGS(["distrl", "--config.policies.inner.learner.batch_size=8"])
        changed = config_flags.apply_flags(made, flags.FLAGS)
    finally:  # absl knows one set of flags
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
    assert changed.tasks["inner"].learner.batch_size == 8
    assert changed.tasks["outer"] == made.tasks["outer"]
    plain = config_dict.as_dict(changed)
    assert plain["policies"]["inner"]["learner"]["batch_size"] == 8


@pytest.mark.full
@pytest.mark.parametrize("kind", ["loop", "processes"])
def test_the_same_seed_acts_alike(kind):
    """With a random policy beside a learned one; another seed does not."""

    def acted(seed):
        made = Experiment(
            MultiAgentEnvironment(CountingAgents, pool=PoolConfig(kind=kind)),
            policies={
                "outer": LearnedPolicy(CheckingConfig(), REPLAY, LearnerConfig(batch_size=6)),
                "inner": RandomPolicy(),
            },
            policy_of={"a": "outer", "b": "inner", "c": "outer"},
            actors=ActorsConfig(num_actors=2, num_envs=2),
            seed=seed,
        )
        steps = []
        with SingleProcess(made, printer=lambda line: None) as parts:
            send = parts.actor._pool.send
            parts.actor._pool.send = lambda actions: (
                steps.append({name: np.array(action) for name, action in actions.items()}),
                send(actions),
            )
            for _ in range(5):
                parts.run_once()
        return [np.concatenate([step[name] for name in sorted(step)]).tolist() for step in steps]

    first = acted(3)
    assert len(first) > 20 and first == acted(3)
    assert first != acted(4)
