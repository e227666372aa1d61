"""Episodes of a run's policies, step by step: what `distrl play` and `distrl video` share."""

import abc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Environment
from distrl.episodes import EpisodeOutcome, EpisodeStatistics, Record
from distrl.inferencer import InferenceSource
from distrl.policy import Policy
from distrl.policy_streams import PolicyStreams
from distrl.seeds import environment_seeds
from distrl.types import StepType, TimeStep

_ENDINGS = {
    EpisodeOutcome.END: "over",
    EpisodeOutcome.TIME_OUT: "time limit",
    EpisodeOutcome.FAILURE: "failure",
    EpisodeOutcome.SUCCESS: "success",
}


class PlayedEpisode(NamedTuple):
    """An episode that was played.

    Attributes:
      returns: by agent; of an environment with one agent, its return alone, under "".
      length: number of steps; each repeat by `wrappers.action_repeat` counts, and a joint step of
        several agents counts once.
      ending: how it ended.
    """

    returns: dict[str, float]
    length: int
    ending: str

    def __str__(self) -> str:
        returns = ", ".join(
            f"{agent} {value:.2f}".lstrip() for agent, value in self.returns.items()
        )
        return f"return {returns or '-'}  length {self.length:,}  {self.ending}"


class Game(abc.ABC):
    """One environment, and what acts in it."""

    @abc.abstractmethod
    def step(self) -> tuple[TimeStep | None, list[PlayedEpisode]]:
        """Takes a step, the first time the reset.

        Returns:
          The environment's time step `[1, ...]`, None where it has several agents; and the episode
          that ends with it, if one does.
        """

    @property
    @abc.abstractmethod
    def was_reset(self) -> bool:
        """Whether the last step was the reset before an episode."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the environment."""


class OneAgent(Game):
    """An environment with one agent."""

    def __init__(self, environment: Environment, load: Callable[[], Policy], seed: int):
        """Args:
        environment: what is played.
        load: returns the policy. Called when there is a pool: pools of processes fork, and to load
          parameters starts JAX.
        seed: see `evaluate`.
        """
        self._pool = environment.make_pool(1, 1, environment_seeds(seed, "evaluator", 0, 1))
        try:
            self._policy = policy = load()
        except BaseException:
            self._pool.close()
            raise
        self._statistics = EpisodeStatistics(1, self._pool.spec)
        self._timestep: TimeStep | None = None
        policy.reset()

    def step(self) -> tuple[TimeStep, list[PlayedEpisode]]:
        """See `Game`."""
        last = self._timestep
        if last is None:
            timestep = self._pool.reset()
        else:
            if last.step_type[0] == StepType.FIRST:
                self._policy.reset()
            timestep = self._pool.step(self._policy.in_pool(last.observation, last.reward))
        self._timestep = timestep
        ended = self._statistics.add(timestep)
        records = [] if ended is None else ended[1]
        return timestep, [
            PlayedEpisode({"": record[0]}, int(record[1]), _ENDINGS[int(record[2])])
            for record in records
        ]

    @property
    def was_reset(self) -> bool:
        """See `Game`."""
        return self._timestep is not None and bool(self._timestep.step_type[0] == StepType.FIRST)

    def close(self) -> None:
        """See `Game`."""
        self._pool.close()


class Sources(NamedTuple):
    """What acts in an environment with several agents.

    Attributes:
      assignment: which policy acts for which agent.
      make: by policy, a function of the number of streams and a seed.
    """

    assignment: Assignment
    make: Mapping[str, Callable[[int, int], InferenceSource]]


class SeveralAgentsGame(Game):
    """An environment with several agents."""

    def __init__(self, environment: SeveralAgents, drawn: Environment, sources: Sources, seed: int):
        """Args:
        environment: the environment.
        drawn: the same, with pictures.
        sources: its policies.
        seed: see `evaluate`.
        """
        spec = environment.agents()
        pool = drawn.make_pool(1, 1, environment_seeds(seed, "evaluator", 0, 1))
        self._agents = list(spec.agents)
        self._pool = environment.agent_pool(pool, sources.assignment, 0)
        self._policies = {}
        for k, name in enumerate(sources.assignment.policies):
            env_spec = spec.agents[sources.assignment.agents_of(name)[0]]
            source = sources.make[name](len(self._agents), seed + k)
            self._policies[name] = PolicyStreams(source, None, env_spec, len(self._agents))
        self._steps: dict[str, TimeStep] | None = None
        self._records: dict[str, Record] = {}  # by agent, once its episode has ended
        self._length = 0

    def step(self) -> tuple[None, list[PlayedEpisode]]:
        """See `Game`."""
        if self._steps is None:
            self._pool.start()
        else:
            self._pool.send(
                {
                    name: self._policies[name].infer(timestep.env_id, timestep).action
                    for name, timestep in self._steps.items()
                }
            )
        self._steps = self._pool.recv()
        kind = self._pool.step_types[0]
        if kind == StepType.FIRST:
            self._length, self._records = 0, {}
        else:
            self._length += 1
        for name, timestep in self._steps.items():
            ended = self._policies[name].statistics.add(timestep, timestep.env_id)
            for stream, record in zip(*ended) if ended is not None else ():
                self._add(self._agents[int(stream)], record)
        if kind != StepType.LAST:
            return None, []
        order = [agent for agent in self._agents if agent in self._records]
        returns = {agent: self._records[agent][0] for agent in order}
        endings = dict.fromkeys(_ENDINGS[int(self._records[agent][2])] for agent in order)
        return None, [PlayedEpisode(returns, self._length, "/".join(endings))]

    def _add(self, agent: str, record: Record) -> None:
        """Adds an agent's episode; one that has had another in this joint episode sums them up."""
        before: list[Any] = self._records.get(agent, [0.0])
        self._records[agent] = [before[0] + record[0], *record[1:]]

    @property
    def was_reset(self) -> bool:
        """See `Game`."""
        return bool(self._pool.step_types[0] == StepType.FIRST)

    def close(self) -> None:
        """See `Game`."""
        self._pool.close()


def play(
    game: Game,
    episodes: int,
    max_steps: int | None,
    stopped: Callable[[], bool],
    on_step: Callable[[TimeStep | None], None],
) -> Iterator[PlayedEpisode]:
    """Yields episodes as they end.

    Args:
      game: what plays.
      episodes: how many.
      max_steps: steps after which to end in any case, resets not counted; None: no limit.
      stopped: asked before each step whether to end.
      on_step: called after each, the reset included, with the time step.
    """
    played = steps = 0
    while played < episodes and not stopped() and (max_steps is None or steps < max_steps):
        timestep, ended = game.step()
        on_step(timestep)
        steps += not game.was_reset
        for episode in ended:
            played += 1
            yield episode
