"""A supply chain with ten agents: three learned policies on three clocks, and one rule.

distrl train --experiment=examples/supply_chain.py --topology=single_process
python examples/supply_chain.py  # what all earn by rules alone
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from dm_env import specs

from distrl.agents.ppo import PPOConfig
from distrl.envs import MultiAgentEnvironment
from distrl.envs.multi_agent.simulator import MultiAgentSimulator
from distrl.experiment import ActorsConfig, Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.rules import Rule

DAYS, LARGEST_ORDER = 56, 8
STORES = [f"store_{k}" for k in range(6)]
WAREHOUSES = [f"warehouse_{k}" for k in range(3)]
SUPPLIER = {store: WAREHOUSES[k // 2] for k, store in enumerate(STORES)}  # each serves two stores
SUPPLIER |= dict.fromkeys(WAREHOUSES, "factory")
EVERY = {"store": 1, "warehouse": 2, "factory": 7}  # days between two decisions
LOT = {"store": 1, "warehouse": 4, "factory": 40}  # units in one step of an order
TRUCKS = 2  # days until an order arrives
PRICE = {"store": 5.0, "warehouse": 3.0, "factory": 2.0}  # per unit, of what each of them sells
STORAGE, MADE = 0.05, 1.0  # per unit and day; per unit, of what the factory makes
WEEK = np.array([3, 3, 3, 4, 6, 8, 2])  # a store's mean demand by weekday


def kind(agent: str) -> str:
    """Returns "store", "warehouse" or "factory"."""
    return agent.partition("_")[0]


class SupplyChain(MultiAgentSimulator):
    """Stores order every day, warehouses every second one, the factory plans a week.

    An agent earns what it sells less what its supplies and its storage cost, from one decision to
    the next. Books are closed one decision later, and only then is the reward known.
    """

    reward_delay = 1

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self._agents = [*STORES, *WAREHOUSES, "factory"]

    def agent_specs(self) -> Mapping[str, tuple[specs.Array, specs.Array]]:
        state = specs.Array((10,), np.float32, "state")
        return {
            agent: (state, specs.DiscreteArray(LARGEST_ORDER + 1, np.int32, "order"))
            for agent in self._agents
        }

    def reset_simulator(self) -> None:
        self._day = 0
        self._stock = {agent: 2 * LOT[kind(agent)] * 3 for agent in self._agents}
        self._coming = {agent: [0] * TRUCKS for agent in self._agents}
        self._demand = dict.fromkeys(self._agents, 0)  # of the last day
        self._books: dict[str, list[float]] = {agent: [] for agent in self._agents}

    def acting_agents(self) -> Sequence[str]:
        return [agent for agent in self._agents if self._day % EVERY[kind(agent)] == 0]

    def to_env_action(self, agent: str, action: np.ndarray) -> int:
        return int(action) * LOT[kind(agent)]

    def step_simulator(self, env_actions: Mapping[str, int]) -> tuple[bool, bool]:
        for agent in env_actions:
            self._books[agent].append(0.0)
        self._demand = dict.fromkeys(self._agents, 0)
        for agent in self._agents:  # stores first: their orders are the warehouses' demand
            self._stock[agent] += self._coming[agent].pop(0)
            order = env_actions.get(agent, 0)
            supplier = SUPPLIER.get(agent)
            if supplier is None:
                delivered, cost = order, MADE * order
            else:
                self._demand[supplier] += order
                delivered = min(order, self._stock[supplier])
                self._stock[supplier] -= delivered
                cost = PRICE[kind(supplier)] * delivered
                self._books[supplier][-1] += cost
            self._coming[agent].append(delivered)
            if kind(agent) == "store":
                self._demand[agent] = int(self._random.poisson(WEEK[self._day % 7]))
                sold = min(self._demand[agent], self._stock[agent])
                self._stock[agent] -= sold
                self._books[agent][-1] += PRICE["store"] * sold
            self._books[agent][-1] -= cost + STORAGE * self._stock[agent]
        self._day += 1
        return False, self._day == DAYS  # a time limit: business would continue

    def get_state(self, agent: str) -> np.ndarray:
        lot = LOT[kind(agent)]
        goods = [self._stock[agent], *self._coming[agent], self._demand[agent]]
        state = np.zeros(10, np.float32)
        state[:3] = goods[0] / (10 * lot), sum(goods[1:-1]) / (10 * lot), goods[-1] / (10 * lot)
        state[3 + self._day % 7] = 1
        return state

    def get_reward(self, agent: str, step: int) -> float:
        return self._books[agent][step] / (10 * LOT[kind(agent)])


def keep_a_stock(state: np.ndarray) -> int:
    """Orders up to twenty lots on the shelf and on the way."""
    return int(np.clip(np.rint(20 - 10 * (state[0] + state[1])), 0, LARGEST_ORDER))


def order_at_random(state: np.ndarray) -> int:
    """Orders anything."""
    del state
    return int(np.random.randint(LARGEST_ORDER + 1))


def mean_returns(rule: Callable[[np.ndarray], int], episodes: int = 30) -> dict[str, float]:
    """Returns each kind's mean return where all agents follow the rule."""
    earned: dict[str, list[float]] = {kind: [] for kind in LOT}
    for seed in range(episodes):
        chain, over = SupplyChain(seed), False
        chain.reset_simulator()
        while not over:
            acting = chain.acting_agents()
            orders = {a: chain.to_env_action(a, rule(chain.get_state(a))) for a in acting}
            over = any(chain.step_simulator(orders))
        for agent, books in chain._books.items():
            earned[kind(agent)].append(sum(books) / (10 * LOT[kind(agent)]))
    return {name: round(float(np.mean(returns)), 1) for name, returns in earned.items()}


experiment = Experiment(
    MultiAgentEnvironment(SupplyChain),
    policies={
        "stores": LearnedPolicy(PPOConfig(discount=0.95)),
        "warehouses": LearnedPolicy(PPOConfig(discount=0.9)),
        "factory": LearnedPolicy(PPOConfig(discount=0.9)),
        "corner_shop": Rule(keep_a_stock),
    },
    policy_of={
        **dict.fromkeys(STORES, "stores"),
        **dict.fromkeys(WAREHOUSES, "warehouses"),
        "factory": "factory",
        "store_5": "corner_shop",
    },
    actors=ActorsConfig(num_actors=2, num_envs=8),
    goal=Goal(max_env_steps=200_000),
)

if __name__ == "__main__":
    for rule in (order_at_random, keep_a_stock):
        print(rule.__name__, mean_returns(rule))
