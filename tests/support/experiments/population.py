"""A small population on CartPole."""

from distrl import envs
from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.tunable import Tunable
from distrl.config import ActorsConfig
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.population import Population

AGENT = Tunable(A2CConfig(NetworkConfig(hidden_sizes=(8,))), {"learning_rate": (1e-4, 1e-2)})

experiment = Experiment(
    envs.Copies(envs.make("CartPole-v1"), 2),
    policies={"m0": AGENT, "m1": AGENT},
    policy_of={"0": "m0", "1": "m1"},
    actors=ActorsConfig(1, 4),
    population=Population(interval=10, episodes=3),
    goal=Goal(mean_return=None, max_env_steps=20_000),
)
