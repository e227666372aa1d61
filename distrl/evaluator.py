"""The evaluator: parameters -> scores, in separate environments."""

import time
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from distrl.envs.pool import Pool
from distrl.episodes import EpisodeOutcome, EpisodeStatistics, Record, shares
from distrl.inferencer import Inferencer
from distrl.metrics.reports import Report
from distrl.types import StepType
from distrl.variables.client import VariableClient

Scores = TypeVar("Scores")
Play = Generator[None, None, Scores]
"""An evaluation in progress: yields before each step, and returns its scores."""


def play_to_the_end(play: Play[Scores], should_stop: Callable[[], bool]) -> Scores | None:
    """Returns an evaluation's scores; None if `should_stop()`, asked before each step, is true."""
    try:
        while True:
            next(play)
            if should_stop():
                play.close()
                return None
    except StopIteration as ended:
        scores: Scores = ended.value
        return scores


class Evaluator:
    """Plays whole episodes greedily, with one policy after the other, each in one version."""

    def __init__(self, pool: Pool, policies: Mapping[str, tuple[Inferencer, VariableClient]]):
        """Args:
        pool: synchronous environments that no actor uses.
        policies: by name, an inferencer with `evaluation=True`, and its parameters, refreshed only
          before each evaluation of the policy.
        """
        self._pool = pool
        self._policies = dict(policies)
        self._streams = pool.env_ids
        self._statistics = EpisodeStatistics(pool.num_envs, pool.spec)
        self._timestep = pool.reset()
        self._life = 0

    def play(self, episodes: int, max_seconds: float | None = None) -> Play[dict[str, Report]]:
        """Plays whole episodes with each policy.

        Each environment plays its share, see `shares`.

        Args:
          episodes: number of episodes of each policy.
          max_seconds: seconds for each policy, after which only the episodes that have ended count;
            None: no limit.

        Returns:
          For each policy the number of episodes; their mean, least and greatest return, None if
          there are none; the mean of each component of a vector reward; and the success rate, if
          the environment reports success.
        """
        scores = {}
        for name, policy in self._policies.items():
            scores[name] = yield from self._play(*policy, episodes, max_seconds)
        return scores

    def _play(
        self,
        inferencer: Inferencer,
        variables: VariableClient,
        episodes: int,
        max_seconds: float | None,
    ) -> Play[Report]:
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        variables.refresh()
        version = variables.version
        self._life += 1  # resets the recurrent state
        share = shares(episodes, self._pool.num_envs).tolist()
        played: list[list[Record]] = [[] for _ in range(self._pool.num_envs)]
        begun = np.zeros(self._pool.num_envs, bool)
        while any(len(records) < most for records, most in zip(played, share)):
            yield
            if deadline is not None and time.monotonic() >= deadline:
                break
            timestep = self._timestep
            begun |= timestep.step_type == StepType.FIRST
            ended = self._statistics.add(timestep)
            if ended is not None:
                for i, record in zip(*ended):
                    if begun[i] and len(played[i]) < share[i]:
                        played[i].append(record)
            action = inferencer.inference(self._streams, timestep, self._life).action
            self._timestep = self._pool.step(action)
        records = [record for each in played for record in each]
        return {**self._scores(records), "version": version}

    def _scores(self, records: list[Record]) -> Report:
        returns = np.array([record[0] for record in records])
        report: Report = {
            **spread_of(returns),
            "env_restarts": self._statistics.take(self._pool.restarts)["env_restarts"],
        }
        if not records:
            return report
        if self._pool.spec.reward.shape:
            report["evaluation_returns"] = np.mean([r[3:] for r in records], axis=0).tolist()
        if "success" in self._pool.spec.env_info:
            successes = sum(record[2] == EpisodeOutcome.SUCCESS for record in records)
            report["evaluation_success_rate"] = successes / len(records)
        return report


def spread_of(returns: npt.NDArray[np.float64]) -> Report:
    """Returns number, mean, least and greatest of an evaluation's returns; None without any."""
    some = len(returns) > 0
    return {
        "evaluation_episodes": len(returns),
        "evaluation_return": float(returns.mean()) if some else None,
        "evaluation_return_min": float(returns.min()) if some else None,
        "evaluation_return_max": float(returns.max()) if some else None,
    }
