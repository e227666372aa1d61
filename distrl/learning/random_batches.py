"""Random batches, for tests and benchmarks of losses and updates that have no replay."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.agent import Agent
from distrl.replay.columns import Columns
from distrl.types import StepType, Trajectory


class NoReplay:
    """Stands for a `Learner`'s replay where `update` is given its batches."""

    is_prioritized = False

    def __init__(self, packs: Columns | None = None):
        """Args: packs: see `ReplayReader`."""
        self.packs = packs


def random_windows(
    rng: np.random.Generator, length: int, batch_size: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns step types and discounts `[length + 1, batch_size]` of random windows of episodes.

    Episodes have 1 to 4 transitions and a true end or a time limit; windows begin and end anywhere.
    """
    kinds, discounts = (np.ones((length + 1, batch_size), dtype) for dtype in (np.int8, np.float32))
    for b in range(batch_size):
        t = -rng.integers(5)
        while t <= length:
            end = t + rng.integers(1, 5)
            if t >= 0:
                kinds[t, b] = StepType.FIRST
            if 0 <= end <= length:
                kinds[end, b] = StepType.LAST
                discounts[end, b] = rng.integers(2)
            t = end + 1
    return kinds, discounts


def random_batch(agent: Agent, length: int, batch_size: int, seed: int = 0) -> Trajectory:
    """Returns a batch of `random_windows`, `[length + 1, batch_size]`, with random data.

    Observations are Normal. Only for agents without extras, whose action is one array.
    """
    rng = np.random.default_rng(seed)
    kinds, discounts = random_windows(rng, length, batch_size)
    timestep = specs.zeros(specs.timestep_struct(agent.env_spec), length + 1, batch_size)
    reward = np.where(kinds == StepType.FIRST, 0, rng.normal(size=kinds.shape))
    action: Any = agent.env_spec.action
    low, high = action.minimum, action.maximum
    if isinstance(action, dm_specs.DiscreteArray):
        actions = rng.integers(action.num_values, size=kinds.shape)
    else:
        actions = low + (high - low) * rng.random((*kinds.shape, *action.shape))
    integer = np.zeros(batch_size, np.int32)
    return Trajectory(
        timestep=timestep._replace(
            step_type=kinds,
            discount=discounts,
            reward=reward.astype(np.float32),
            observation=jax.tree.map(
                lambda x: rng.normal(size=x.shape).astype(np.float32), timestep.observation
            ),
        ),
        action=actions.astype(action.dtype),
        extras=(),
        version=np.zeros(kinds.shape, np.int32),
        state=agent.initial_state(batch_size),
        stream_id=integer,
        life=integer,
        probability=np.full(batch_size, 0.01, np.float32),
    )
