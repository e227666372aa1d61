"""Experiments with several agents and policies that check the data path by exact arithmetic."""

import dataclasses

import jax.numpy as jnp

from distrl.agents.agent import LearnerState, Logs
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.rules import Rule
from distrl.specs import EnvironmentSpec
from distrl.testing import SEED, CheckingAgent, CheckingConfig, CountingAgents
from distrl.types import Params, Trajectory

REPLAY = ReplayConfig(unroll_length=5, max_size=100)


@dataclasses.dataclass(frozen=True)
class OwnConfig(CheckingConfig):
    """Also checks that every step is one of the policy's own agents'.

    Attributes:
      own: positions of these agents in the environment.
    """

    own: tuple[int, ...] = ()

    def make(self, env_spec: EnvironmentSpec) -> "OwnAgent":
        return OwnAgent(env_spec, self.recurrent, self.own)


class OwnAgent(CheckingAgent):
    """Counts steps of other agents as wrong versions. Agent k's observations have seed 3 s + k."""

    def __init__(self, env_spec: EnvironmentSpec, recurrent: bool, own: tuple[int, ...]):
        super().__init__(env_spec, recurrent)
        self._own = own

    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        grads, logs = super().compute_gradients(params, learner_state, batch)
        agents = batch.timestep.observation[:, :, SEED] % 3
        foreign = ~jnp.isin(agents, jnp.array(self._own, agents.dtype))
        wrong = logs["wrong_version"] + jnp.sum(foreign).astype(jnp.int32)
        return grads, {**logs, "wrong_version": wrong}


def experiment(backend: str = "shared_memory") -> Experiment:
    """Two learned policies, one of them for two of the three agents."""
    replay = dataclasses.replace(REPLAY, backend=backend)
    return Experiment(
        MultiAgentEnvironment(CountingAgents, "counting"),
        policies={
            "outer": LearnedPolicy(OwnConfig(own=(0, 2)), replay, LearnerConfig(batch_size=6)),
            "inner": LearnedPolicy(OwnConfig(False, own=(1,)), replay, LearnerConfig(batch_size=4)),
        },
        policy_of={"a": "outer", "b": "inner", "c": "outer"},
        actors=ActorsConfig(num_actors=2, num_envs=4),
    )


def reverb() -> Experiment:
    """As `experiment`, with tables on Reverb servers."""
    return experiment("reverb")


def asynchronous() -> Experiment:
    """As `experiment`, with actors that wait for three of their four environments."""
    made = experiment()
    return dataclasses.replace(made, actors=dataclasses.replace(made.actors, wait_num=3))


def limited() -> Experiment:
    """As `experiment`, with a limit of updates for each policy; outer's queue reaches its first."""
    return _limited(outer=(REPLAY, _updates(5)), inner=(REPLAY, _updates(60)))


def limited_transitions() -> Experiment:
    """As `limited`, with a limit of transitions trained on for outer."""
    return _limited(outer=(REPLAY, Goal(max_trained_steps=100)), inner=(REPLAY, _updates(60)))


def limited_ratio() -> Experiment:
    """As `limited`, with a ratio of samples to inserts for the policy that ends first, inner."""
    ratio = dataclasses.replace(
        REPLAY, table="uniform", samples_per_insert=2.0, min_size_to_sample=8, error_buffer=16
    )
    return _limited(outer=(REPLAY, _updates(60)), inner=(ratio, _updates(5)))


def _updates(count: int) -> Goal:
    return Goal(max_learner_steps=count)


def _limited(**of_policies: tuple[ReplayConfig, Goal]) -> Experiment:
    """Args: table and limit of each policy. Tables fill long before the last policy reaches its."""
    made = experiment()
    policies = {
        name: dataclasses.replace(
            made.policies[name],
            replay=dataclasses.replace(replay, max_size=24),
            goal=goal,
        )
        for name, (replay, goal) in of_policies.items()
    }
    return dataclasses.replace(made, policies=policies)


def _three(observation: object) -> int:
    return 3


def with_rule() -> Experiment:
    """One learned policy beside a rule."""
    made = experiment()
    policies = {"outer": made.policies["outer"], "inner": Rule(_three)}
    return dataclasses.replace(made, policies=policies)
