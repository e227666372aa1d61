"""One process: however a run ends, its environments are closed."""

import threading

import pytest

from distrl.checkpointing.saved import Saved
from distrl.envs import PythonEnvironment
from distrl.errors import EnvironmentFault, SaveError
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.programs import single_process as program
from distrl.testing import CheckingConfig, CountingEnvironment

EVALUATOR = 2  # environments, which the actors' pool has more of


class Watched(PythonEnvironment):
    """Its pools note how many of their environments are open."""

    open = 0

    def make_pool(self, num_envs, wait_num, seeds):
        pool = super().make_pool(num_envs, wait_num, seeds)
        close = pool.close
        type(self).open += num_envs

        def counted():
            type(self).open -= num_envs
            close()

        pool.close = counted
        return pool


class Breaks(CountingEnvironment):
    """Raises in its hundredth step."""

    def step(self, action):
        if self._count == 100:
            raise RuntimeError("out of stock")
        return super().step(action)


def experiment(builder, **more):
    return Experiment(
        environment=Watched(builder, "watched"),
        agent=CheckingConfig(),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=EVALUATOR, episodes=2, interval=0.01),
        **more,
    )


@pytest.fixture(autouse=True)
def nothing_open():
    Watched.open = 0
    yield
    assert Watched.open == 0


def run(made, tmp_path, stop=None):
    return program.single_process(
        made, stop=stop or threading.Event(), run_dir=tmp_path, printer=lambda line: None
    )


def test_a_run_that_ends(tmp_path):
    reason, reached = run(experiment(CountingEnvironment, goal=Goal(max_env_steps=500)), tmp_path)
    assert reached and "environment steps trained on" in reason
    assert (tmp_path / "params.npz").exists()


def test_a_run_that_cannot_save(tmp_path):
    (tmp_path / "params.npz").mkdir()
    with pytest.raises(SaveError, match=r"trained on, but could not save params\.npz: Is"):
        run(experiment(CountingEnvironment, goal=Goal(max_env_steps=500)), tmp_path)
    assert Saved.read(tmp_path).checkpoint is not None


def test_a_run_that_is_stopped(tmp_path):
    stop = threading.Event()
    stop.set()
    assert run(experiment(CountingEnvironment), tmp_path, stop) is None


def test_an_environment_that_raises(tmp_path):
    with pytest.raises(EnvironmentFault, match=r"out of stock(.|\n)*Traceback"):
        run(experiment(Breaks, goal=Goal(max_env_steps=10**9)), tmp_path)
    assert (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize("part", ["Learner", "Actor", "Evaluator", "pools.evaluator_pool"])
def test_a_part_that_cannot_be_made(tmp_path, monkeypatch, part):
    def fail(*args, **kwargs):
        raise MemoryError(part)

    monkeypatch.setattr(f"distrl.programs.build.{part}", fail)
    with pytest.raises(MemoryError, match=part):
        run(experiment(CountingEnvironment), tmp_path)
