"""A hierarchy on two clocks: a manager sets goals every few steps, a worker walks towards them.

distrl train --experiment=examples/hierarchy.py --topology=single_process
distrl train --experiment=examples/hierarchy.py:flat --topology=single_process

Four rooms, after Sutton, Precup and Singh 1999 (https://doi.org/10.1016/S0004-3702(99)00052-1): the
key is in one room, the treasure in another, and only the treasure, with the key, is rewarded.
"""

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np
from dm_env import specs

from distrl.agents.ppo import PPOConfig
from distrl.envs import Act, ControlFlow, End, MultiAgentEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnedPolicy, LearnerConfig
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec

MAP = (
    "....#....",
    "....#....",
    ".........",
    "....#....",
    "##.###.##",
    "....#....",
    ".........",
    "....#....",
    "....#....",
)
SIZE = len(MAP)
FREE = {(r, c) for r, row in enumerate(MAP) for c, x in enumerate(row) if x == "."}
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
CENTRES = ((1, 1), (1, 7), (7, 1), (7, 7))  # of the rooms: the manager's goals
START, KEY, TREASURE = CENTRES[0], CENTRES[1], CENTRES[2]
EVERY, TIME_LIMIT = 12, 96  # steps from goal to goal; of an episode
PROGRESS = 0.1  # the worker's reward for a step towards its goal; 1 for the goal


def distances(target: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Returns the number of steps from each free cell to a target."""
    found, queue = {target: 0}, deque([target])
    while queue:
        cell = queue.popleft()
        for row, column in MOVES:
            after = cell[0] + row, cell[1] + column
            if after in FREE and after not in found:
                found[after] = found[cell] + 1
                queue.append(after)
    return found


DISTANCES = [distances(centre) for centre in CENTRES]


class FourRooms(ControlFlow):
    """The rooms. Subclasses say who acts when."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def start(self) -> None:
        """Begins an episode."""
        self.cell, self.has_key, self.steps, self.found = START, False, 0, False

    def move(self, action: int) -> float:
        """Makes one step; returns its reward: 1 for the treasure. One move in ten goes astray."""
        if self._random.random() < 0.1:
            action = int(self._random.integers(4))
        after = self.cell[0] + MOVES[action][0], self.cell[1] + MOVES[action][1]
        self.cell = after if after in FREE else self.cell
        self.steps += 1
        self.has_key |= self.cell == KEY
        self.found = self.has_key and self.cell == TREASURE
        return float(self.found)

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.found or self.steps == TIME_LIMIT

    def observe(self) -> np.ndarray:
        """Returns where it is, and whether it has the key."""
        observation = np.zeros(SIZE * SIZE + 1, np.float32)
        observation[self.cell[0] * SIZE + self.cell[1]] = 1
        observation[-1] = self.has_key
        return observation


def spec_of(size: int) -> EnvironmentSpec:
    """Returns the spec of an agent with four actions."""
    return EnvironmentSpec(specs.Array((size,), np.float32), specs.DiscreteArray(4, np.int32))


class Flat(FourRooms):
    """One agent, which walks."""

    def agents(self) -> Mapping[str, EnvironmentSpec]:
        return {"walker": spec_of(SIZE * SIZE + 1)}

    def run_one_episode(self) -> Iterator[Act | End]:
        self.start()
        reward = 0.0
        while not self.over:
            action = yield Act("walker", self.observe(), reward)
            reward = self.move(int(action))
        yield End("walker", self.observe(), reward, truncated=not self.found)


class Hierarchy(FourRooms):
    """The manager chooses a room; the worker has some steps to get there."""

    def agents(self) -> Mapping[str, EnvironmentSpec]:
        size = SIZE * SIZE + 1
        return {"manager": spec_of(size), "worker": spec_of(size + len(CENTRES))}

    def run_one_episode(self) -> Iterator[Act | End]:
        self.start()
        earned = 0.0
        while not self.over:
            goal = int((yield Act("manager", self.observe(), earned)))
            earned = yield from self.walk(goal)
        yield End("manager", self.observe(), earned, truncated=not self.found)

    def walk(self, goal: int) -> Iterator[Act | End]:
        """Walks towards a goal, in an episode of the worker; returns what the manager earns."""
        mark = np.eye(len(CENTRES), dtype=np.float32)[goal]
        earned, reward, until = 0.0, 0.0, self.steps + EVERY
        while not self.over and self.steps < until and self.cell != CENTRES[goal]:
            action = yield Act("worker", np.concatenate([self.observe(), mark]), reward)
            before = DISTANCES[goal][self.cell]
            earned += self.move(int(action))
            reward = PROGRESS * (before - DISTANCES[goal][self.cell])
            reward += self.cell == CENTRES[goal]
        if self.cell == CENTRES[goal] and reward == 0.0:  # it was there: the manager waits a step
            self.steps += 1
            return earned
        reached = self.cell == CENTRES[goal]
        final = np.concatenate([self.observe(), mark])
        yield End("worker", final, reward, truncated=not reached)
        return earned


def policy(unroll_length: int, discount: float) -> LearnedPolicy:
    """Returns a policy that learns with PPO."""
    return LearnedPolicy(
        PPOConfig(discount=discount),
        ReplayConfig(unroll_length=unroll_length, max_size=128),
        LearnerConfig(batch_size=32),
    )


ACTORS = ActorsConfig(num_actors=1, num_envs=32)
GOAL = Goal(mean_return=0.9, max_env_steps=150_000)


def experiment() -> Experiment:
    """Returns the hierarchy: two agents on two clocks, each with its own learner."""
    return Experiment(
        MultiAgentEnvironment(Hierarchy),
        policies={"manager": policy(4, 0.95), "worker": policy(12, 0.9)},
        policy_of={"manager": "manager", "worker": "worker"},
        actors=ACTORS,
        goal=GOAL,
    )


def flat() -> Experiment:
    """Returns the same task for one agent, for comparison."""
    walker = policy(12, 0.99)
    return Experiment(
        MultiAgentEnvironment(Flat), walker.agent, walker.replay, ACTORS,
        learner=walker.learner, goal=GOAL,
    )  # fmt: skip
