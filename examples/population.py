"""Population based training: eight A2C agents, of which the worst copy the best.

    distrl train --experiment=examples/population.py --seed=0

Each member has eight CartPole environments of its own, and begins with a random learning rate and
entropy cost. Every 40 of its updates, one that is among the worst quarter copies the parameters and
the optimiser's state of one of the best quarter, and changes the hyperparameters a little. The
members without that, for comparison:

    distrl train --experiment=examples/population.py:alone --seed=0
"""

import dataclasses

from distrl import envs
from distrl.agents.a2c import A2CConfig
from distrl.agents.tunable import Tunable
from distrl.config import ActorsConfig
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.population import Population

MEMBERS = 8
agent = Tunable(A2CConfig(), {"learning_rate": (1e-5, 1e-1), "entropy_cost": (1e-4, 1.0)})

experiment = Experiment(
    envs.Copies(envs.make("CartPole-v1"), MEMBERS),
    policies={f"member_{k}": agent for k in range(MEMBERS)},
    policy_of={str(k): f"member_{k}" for k in range(MEMBERS)},
    actors=ActorsConfig(num_actors=2, num_envs=4),
    population=Population(interval=40),
    goal=Goal(mean_return=None, max_env_steps=500_000),
)

alone = dataclasses.replace(experiment, population=None)
