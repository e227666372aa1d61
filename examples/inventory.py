"""A business simulator: goods arrive a week after their order, and a week's reward comes later.

distrl train --experiment=examples/inventory.py --topology=single_process
"""

import numpy as np
from dm_env import specs

from distrl.agents.impala import IMPALAConfig
from distrl.envs import PythonEnvironment
from distrl.envs.simulator import Simulator
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal

WEEKS, SHELF, ORDER, DEMAND = 30, 20, 6, 4  # units; the most ordered and demanded per week
PRICE, COST, STORAGE = 2.0, 1.0, 0.2  # per unit; storage per unit and week


class Inventory(Simulator):
    """Each week: order 0 to 6 units, which arrive at its end; the demand is 0 to 4, at random.

    A week's accounts are closed two weeks later, and only then is its reward known.
    """

    reward_delay = 2

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def reset_simulator(self) -> None:
        self._stock, self._week = int(self._random.integers(SHELF)), 0
        self._accounts: list[float] = []

    def to_env_action(self, action: np.ndarray) -> int:
        return min(
            int(action), SHELF - self._stock
        )  # orders beyond the shelf's capacity are not sent

    def step_simulator(self, env_action: int) -> tuple[bool, bool]:
        demand = int(self._random.integers(DEMAND + 1))
        sold = min(self._stock, demand)
        self._stock += env_action - sold
        self._week += 1
        self._accounts.append(PRICE * sold - COST * env_action - STORAGE * self._stock)
        return False, self._week == WEEKS  # a time limit: business would continue

    def get_state(self) -> np.ndarray:
        return np.eye(SHELF + 1, dtype=np.float32)[self._stock]

    def get_reward(self, step: int) -> float:
        return self._accounts[step]

    def observation_spec(self) -> specs.Array:
        return specs.Array((SHELF + 1,), np.float32, "stock")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(ORDER + 1, np.int32, "order")


experiment = Experiment(
    PythonEnvironment(Inventory),
    IMPALAConfig(discount=0.9),
    actors=ActorsConfig(num_actors=2, num_envs=16),
    learner=LearnerConfig(batch_size=16),
    goal=Goal(mean_return=33.0),  # the best, ordering up to 5 units, earns 36.7
)
