"""`learner.learning=False`: acting, batches and counts go on, and parameters stay what they are."""

import numpy as np
import pytest

from distrl.agents.dqn import DQNConfig
from distrl.agents.without_learning import without_learning
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment


@pytest.mark.parametrize("learning", [True, False])
def test_updates_count_and_change_nothing(learning):
    experiment = Experiment(
        PythonEnvironment(CountingEnvironment),
        CheckingConfig(),
        ReplayConfig(unroll_length=4, max_size=8),
        ActorsConfig(num_actors=1, num_envs=2),
        learner=LearnerConfig(batch_size=2, learning=learning),
    )
    with SingleProcess(experiment, printer=lambda line: None) as parts:
        for _ in range(5):
            assert parts.run_once()
        (task,) = parts.tasks.values()
        version, params = task.learner.variables
        report = task.learner.take_report()
    assert version == 5
    assert report["learner_steps"] == 5
    assert report["trained_steps"] > 0
    assert report["wrong_state"] == 0  # logs are those of the batch
    assert int(params["version"]) == (5 if learning else 0)


def test_epsilon_stays_too():
    agent = without_learning(DQNConfig().make(PythonEnvironment(CountingEnvironment).spec()))
    params = {"epsilon": np.float32(1.0)}
    assert agent.with_env_steps(params, 10**6) is params


def test_gradient_workers_are_refused():
    with pytest.raises(ConfigError, match=r"with learner\.learning=False: no gradient is needed"):
        LearnerConfig(batch_size=8, num_gradient_workers=2, learning=False)
