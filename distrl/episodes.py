"""Statistics of episodes: returns, lengths, and how they ended."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep

Record = list[Any]  # an ended episode's: [return, length, outcome, component 0, component 1, ...]


def shares(episodes: int, num_envs: int) -> npt.NDArray[np.int64]:
    """Returns how many of an evaluation's episodes each environment plays, int64 `[num_envs]`.

    They differ by one at most, so that short episodes do not count more often than long ones.
    """
    return episodes // num_envs + (np.arange(num_envs) < episodes % num_envs)


class EpisodeOutcome:
    """The end of an episode; plain integers, like `StepType`."""

    END = 0  # a true end, without a report of success or failure
    TIME_OUT = 1  # a time limit, and no success
    FAILURE = 2  # a true end that the environment reports as a failure
    SUCCESS = 3  # reported by the environment, also at a time limit


class EpisodeStatistics:
    """Returns, lengths and outcomes of a pool's episodes, and its count of steps.

    A step is a transition. FIRST is not one, so resets are never counted. The return of a vector
    reward is the sum over its components, which are kept too. Lengths are in steps of the unwrapped
    environment if `env_info` has `time_steps`.

    Attributes:
      steps: environment steps so far.
      episodes: episodes that have ended so far.
    """

    def __init__(self, num_envs: int, spec: EnvironmentSpec | None = None):
        """Args:
        num_envs: number of environments.
        spec: the environment's spec; None: a scalar reward and no `env_info`.
        """
        reward_shape = () if spec is None else tuple(spec.reward.shape)
        declared = () if spec is None else spec.env_info
        self._vector = bool(reward_shape)
        self._has_success = "success" in declared
        self._has_time_steps = "time_steps" in declared
        self._returns = np.zeros((num_envs, *reward_shape), np.float64)
        self._lengths = np.zeros(num_envs, np.int64)  # only with `time_steps`
        self._counts = np.zeros(num_envs, np.int64)  # time steps of each one, if asynchronous
        self._count = 0  # time steps of every environment, if synchronous
        self._began = np.zeros(num_envs, np.int64)  # count at the episode's FIRST
        self.steps = self.episodes = 0  # read by other threads
        self._taken = 0  # steps up to the last `take`
        self._restarts = 0
        self._episodes: list[Record] = []

    def add(
        self, timestep: TimeStep, env_ids: npt.NDArray[np.int32] | None = None
    ) -> tuple[npt.NDArray[Any], list[Record]] | None:
        """Counts one vector step.

        Args:
          timestep: `[B, ...]`.
          env_ids: int `[B]`; None: all environments in order.

        Returns:
          The environments whose episodes ended, int `[k]`, and the k records; None if none ended.
        """
        kinds = timestep.step_type
        # Counting in bytes is ten times faster than in arrays this small.
        counted = kinds.astype(np.int8, copy=False).tobytes()
        self.steps += len(counted) - counted.count(StepType.FIRST)
        if env_ids is None:
            self._returns += timestep.reward
            self._count += 1
        else:
            self._returns[env_ids] += timestep.reward
            self._counts[env_ids] += 1
        if self._has_time_steps:
            spent = np.where(kinds == StepType.FIRST, 0, timestep.env_info["time_steps"])
            self._lengths[slice(None) if env_ids is None else env_ids] += spent
        if StepType.LAST not in counted:
            return None
        rows = np.flatnonzero(kinds == StepType.LAST)
        return self._end(timestep, rows, rows if env_ids is None else env_ids[rows], env_ids)

    def _end(
        self,
        timestep: TimeStep,
        rows: npt.NDArray[Any],
        envs: npt.NDArray[Any],
        env_ids: npt.NDArray[np.int32] | None,
    ) -> tuple[npt.NDArray[Any], list[Record]]:
        counts = self._count if env_ids is None else self._counts[envs]
        # Counts begin at 1, and an episode's time steps are its transitions and its FIRST.
        lengths = counts - self._began[envs] - 1
        if self._has_time_steps:
            lengths = self._lengths[envs]
            self._lengths[envs] = 0
        outcomes = timestep.discount[rows]  # a copy; discount 0 is END, 1 is TIME_OUT
        if self._has_success:
            success = timestep.env_info["success"][rows]
            outcomes[(success == 0) & (outcomes == EpisodeOutcome.END)] = EpisodeOutcome.FAILURE
            outcomes[success == 1] = EpisodeOutcome.SUCCESS
        returns = self._returns[envs]
        if not self._vector:
            columns = zip(returns.tolist(), lengths.tolist(), outcomes.tolist())
            records = list(map(list, columns))
        else:
            components = returns.reshape(len(envs), -1)
            columns = zip(components.sum(1).tolist(), lengths.tolist(), outcomes.tolist())
            records = [[*record, *parts] for record, parts in zip(columns, components.tolist())]
        self._episodes += records
        self.episodes += len(records)
        self._returns[envs] = 0.0  # FIRST comes next, whose reward is 0
        self._began[envs] = counts
        return envs, records

    @property
    def has_success(self) -> bool:
        """Whether the environment reports success."""
        return self._has_success

    @property
    def unreported(self) -> tuple[int, int]:
        """Environment steps and ended episodes since the last `take`."""
        return self.steps - self._taken, len(self._episodes)

    def take(self, restarts: int = 0) -> dict[str, Any]:
        """Returns what was counted since the last call.

        Args:
          restarts: restarts of the pool's environments after faults so far.

        Returns:
          `{"env_steps": int, "episodes": [Record, ...], "env_restarts": int}`.
        """
        report = {
            "env_steps": self.steps - self._taken,
            "episodes": self._episodes,
            "env_restarts": restarts - self._restarts,
        }
        self._taken = self.steps
        self._episodes, self._restarts = [], restarts
        return report


class RecentEpisodes:
    """Figures of the last episodes of a run: at most `window`.

    Attributes:
      mean_return: the mean of the returns; None without episodes. Read after each update.
    """

    def __init__(self, window: int, components: int = 0, has_success: bool = False):
        """Args:
        window: number of episodes.
        components: number of a vector reward's components; 0: it is a scalar.
        has_success: whether the environment reports success.
        """
        self._records: collections.deque[Record] = collections.deque(maxlen=window)
        self.mean_return: float | None = None
        self._components, self._has_success = components, has_success

    def __len__(self) -> int:
        """Returns the number of episodes."""
        return len(self._records)

    @property
    def records(self) -> list[Record]:
        """The episodes' records, the newest last."""
        return list(self._records)

    def extend(self, records: Sequence[Record]) -> None:
        """Adds episodes, the newest last."""
        if records:
            self._records.extend(records)
            self.mean_return = self._mean(0)

    def clear(self) -> None:
        """Forgets all episodes."""
        self._records.clear()
        self.mean_return = None

    @property
    def is_full(self) -> bool:
        """Whether as many episodes have ended as the window holds."""
        return len(self._records) == self._records.maxlen

    def _mean(self, column: int) -> float | None:
        """Returns the mean of a column of the records (0: the return); None without records."""
        if not self._records:
            return None
        values = [record[column] for record in self._records]
        if not all(map(math.isfinite, values)):  # `fsum` refuses infinities of both signs
            return sum(values) / len(values)
        return math.fsum(values) / len(values)

    @property
    def success_rate(self) -> float | None:
        """The share that were successes, from 0 to 1; None if not reported, or without episodes."""
        return self._rate(EpisodeOutcome.SUCCESS) if self._has_success else None

    def _rate(self, outcome: int) -> float | None:
        """Returns the share with this outcome, from 0 to 1."""
        if not self._records:
            return None
        return float(np.mean([record[2] == outcome for record in self._records]))

    def figures(self) -> dict[str, float | None]:
        """Returns the columns of `metrics.csv`; None for what is not known or not reported."""
        parts = {f"mean_return_{i}": self._mean(3 + i) for i in range(self._components)}
        return {
            "mean_return": self.mean_return,
            **self._spread(),
            **parts,
            "mean_length": self._mean(1),
            "success_rate": self.success_rate,
            "failure_rate": self._rate(EpisodeOutcome.FAILURE) if self._has_success else None,
            "time_out_rate": self._rate(EpisodeOutcome.TIME_OUT),
        }

    def _spread(self) -> dict[str, float | None]:
        """Returns the spread of the returns."""
        if not self._records:
            return dict.fromkeys(("std_return", "min_return", "max_return"))
        returns = [record[0] for record in self._records]
        figures = {"min_return": min(returns), "max_return": max(returns)}
        return {"std_return": float(np.std(returns)), **figures}
