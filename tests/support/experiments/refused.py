"""Experiments that cannot be, most of them of several policies: each is refused when it is made."""

from distrl import envs
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.config import ActorsConfig, LearnerConfig
from distrl.experiment import Experiment, LearnedPolicy, Shared
from distrl.replay.config import ReplayConfig
from distrl.rules import RandomPolicy
from distrl.testing import CheckingConfig

_SMALL = NetworkConfig(hidden_sizes=(8,))
_CARTPOLE = envs.make("CartPole-v1")
_GAME = envs.make("mpe2:simple_spread_v3")
_AGENTS = ("agent_0", "agent_1", "agent_2")
_ACTS = LearnedPolicy(IMPALAConfig(_SMALL))


def _beside(other: LearnedPolicy, **more: object) -> Experiment:
    return Experiment(_CARTPOLE, policies={"main": _ACTS, "other": other}, **more)


def _agents(**more: object) -> Experiment:
    policies = {"p": LearnedPolicy(DQNConfig(_SMALL)), "q": RandomPolicy()}
    return Experiment(_GAME, policies=policies, **more)


def memory_on_another_clock() -> Experiment:
    """A task with recurrent state on the steps of another."""
    memory = NetworkConfig(hidden_sizes=(8,), core="lstm")
    return _beside(LearnedPolicy(R2D2Config(memory), learns_from="main"))


def acts_for_no_agent() -> Experiment:
    """A policy that no agent maps to."""
    return _agents(policy_of=dict.fromkeys(_AGENTS, "p"))


def no_such_policy() -> Experiment:
    """An agent that maps to no policy."""
    return _agents(policy_of=dict(zip(_AGENTS, "pqr", strict=True)))


def table_of_another() -> Experiment:
    """Two algorithms of which one stores with each step what the other's actor has not."""
    acts = LearnedPolicy(DQNConfig(_SMALL))
    checks = LearnedPolicy(CheckingConfig(recurrent=False), learns_from="main")
    return Experiment(_CARTPOLE, policies={"main": acts, "other": checks})


def on_policy_from_another() -> Experiment:
    """An algorithm that learns from its own actions only, on another's."""
    return _beside(LearnedPolicy(PPOConfig(_SMALL), learns_from="main"))


def more_workers_than_unrolls() -> Experiment:
    """A number of gradient workers that no batch splits into."""
    workers = LearnerConfig(batch_size=8, num_gradient_workers=9)
    return _beside(LearnedPolicy(DQNConfig(_SMALL), learner=workers, learns_from="main"))


def shared_with_nobody() -> Experiment:
    """Parameters in common with a task that is not there."""
    return _beside(
        LearnedPolicy(DQNConfig(_SMALL), learns_from="main"), shared={"torso": ("main", "third")}
    )


def several_updates_summed() -> Experiment:
    """One gradient for two tasks, of which one makes several updates from a batch."""
    shared = {"torso": Shared(("p", "q"))}
    policies = {"p": LearnedPolicy(PPOConfig(_SMALL)), "q": LearnedPolicy(PPOConfig(_SMALL))}
    return Experiment(
        _GAME,
        policies=policies,
        policy_of=dict(zip(_AGENTS, "ppq", strict=True)),
        shared=shared,
    )


def more_shards_than_actors() -> Experiment:
    """A shard to which no actor would write: three shards, of two actors."""
    learner = LearnerConfig(batch_size=2)
    actors = ActorsConfig(num_actors=2, num_envs=2)
    replay = ReplayConfig(backend="served", num_shards=3, max_size=24)
    return Experiment(_CARTPOLE, IMPALAConfig(_SMALL), replay, actors, learner=learner)
