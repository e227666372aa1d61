"""Several tasks on the steps of one agent: exact data, shared parameters, where they learn."""

import csv
import dataclasses
import sys
import threading

import numpy as np
import pytest

from distrl.agents.ppo import PPOConfig
from distrl.callbacks import Callback, EndRun
from distrl.config import LearnerConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.programs import single_process_parts
from distrl.programs.build import Builder
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess
from distrl.rules import Rule
from distrl.sharing import Shared
from distrl.testing import STEP, CheckingConfig
from distrl.transforms import FrameStack
from tests.support.commands import EXPERIMENTS, finish
from tests.support.experiments import tasks
from tests.support.experiments.tasks import ACTORS, ENVIRONMENT, REPLAY
from tests.support.product_agent import ProductConfig


def rows(path):
    with open(path / "metrics.csv") as file:
        return list(csv.DictReader(file))


def test_a_task_learns_from_the_steps_of_another():
    made = tasks.checking()
    assert list(made.tasks) == ["main", "aux"]  # those that act come first
    with SingleProcess(made, printer=lambda line: None) as parts:
        for _ in range(40):
            assert parts.run_once()
        versions = {}
        for name, part in parts.tasks.items():
            report = part.learner.take_report()
            assert [v for key, v in report.items() if key.startswith("wrong_")] == [0] * 6
            assert report["checked"] > 200
            assert ("policy_lags" in report) == (name == "main")
            versions[name] = part.learner.version
        assert versions["aux"] > 2 * versions["main"]  # smaller batches of shorter unrolls


def test_a_rule_acts_and_a_task_learns_from_it(tmp_path):
    aux = LearnedPolicy(
        ProductConfig(1e-2, target=STEP), REPLAY, LearnerConfig(4), learns_from="rule"
    )
    made = Experiment(
        ENVIRONMENT,
        policies={"rule": Rule(lambda observation: 7), "aux": aux},
        actors=ACTORS,
        goal=Goal(max_env_steps=500),
    )
    ended = single_process(
        made, stop=threading.Event(), run_dir=tmp_path, printer=lambda line: None
    )
    assert ended is not None
    last = rows(tmp_path)[-1]
    assert int(last["learner_steps"]) > 10
    assert 500 <= int(last["env_steps"]) < 520


def test_monitors_and_parts_have_the_same_builders(tmp_path, monkeypatch):
    made = []

    class Counted(Builder):
        def __init__(self, *args):
            made.append(args[1])
            super().__init__(*args)

    monkeypatch.setattr(single_process_parts, "Builder", Counted)
    goal = Goal(max_learner_steps=1)
    experiment = dataclasses.replace(tasks.sharing(), goal=goal)
    single_process(experiment, stop=threading.Event(), run_dir=tmp_path, printer=lambda line: None)
    assert made == list(experiment.tasks)


def test_two_tasks_share_a_torso_in_one_process():
    made = tasks.sharing()
    assert made.learner_nodes == (("aux", "main"),)  # the one whose optimiser moves it is last
    with SingleProcess(made, printer=lambda line: None) as parts:
        for _ in range(12):
            parts.run_once()
        states = {name: part.learner.state() for name, part in parts.tasks.items()}
    torso = {name: float(s.params["torso/~/linear_0"]["w"][0]) for name, s in states.items()}
    head = {name: float(s.params["head"]["w"][0]) for name, s in states.items()}
    assert torso["main"] == torso["aux"] != 1
    assert head["main"] != head["aux"]
    assert states["aux"].version == 2 * states["main"].version > 10


class EndsEach(Callback):
    def __init__(self):
        self.last = {}

    def on_update(self, update):
        self.last[update.task] = update.learner_steps
        if update.learner_steps == {"main": 3, "aux": 20}[update.task]:
            raise EndRun(f"{update.learner_steps} updates")


def test_a_callback_ends_the_policy_that_it_is_called_about(tmp_path):
    ends = EndsEach()
    made = dataclasses.replace(tasks.sharing(), callbacks=(ends,), goal=Goal(max_env_steps=10**9))
    ended = single_process(
        made, stop=threading.Event(), run_dir=tmp_path, printer=lambda line: None
    )
    assert ended == ("main: 3 updates; aux: 20 updates", True)
    assert ends.last == {"main": 10, "aux": 20}  # the first one learns until all have ended


