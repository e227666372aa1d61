"""A pool of environments with several agents, seen as one stream for each agent and environment."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.envs.adapters.make import any_action
from distrl.envs.multi_agent.assignment import Assignment, Episode
from distrl.envs.multi_agent.joint import (
    AGENT_INFO,
    DISCOUNT,
    PRESENT,
    REWARD,
    STEP_TYPE,
    JointSpec,
)
from distrl.envs.pool import Pool
from distrl.types import Nest, StepType, TimeStep

_PARTS = (PRESENT, STEP_TYPE, REWARD, DISCOUNT)


class AgentPool:
    """Gives the time steps of each policy's streams, from a pool that steps joint steps.

    Stream `environment * num_agents + agent` is one agent of one environment. It has exactly the
    boundaries of `TimeStep`'s table, and has time steps only while its agent acts: streams come in
    batches of changing size. If the pool ends an episode by itself, the open episodes of all agents
    end with discount 1.

    Attributes:
      pool: the pool that it wraps.
      num_streams: number of streams.
      env_steps, episodes: joint steps taken, and joint episodes ended, so far.
      step_types: int `[environments]`, the type of each environment's last joint step.
      episode_numbers: int `[environments]`, the number from 0 of the episode that it belongs to.
    """

    def __init__(
        self, pool: Pool, spec: JointSpec, assignment: Assignment, first_environment: int = 0
    ):
        """Args:
        pool: steps the environments; its spec is `spec.joint()`.
        spec: the agents' specs.
        assignment: the agents' policies.
        first_environment: environment i of the pool has this number and i in the program.
        """
        self.pool = pool
        self._agents = list(spec.agents)
        self._assignment = assignment
        self._first = first_environment
        shape = (pool.num_envs, len(self._agents))
        self.num_streams = shape[0] * shape[1]
        self.env_steps = self.episodes = 0
        self._open = np.zeros(shape, bool)  # whether the agent's episode has begun and not ended
        self._policy = np.zeros(shape, np.int32)
        if assignment.fixed is not None:
            self._policy[:] = assignment.fixed
        self.step_types = np.zeros(pool.num_envs, np.int64)
        self._episodes = np.full(pool.num_envs, -1, np.int64)
        # Each agent's last action. Those of idle agents are ignored, but pools check them.
        self._action = any_action(spec.joint().action, pool.num_envs)
        self._columns = {
            name: np.array([self._agents.index(a) for a in assignment.agents_of(name)])
            for name in assignment.policies
        }
        self._rows: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        self._environments = pool.env_ids  # environments of the last joint steps

    def program_ids(self) -> dict[str, npt.NDArray[np.int32]]:
        """Returns the ids in the program of this pool's streams, int32 `[num_streams]` by policy.

        A policy's are consecutive, over all actors: `stream_shares` spreads only such ids evenly.
        No two policies have one in common. Entries of streams that a policy never acts for are -1.
        """
        bits = 31 - (len(self._assignment.policies) - 1).bit_length()
        ids = {}
        for k, name in enumerate(self._assignment.policies):
            streams = self._streams_of(name)
            first = (k << bits) + self._first * len(self._assignment.agents_of(name))
            ids[name] = np.full(self.num_streams, -1, np.int32)
            ids[name][streams] = first + np.arange(len(streams))
        return ids

    def _streams_of(self, policy: str) -> npt.NDArray[Any]:
        """Returns the streams that a policy may act for, those of an environment together."""
        return np.add.outer(self.pool.env_ids * len(self._agents), self._columns[policy]).ravel()

    @property
    def restarts(self) -> int:
        """Number of environments rebuilt so far."""
        return self.pool.restarts

    @property
    def episode_numbers(self) -> npt.NDArray[np.int64]:
        """A copy of the episode numbers; see the class."""
        return self._episodes.copy()

    def start(self) -> None:
        """Starts to reset every environment; `recv` returns their first steps. Call it once."""
        self.pool.start()

    def recv(self) -> dict[str, TimeStep]:
        """Returns the next time steps by policy, those without any left out.

        `env_id` has the numbers of the streams in this pool, int32 `[B]`. The result may be empty:
        all episodes have ended then, and `send` of no actions begins the next.
        """
        joint = self.pool.recv()
        self._environments = environments = joint.env_id
        self.step_types[environments] = joint.step_type
        info = {name: np.array(joint.env_info[name]) for name in _PARTS}
        present = info[PRESENT].astype(bool)
        began = joint.step_type == StepType.FIRST
        self._episodes[environments[began]] += 1
        last = joint.step_type == StepType.LAST
        self.env_steps += len(began) - int(began.sum())
        self.episodes += int(last.sum())
        opened = self._open[environments]
        if last.any():
            self._end_open_episodes(last, opened, present, info)
        first = present & (info[STEP_TYPE] == StepType.FIRST)
        if self._assignment.fixed is None:
            for row, agent in np.argwhere(first).tolist():
                environment = int(environments[row])
                episode = Episode(self._first + environment, int(self._episodes[environment]))
                self._policy[environment, agent] = self._assignment.choose(agent, episode)
        ended = present & (info[STEP_TYPE] == StepType.LAST)
        self._open[environments] = (opened | present) & ~ended
        return self._split(joint, present, info)

    def send(self, actions: Mapping[str, Nest]) -> None:
        """Starts to step the environments of the last `recv`.

        Args:
          actions: by policy, `[B, ...]` in the order of its streams there.
        """
        for name, (rows, columns) in self._rows.items():
            action = actions[name]
            for column in np.unique(columns):
                of_agent = columns == column
                table = self._action[self._agents[column]]
                environments = self._environments[rows[of_agent]]
                for old, new in zip(jax.tree.leaves(table), jax.tree.leaves(action), strict=True):
                    old[environments] = new[of_agent]
        if not self.pool.is_async:
            self.pool.send(self._action, self.pool.env_ids)
        else:
            chosen = jax.tree.map(lambda table: table[self._environments], self._action)
            self.pool.send(chosen, self._environments)

    def close(self) -> None:
        """Closes the environments."""
        self.pool.close()

    def _end_open_episodes(
        self,
        last: npt.NDArray[Any],
        opened: npt.NDArray[Any],
        present: npt.NDArray[Any],
        info: dict[str, npt.NDArray[Any]],
    ) -> None:
        """Where the joint step is LAST, makes every open agent's step LAST too; in place."""
        here = last[:, None]
        agents_own_end = present & (info[STEP_TYPE] == StepType.LAST)
        cut = here & opened & ~agents_own_end
        info[REWARD][cut & ~present] = 0
        info[DISCOUNT][cut] = 1
        info[STEP_TYPE][cut] = StepType.LAST
        # An agent that would begin at the very end has no transition.
        present &= ~(here & ~opened)
        present |= cut

    def _split(
        self, joint: TimeStep, present: npt.NDArray[Any], info: dict[str, npt.NDArray[Any]]
    ) -> dict[str, TimeStep]:
        """Returns the present agents' time steps by policy."""
        environments = joint.env_id
        policy = self._policy[environments]
        self._rows = {}
        steps = {}
        for k, name in enumerate(self._assignment.policies):
            columns = self._columns[name]
            chosen = present[:, columns] & (policy[:, columns] == k)
            row, position = np.nonzero(chosen)
            if not row.size:
                continue
            column = columns[position]
            self._rows[name] = row, column
            first = info[STEP_TYPE][row, column] == StepType.FIRST
            steps[name] = TimeStep(
                info[STEP_TYPE][row, column],
                info[REWARD][row, column],
                info[DISCOUNT][row, column],
                self._gather(joint.observation, row, position, columns),
                self._prev_action(environments[row], position, columns, first),
                (environments[row] * len(self._agents) + column).astype(np.int32),
                self._env_info(joint, row, position, columns),
            )
        return steps

    def _env_info(self, joint: TimeStep, row: Any, position: Any, columns: Any) -> Nest:
        """Returns the streams' own infos."""
        infos = joint.env_info.get(AGENT_INFO, {})
        if self._agents[columns[0]] not in infos:
            return ()
        gathered = self._gather(infos, row, position, columns)
        cut = joint.step_type[row] == StepType.LAST
        cut &= joint.env_info[PRESENT][row, columns[position]] == 0
        if cut.any():  # they have no time step in this joint step, and no info
            for name, part in gathered.items():
                for leaf in jax.tree.leaves(part):
                    leaf[cut] = -1 if name == "success" else 0
        return gathered

    def _gather(self, nests: Any, row: Any, position: Any, columns: npt.NDArray[Any]) -> Nest:
        """Returns rows of the agents' nests: entry i is row `row[i]` of agent `position[i]`."""
        agents = [nests[self._agents[column]] for column in columns]
        if len(agents) == 1:
            return jax.tree.map(lambda leaf: leaf[row], agents[0])
        return jax.tree.map(lambda *leaves: np.stack(leaves)[position, row], *agents)

    def _prev_action(
        self, environments: Any, position: Any, columns: npt.NDArray[Any], first: Any
    ) -> Nest:
        """Returns each stream's own last action; zeros at FIRST."""
        prev = self._gather(self._action, environments, position, columns)
        if first.any():
            for leaf in jax.tree.leaves(prev):
                leaf[first] = 0
        return prev
