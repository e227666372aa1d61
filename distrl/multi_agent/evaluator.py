"""The evaluator of environments with several agents: parameters -> scores, by policy."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from distrl.envs.multi_agent.pool import AgentPool
from distrl.episodes import EpisodeOutcome, Record, shares
from distrl.evaluator import Play, spread_of
from distrl.metrics.reports import Report
from distrl.policy_streams import PolicyStreams
from distrl.types import StepType
from distrl.variables.client import VariableClient


class MultiAgentEvaluator:
    """Plays whole episodes of the environments, greedily, each policy with one version."""

    def __init__(
        self,
        pool: AgentPool,
        policies: Mapping[str, PolicyStreams],
        variables: Mapping[str, VariableClient],
        agents: Sequence[str],
    ):
        """Args:
        pool: synchronous environments that no actor uses; the evaluator starts it.
        policies: the streams of each policy, by name, fixed ones too; nothing is stored.
        variables: the parameters of the policies that learn, refreshed only before each
          evaluation.
        agents: the environment's agents, in the order of the pool's streams.
        """
        self._pool = pool
        self._policies = dict(policies)
        self._variables = dict(variables)
        self._agents = list(agents)
        self._restarts = 0
        pool.start()
        self._steps = pool.recv()

    def play(self, episodes: int, max_seconds: float | None = None) -> Play[dict[str, Report]]:
        """Plays whole episodes of the environments.

        Each environment plays its share, see `shares`.

        Args:
          episodes: number of episodes of the environments.
          max_seconds: seconds after which only the episodes that have ended count; None: no
            limit.

        Returns:
          For each policy that learns, what `Evaluator.play` returns, with the returns of its own
          agents' episodes. `evaluation_agents` has each agent's mean return, whichever policy
          acted for it; None if it has ended none.
        """
        deadline = None if max_seconds is None else time.monotonic() + max_seconds
        for client in self._variables.values():
            client.refresh()
        num_envs = self._pool.pool.num_envs
        share = shares(episodes, num_envs)
        # An episode that was already in progress does not count.
        first = self._pool.episode_numbers + (self._pool.step_types != StepType.FIRST)
        ended = np.zeros(num_envs, np.int64)
        played: dict[str, list[tuple[int, Record]]] = {name: [] for name in self._policies}
        while (ended < share).any():
            yield
            if deadline is not None and time.monotonic() >= deadline:
                break
            number = self._pool.episode_numbers
            counts = (number >= first) & (number < first + share)
            self._add(counts, played)
            ended += counts & (self._pool.step_types == StepType.LAST)
            self._step()
        return self._scores(played)

    def _add(
        self, counts: npt.NDArray[np.bool_], played: dict[str, list[tuple[int, Record]]]
    ) -> None:
        """Adds the agents' episodes that end now, in the environments that count, in place."""
        for name, timestep in self._steps.items():
            ended = self._policies[name].statistics.add(timestep, timestep.env_id)
            if ended is None:
                continue
            for stream, record in zip(ended[0].tolist(), ended[1], strict=True):
                environment, agent = divmod(stream, len(self._agents))
                if counts[environment]:
                    played[name].append((agent, record))

    def _step(self) -> None:
        actions = {
            name: self._policies[name].infer(timestep.env_id, timestep).action
            for name, timestep in self._steps.items()
        }
        self._pool.send(actions)
        self._steps = self._pool.recv()

    def _scores(self, played: Mapping[str, Sequence[tuple[int, Record]]]) -> dict[str, Report]:
        by_agent: dict[str, list[float]] = {agent: [] for agent in self._agents}
        for episodes in played.values():
            for agent, record in episodes:
                by_agent[self._agents[agent]].append(record[0])
        agents = {agent: float(np.mean(r)) if r else None for agent, r in by_agent.items()}
        restarts, self._restarts = self._pool.restarts - self._restarts, self._pool.restarts
        reports = {}
        for name, variables in self._variables.items():
            statistics = self._policies[name].statistics
            statistics.take()
            records = [record for _, record in played[name]]
            returns = np.array([record[0] for record in records])
            reports[name] = {
                **spread_of(returns),
                "evaluation_agents": agents,
                "env_restarts": restarts,
                "version": variables.version,
            }
            if statistics.has_success and records:
                successes = sum(record[2] == EpisodeOutcome.SUCCESS for record in records)
                reports[name]["evaluation_success_rate"] = successes / len(records)
        return reports