def make(**changes):
    main = LearnedPolicy(ProductConfig(), REPLAY, LearnerConfig(batch_size=4))
    return Experiment(ENVIRONMENT, actors=ACTORS, **{"policies": {"main": main}, **changes})


def aux(agent, learns_from="main", **settings):
    settings = {"replay": REPLAY, "learner": LearnerConfig(batch_size=4), **settings}
    main = LearnedPolicy(ProductConfig(), REPLAY, LearnerConfig(batch_size=4))
    return {"main": main, "aux": LearnedPolicy(agent, learns_from=learns_from, **settings)}


REFUSED = {
    "policy_of": ({"policy_of": {"a": "main"}}, "policy_of is for environments with several"),
    "two act": (
        {"policies": aux(ProductConfig(), None)},
        "has one agent, for which one of the policies acts; ['main', 'aux'] would",
    ),
    "none acts": (
        {"policies": {"a": LearnedPolicy(ProductConfig(), learns_from="a")}},
        "for which one of the policies acts; none would",
    ),
    "unknown": (
        {"policies": aux(ProductConfig(), "man")},
        "policy 'aux' has learns_from='man'; the policies that act are ['main']",
    ),
    "on policy": ({"policies": aux(PPOConfig())}, "PPOConfig learns from its own policy's actions"),
    "memory": ({"policies": aux(CheckingConfig())}, "shared; leave out the network's core"),
    "frame stack": (
        {"policies": aux(ProductConfig(), transforms=(FrameStack(2),))},
        "has memory; recurrent state is kept for the policy that acts, on its clock, and cannot be "
        "shared; leave out the transform frame_stack",
    ),
    "extras": ({"policies": aux(CheckingConfig(False))}, "its table cannot be filled from there"),
    "skip": (
        {
            "policies": aux(ProductConfig(), learner=LearnerConfig(4, on_nonfinite="skip")),
            "shared": {"torso": ("main", "aux")},
        },
        "'aux' has learner.on_nonfinite=skip",
    ),
    "shared shapes": (
        {"policies": aux(ProductConfig(size=2)), "shared": {"torso": Shared(("main", "aux"))}},
        "'main' has torso/linear_0/w [1], and 'aux' has torso/linear_0/w [2]",
    ),
    "shared alone": (
        {"policies": {}, "agent": ProductConfig(), "shared": {"torso": ("task", "other")}},
        "shared without policies",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    changes, message = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        make(**changes)
    assert message in str(error.value)


def train(run, name, topology, *more):
    command = [
        sys.executable, "-m", "distrl", "train",
        f"--experiment={EXPERIMENTS / 'tasks.py'}:{name}", f"--topology={topology}",
        f"--run_dir={run}", *more,
    ]  # fmt: skip
    done = finish(command, 280.0)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def params(run, task):
    with np.load(run / "tasks" / task / "params.npz") as file:
        return dict(file)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_task_learns_from_the_steps_of_another_in_nodes(tmp_path):
    train(tmp_path, "checking", "light_env", "--max_env_steps=3000")
    for task in ("main", "aux"):
        row = rows(tmp_path / "tasks" / task)[-1]
        assert not [key for key, value in row.items() if key.startswith("wrong_") and float(value)]
        assert float(row["checked"]) > 2500


@pytest.mark.full
@pytest.mark.timeout(300)
def test_two_tasks_share_a_torso_in_a_node(tmp_path):
    train(tmp_path, "sharing", "heavy_env", "--max_env_steps=3000")
    made = {task: params(tmp_path, task) for task in ("main", "aux")}
    (torso,) = (name for name in made["main"] if "torso" in name)
    # Each file has the parameters of its task's last update; the other task may have made one more.
    np.testing.assert_allclose(made["main"][torso], made["aux"][torso], rtol=0.01)
    assert abs(made["main"][torso] - 1) > 0.1


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("lockstep", ("--config.goal.max_learner_steps=12", "--config.goal.mean_return=None")),
        ("lockstep_limited", ()),
    ],
    ids=["same limit", "own limits"],
)
def test_learners_in_one_process_or_each_in_its_own_make_the_same(tmp_path, name, goal):
    results = []
    for learners in ("one", "each"):
        train(tmp_path / learners, name, "heavy_env", f"--config.learners={learners}", *goal)
        results.append([params(tmp_path / learners, task) for task in ("main", "aux")])
    for one, each in zip(*results, strict=True):
        assert one.keys() == each.keys()
        for leaf in one:
            np.testing.assert_array_equal(one[leaf], each[leaf])
