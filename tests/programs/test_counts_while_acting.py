"""One process, while it acts and no update falls: what is counted, saved and resumed."""

import csv
import dataclasses
import threading

import pytest

from distrl.actor import Actor
from distrl.checkpointing.generations import last_generation
from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import Checkpoints
from distrl.envs import PythonEnvironment
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnedPolicy, LearnerConfig
from distrl.goal import Goal
from distrl.programs import single_process as program
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingAgents, CountingEnvironment
from tests.support.selection import full
from tests.support.waiting import until

NUM_ENVS = 4
BUDGET = 401
# From 40 unrolls of 5 steps on, and then after each 40: with 4 streams in about 200 steps.
REPLAY = ReplayConfig("uniform", 5, 64, min_size_to_sample=40, samples_per_insert=0.1)
FIRST, BETWEEN = 102, 350  # steps before the first update, and between two


class Hook:
    """Counts the steps of all environments, and calls a function in one of them."""

    steps, at, call = 0, 0, staticmethod(lambda: None)

    def step(self, action):
        result = super().step(action)
        Hook.steps += 1
        if Hook.steps == Hook.at:
            Hook.call()
        return result


class Counting(Hook, CountingEnvironment):
    pass


class CountingTogether(Hook, CountingAgents):
    pass


def one_policy():
    return Experiment(
        PythonEnvironment(Counting, "counting"),
        CheckingConfig(),
        replay=REPLAY,
        learner=LearnerConfig(batch_size=4),
        actors=ActorsConfig(num_actors=1, num_envs=NUM_ENVS),
        goal=Goal(max_env_steps=BUDGET),
    )


def two_policies():
    """As many unrolls of each agent; one of three is the inner policy's."""
    learner = LearnerConfig(batch_size=4)
    outer = dataclasses.replace(REPLAY, max_size=128, min_size_to_sample=80)
    return Experiment(
        MultiAgentEnvironment(CountingTogether),
        policies={
            "outer": LearnedPolicy(CheckingConfig(), outer, learner),
            "inner": LearnedPolicy(CheckingConfig(), REPLAY, learner),
        },
        policy_of={"a": "outer", "b": "inner", "c": "outer"},
        actors=ActorsConfig(num_actors=1, num_envs=NUM_ENVS),
        goal=Goal(max_env_steps=BUDGET),
    )


def calling(make, at, call):
    """Returns an experiment in whose step number `at` a function is called."""
    made = make()
    made.environment.spec()  # which tries steps
    Hook.steps, Hook.at, Hook.call = 0, at, staticmethod(call)
    return made


def train(made, run_dir, stop, **more):
    return program.single_process(
        made, stop=stop, run_dir=run_dir, printer=lambda line: None, **more
    )


def last_row(folder):
    with open(folder / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    return {name: int(row[name]) for name in ("env_steps", "episodes", "learner_steps")}


def saved(folder):
    """Returns environment steps and episodes of the newest checkpoint, and unrolls in its table."""
    manifest = Checkpoints(folder).latest().manifest
    counts = manifest["monitor"]
    return counts["env_steps_acted"], counts["episodes"], manifest["table"]["inserts"]


@pytest.mark.parametrize(
    ("make", "at", "interval"),
    [
        (one_policy, FIRST, 1e9),
        (one_policy, BETWEEN, 0.0),
        full(one_policy, FIRST, 0.0),
        full(one_policy, BETWEEN, 1e9),
        full(two_policies, FIRST, 0.0),
        (two_policies, FIRST, 1e9),
    ],
)
def test_a_stop_ends_within_a_step_and_the_same_budget_goes_on(
    tmp_path, monkeypatch, make, at, interval
):
    monkeypatch.setattr(program, "_REPORT_S", interval)
    stop = threading.Event()
    made = calling(make, at, stop.set)
    folders = [made.task_dir(tmp_path, name) for name in made.tasks]
    assert train(made, tmp_path, stop) is None
    assert at <= Hook.steps < at + NUM_ENVS
    stopped = [saved(folder) for folder in folders]
    for folder, (steps, episodes, _) in zip(folders, stopped):
        row = last_row(folder)
        assert Hook.steps == steps == row["env_steps"]
        assert episodes == row["episodes"] > 0
        assert (row["learner_steps"] > 0) == (at == BETWEEN)
    assert Saved.read(tmp_path).env_steps == Hook.steps
    point = ResumePoint(
        checkpoints={
            task: str(Checkpoints(folder).latest().path)
            for task, folder in zip(made.tasks, folders)
        },
        generations={task: last_generation(folder) for task, folder in zip(made.tasks, folders)},
    )
    ended = train(made, tmp_path, threading.Event(), resume_point=point)
    assert ended == (f"{Hook.steps} environment steps", True)
    assert BUDGET <= Hook.steps < BUDGET + NUM_ENVS
    for folder, (_, _, inserts) in zip(folders, stopped):
        assert saved(folder)[0] == last_row(folder)["env_steps"] == Hook.steps
        assert saved(folder)[2] > inserts


@pytest.mark.parametrize("at", [FIRST, full(BETWEEN)])
def test_a_checkpoint_amid_a_step_has_all_steps_before_it(tmp_path, monkeypatch, at):
    """Only updates are reported here. The step lasts until a checkpoint is written."""
    monkeypatch.setattr(program, "_REPORT_S", 1e9)
    stop, written, counts, in_manifest = threading.Event(), threading.Event(), [], []
    step = Actor.step

    def watched(actor):
        counts[:] = actor.acted, actor.episodes
        return step(actor)

    def wait():
        stop.set()
        until(written.is_set, "the checkpoint")
        in_manifest.extend(saved(tmp_path)[:2])

    monkeypatch.setattr(Actor, "step", watched)
    made = calling(one_policy, at, wait)
    assert train(made, tmp_path, stop, give_up=written.set) is None
    assert in_manifest == counts and at - NUM_ENVS <= counts[0] < at
