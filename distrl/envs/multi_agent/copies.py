"""Copies of a single-agent environment as one environment, with an agent in each copy."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.multi_agent.joint import JointSpec
from distrl.envs.multi_agent.pool import AgentPool
from distrl.envs.pool import Environment, Pool, on_cores
from distrl.envs.time_limit import with_time_limit
from distrl.envs.whole_games import whole_games
from distrl.errors import ConfigError
from distrl.field_checks import check_whole, plain_numbers
from distrl.seeds import MAX_ENVS
from distrl.types import Nest, StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class Copies(SeveralAgents):
    """Independent copies of an environment, so that several policies learn side by side.

    Copy k has the agent "k" alone. All copies are stepped by one pool of the environment's own
    kind, and know nothing of each other: there are no joint episodes. `env_steps` and `episodes`
    count those of all copies.

    Attributes:
      environment: the environment, which has one agent.
      count: number of copies; `actors.num_envs` is the number of environments of each in an actor.
    """

    joint: ClassVar[bool] = False

    environment: Environment
    count: int

    def __post_init__(self) -> None:
        plain_numbers(self)
        if isinstance(self.environment, SeveralAgents):
            raise ConfigError(
                f"Copies: {self.environment.name} has several agents already; map them to policies "
                "with policy_of"
            )
        if not callable(getattr(self.environment, "spec", None)):
            raise ConfigError(
                "Copies: environment must be one, as distrl.envs.make gives it, got "
                f"{self.environment!r}"
            )
        check_whole(self, "count", "Copies")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The environment's name."""
        return self.environment.name

    @property
    def return_threshold(self) -> float | None:
        """The environment's return threshold."""
        return getattr(self.environment, "return_threshold", None)

    @property
    def episode_limit(self) -> int | None:
        """The environment's limit of an episode's steps."""
        return getattr(self.environment, "episode_limit", None)

    def agents(self) -> JointSpec:
        """Returns the environment's spec for each copy's agent."""
        spec = self.environment.spec()
        return JointSpec({str(k): spec for k in range(self.count)}, in_turns=True)

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec of one copy."""
        return self.environment.spec()

    def whole_games(self) -> "Copies":
        """See `distrl.envs.whole_games`."""
        return dataclasses.replace(self, environment=whole_games(self.environment))

    def with_time_limit(self, max_episode_steps: int) -> "Copies":
        """See `distrl.envs.time_limit`."""
        limited = with_time_limit(self.environment, max_episode_steps)
        return dataclasses.replace(self, environment=limited)

    def on_cores(self, cores: int) -> "Copies":
        """See `distrl.envs.pool.on_cores`."""
        return dataclasses.replace(self, environment=on_cores(self.environment, cores))

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """Returns a pool of all copies: those of copy k from `k * num_envs` on."""
        stride = MAX_ENVS // self.count  # at least as many as an actor has of each copy
        of_all = [(seed + k * stride) % 2**31 for k in range(self.count) for seed in seeds]
        return self.environment.make_pool(num_envs * self.count, wait_num * self.count, of_all)

    def agent_pool(self, pool: Pool, assignment: Assignment, first_environment: int) -> AgentPool:
        """See `SeveralAgents`."""
        return CopiesPool(pool, self.agents(), assignment, first_environment)


class CopiesPool(AgentPool):
    """Gives the time steps of each policy's copies.

    Stream i is environment i of the pool. Steps of a synchronous pool are passed on as views.
    """

    def __init__(
        self, pool: Pool, spec: JointSpec, assignment: Assignment, first_environment: int = 0
    ):
        """Args: see `AgentPool`; `assignment` must be fixed."""
        assert assignment.fixed is not None
        self.pool = pool
        self._first = first_environment
        self.num_streams = pool.num_envs
        self.env_steps = self.episodes = 0
        self._assignment = assignment
        self._environments = pool.env_ids
        of_stream = np.repeat(assignment.fixed, pool.num_envs // len(spec.agents))
        self._policy_of_stream = of_stream
        self._everyone = {
            name: _as_slice(np.flatnonzero(of_stream == k))
            for k, name in enumerate(assignment.policies)
        }
        self._chosen: dict[str, Any] = {}
        self._actions = specs.zeros(pool.spec.action, pool.num_envs)

    def _streams_of(self, policy: str) -> npt.NDArray[Any]:
        return np.arange(self.num_streams)[self._everyone[policy]]

    def recv(self) -> dict[str, TimeStep]:
        """See `AgentPool`."""
        step = self.pool.recv()
        self._environments = step.env_id
        self.env_steps += len(step.env_id) - int((step.step_type == StepType.FIRST).sum())
        self.episodes += int((step.step_type == StepType.LAST).sum())
        if not self.pool.is_async:
            self._chosen = self._everyone
        else:
            of_row = self._policy_of_stream[step.env_id]
            rows = {
                name: np.flatnonzero(of_row == k)
                for k, name in enumerate(self._assignment.policies)
            }
            self._chosen = {name: each for name, each in rows.items() if len(each)}
        return {
            name: jax.tree.map(lambda leaf, rows=rows: leaf[rows], step)
            for name, rows in self._chosen.items()
        }

    def send(self, actions: Mapping[str, Nest]) -> None:
        """See `AgentPool`."""
        size = len(self._environments)
        joined = jax.tree.map(
            lambda leaf: np.empty((size, *leaf.shape[1:]), leaf.dtype), self._actions
        )
        for name, rows in self._chosen.items():
            for out, action in zip(
                jax.tree.leaves(joined), jax.tree.leaves(actions[name]), strict=True
            ):
                out[rows] = action
        self.pool.send(joined, self._environments)


def _as_slice(rows: npt.NDArray[Any]) -> Any:
    """Returns consecutive rows as a slice, so that they are views."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
