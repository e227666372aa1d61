"""The evaluator: parameters -> scores, on environments of its own."""

from collections.abc import Callable

import numpy as np

from distrl.envs.pool import Pool
from distrl.inferencer import Inferencer
from distrl.metrics import Report
from distrl.types import StepType
from distrl.variables import VariableClient


class Evaluator:
    """Plays whole episodes greedily, all with one version of the parameters."""

    def __init__(self, pool: Pool, inferencer: Inferencer, variables: VariableClient):
        """Args:
        pool: synchronous environments that no actor uses.
        inferencer: made with `evaluation=True`, over `variables`.
        variables: refreshed before each evaluation, and only then.
        """
        self._pool = pool
        self._inferencer = inferencer
        self._variables = variables
        self._streams = pool.env_ids
        self._timestep = pool.reset()
        self._life = 0

    def evaluate(
        self, episodes: int, should_stop: Callable[[], bool] = lambda: False
    ) -> Report | None:
        """Plays `episodes` episodes from their beginning; None when stopped before the end.

        Each environment plays its share, so that short episodes are not counted more often.
        """
        self._variables.refresh()
        version = self._variables.version
        self._life += 1  # state begins anew
        share = -(-episodes // self._pool.num_envs)
        returns: list[list[float]] = [[] for _ in range(self._pool.num_envs)]
        begun = np.zeros(self._pool.num_envs, bool)
        totals = np.zeros(self._pool.num_envs)
        while any(len(own) < share for own in returns):
            if should_stop():
                return None
            timestep = self._timestep
            begun |= timestep.step_type == StepType.FIRST
            totals = np.where(timestep.step_type == StepType.FIRST, 0.0, totals + timestep.reward)
            for i in np.flatnonzero((timestep.step_type == StepType.LAST) & begun):
                if len(returns[i]) < share:
                    returns[i].append(float(totals[i]))
            action = self._inferencer.inference(self._streams, timestep, self._life).action
            self._timestep = self._pool.step(action)
        scores = np.array([score for own in returns for score in own][:episodes])
        return {
            "evaluation_return": float(scores.mean()),
            "evaluation_return_min": float(scores.min()),
            "evaluation_return_max": float(scores.max()),
            "version": version,
        }
