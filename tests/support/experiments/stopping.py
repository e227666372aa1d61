"""Experiments that are busy when they are asked to stop: they compile, evaluate, or step."""

import ctypes
import dataclasses

import jax.numpy as jnp

from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.testing import CheckingAgent, CheckingConfig, CountingEnvironment

SECONDS = 40  # longer than a test waits for the program's end


class SlowStep(CountingEnvironment):
    """Is in its hundredth step for long, inside of a library."""

    def step(self, action):
        if self._count == 100:
            print("it has begun", flush=True)
            ctypes.CDLL(None).sleep(SECONDS)
        return super().step(action)


class SlowAtOnce(CountingEnvironment):
    """Is in its second step for long; the first is that which tells its spec."""

    def step(self, action):
        if self._count == 1:
            print("it has begun", flush=True)
            ctypes.CDLL(None).sleep(SECONDS)
        return super().step(action)


class SlowToCompile(CheckingAgent):
    """Its learner step keeps XLA busy for long."""

    def learner_step(self, params, learner_state, batch):
        print("it has begun", flush=True)
        reward = batch.timestep.reward
        for i in range(6000):
            reward = jnp.sort(jnp.sin(reward + i), axis=i % 2)
        params, learner_state, logs = super().learner_step(params, learner_state, batch)
        return params, learner_state, {**logs, "sum": reward.sum()}


@dataclasses.dataclass(frozen=True)
class SlowToCompileConfig(CheckingConfig):
    def make(self, env_spec):
        return SlowToCompile(env_spec, self.recurrent)


def _experiment(builder, agent=None, **more) -> Experiment:
    return Experiment(
        environment=PythonEnvironment(builder, "slow"),
        agent=agent or CheckingConfig(),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        goal=Goal(max_env_steps=10**9),
        **more,
    )


def stepping() -> Experiment:
    return _experiment(SlowStep)


def compiling() -> Experiment:
    return _experiment(CountingEnvironment, SlowToCompileConfig())


def evaluating() -> Experiment:
    return _experiment(
        CountingEnvironment,
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=2, episodes=2, interval=0.01),
        evaluation_environment=PythonEnvironment(SlowAtOnce, "slow"),
    )
