"""Experiments to debug: an environment with a breakpoint in it, and one that fails."""

from typing import Any

import dm_env

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.testing import CheckingConfig, CountingEnvironment


class Stopping(CountingEnvironment):
    """Stops once, at its 20th step."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.steps = 0

    def step(self, action: Any) -> dm_env.TimeStep:
        self.steps += 1
        if self.steps == 20 and _once():
            breakpoint()
        return super().step(action)


_done: list[bool] = []


def _once() -> bool:
    """True the first time that it is asked in this process."""
    _done.append(True)
    return len(_done) == 1


class Failing(CountingEnvironment):
    """Fails at its 20th step."""

    shelf = "empty"

    def __init__(self, seed: int):
        super().__init__(seed)
        self.steps = 0

    def step(self, action: Any) -> dm_env.TimeStep:
        self.steps += 1
        if self.steps == 20:
            self._look_up("shelf")
        return super().step(action)

    def _look_up(self, name: str) -> None:
        raise KeyError(name)


def _experiment(environment: PythonEnvironment) -> Experiment:
    return Experiment(
        environment,
        CheckingConfig(),
        actors=ActorsConfig(num_actors=1, num_envs=2),
        learner=LearnerConfig(batch_size=2),
        goal=Goal(mean_return=None, max_env_steps=2_000),
    )


def stopping() -> Experiment:
    """See Stopping."""
    return _experiment(PythonEnvironment(Stopping, "stopping"))


def failing() -> Experiment:
    """See Failing."""
    return _experiment(PythonEnvironment(Failing, "failing"))
