"""Evaluation in turns with training: who has how much time, and that neither waits."""

import dataclasses
import threading

import pytest

from distrl.checkpointing.store import Checkpoints
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.programs import single_process as program
from distrl.programs.running.evaluating import EvaluationTurns
from distrl.testing import CheckingConfig, CountingEnvironment


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Evaluations:
    """Evaluations of some steps, each of which takes its time on a clock."""

    def __init__(self, clock, *seconds):
        self.clock, self.seconds, self.begun, self.closed = clock, seconds, 0, False

    def play(self):
        self.begun += 1
        number = self.begun
        try:
            for seconds in self.seconds:
                yield
                self.clock.now += seconds
        except GeneratorExit:
            self.closed = True
            raise
        return {"task": {"number": number}}


def turns(*seconds, interval=10.0):
    clock = Clock()
    evaluations = Evaluations(clock, *seconds)
    return clock, evaluations, EvaluationTurns(evaluations, interval, clock)


def test_evaluating_takes_as_long_as_training():
    clock, evaluations, made = turns(*[1.0] * 6, interval=100.0)
    clock.now += 99.0
    assert made.run() == {} and evaluations.begun == 0
    spent, scores = [], []
    for _ in range(4):
        clock.now += 2.0  # of training
        before = clock.now
        scores.append(made.run())
        spent.append(clock.now - before)
    assert spent == [2.0, 2.0, 2.0, 0.0]
    assert scores == [{}, {}, {"task": {"number": 1}}, {}]


def test_training_makes_up_for_a_step_that_takes_long():
    clock, _, made = turns(100.0, 1.0)
    clock.now += 10.0
    assert made.run() == {} and clock.now == 210.0  # it compiles
    trained = 0
    while not made.run():
        clock.now += 1.0
        trained += 1
    assert trained == 91  # 10 seconds were before the first step


def test_the_interval_is_between_starts():
    clock, evaluations, made = turns(0.5, interval=5.0)
    began = []
    for _ in range(40):
        clock.now += 0.5
        before, now = evaluations.begun, clock.now
        made.run()
        if evaluations.begun > before:
            began.append(now)
    assert began == [105.0, 110.0, 115.0, 120.0]


def test_one_in_progress_is_finished_unless_stopped():
    clock, evaluations, made = turns(*[20.0] * 6)
    assert made.finish(lambda: False) == {}  # there is none
    clock.now += 10.0
    made.run()
    assert made.finish(lambda: False) == {"task": {"number": 1}} and not evaluations.closed
    clock, evaluations, made = turns(*[20.0] * 6)
    clock.now += 10.0
    made.run()
    assert made.finish(lambda: True) == {} and evaluations.closed


def test_a_stop_ends_a_turn_within_a_step():
    clock, evaluations, made = turns(*[1.0] * 60)
    clock.now += 30.0  # of training, so that it may evaluate for as long
    assert made.run(lambda: clock.now >= 133.0) == {} and clock.now == 133.0
    assert made.finish(lambda: True) == {} and evaluations.closed


class Endless(CountingEnvironment):
    """Its episodes end by a time limit only."""

    _length = 10**9


def experiment(evaluator):
    return Experiment(
        environment=PythonEnvironment(CountingEnvironment),
        evaluation_environment=PythonEnvironment(Endless),
        agent=CheckingConfig(),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        goal=Goal(max_env_steps=2000),
        evaluator=dataclasses.replace(
            EvaluatorConfig(num_evaluators=1, num_envs=2, episodes=3, interval=0.01), **evaluator
        ),
    )


def run(made, tmp_path):
    lines = []
    ended = program.single_process(
        made, stop=threading.Event(), run_dir=tmp_path, printer=lines.append
    )
    assert ended is not None and ended[1], ended
    return [line for line in lines if "env steps" in line]


def test_a_time_limit_ends_its_episodes(tmp_path):
    lines = run(experiment({"max_episode_steps": 7}), tmp_path)
    assert "evaluation 28.0" in lines[-1]  # 1 + ... + 7
    best = Checkpoints(tmp_path).best()
    assert best.manifest["evaluation_return"] == 28.0
    assert 0 <= best.manifest["evaluated_version"] <= best.manifest["version"]


def test_an_evaluation_without_end_does_not_stop_the_training(tmp_path):
    lines = run(experiment({"max_seconds": 0.2}), tmp_path)
    assert "env steps      2,000" in lines[-1] and "evaluation" not in lines[-1]


def test_an_environment_without_a_time_limit_to_set():
    class Own:
        """An environment of one's own kind."""

        def __init__(self, environment):
            self.name, self.spec, self.make_pool = (
                environment.name,
                environment.spec,
                environment.make_pool,
            )

    own = Own(PythonEnvironment(Endless))
    made = experiment({})
    with pytest.raises(ConfigError, match="Own has no max_episode_steps to set"):
        dataclasses.replace(
            made,
            evaluation_environment=own,
            evaluator=dataclasses.replace(made.evaluator, max_episode_steps=7),
        )
