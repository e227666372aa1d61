"""The actor of environments with several agents: environments -> policies -> replays."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from distrl.actor import ActorLogs, ActorLoop
from distrl.envs.multi_agent.pool import AgentPool
from distrl.episodes import Record
from distrl.metrics.reports import Report
from distrl.policy_streams import PolicyStreams
from distrl.runtime.time_account import INFERENCE, REPLAY_WRITE, in_state, of_thread
from distrl.types import Inference


class MultiAgentActor(ActorLoop):
    """Steps a pool whose agents follow several policies, each with its own parts.

    Its steps and episodes are the environments', whatever the number of agents in them.
    """

    def __init__(self, pool: AgentPool, policies: Mapping[str, PolicyStreams]):
        """Args:
        pool: the environments; the actor starts it.
        policies: the parts of each policy, by name.
        """
        self._pool = pool
        self._policies = dict(policies)
        self._program_ids = pool.program_ids()
        self._reported = (0, 0)
        pool.start()
        self._receive()

    def _receive(self) -> dict[str, list[Record]]:
        """Receives the next steps, and counts them: they were taken, whatever follows.

        Returns the records of the streams' episodes that they ended, by policy.
        """
        self._steps = self._pool.recv()
        records = {}
        for name, timestep in self._steps.items():
            ended = self._policies[name].statistics.add(timestep, timestep.env_id)
            if ended is not None:
                records[name] = ended[1]
        return records

    def step(self) -> ActorLogs:
        """See `ActorLoop`; the streams of a policy are inferred together."""
        streams, inferences = self._infer()
        self._pool.send({name: inference.action for name, inference in inferences.items()})
        self._store(streams, inferences)
        before = self.acted
        ended = self._receive()
        versions = {name: inference.version for name, inference in inferences.items()}
        return {"env_steps": self.acted - before, "episodes": ended, "version": versions}

    def _infer(self) -> tuple[dict[str, npt.NDArray[np.int32]], dict[str, Inference]]:
        """Returns the streams that have received a step, and their actions, by policy."""
        inferences: dict[str, Inference] = {}
        streams = {
            name: self._program_ids[name][timestep.env_id] for name, timestep in self._steps.items()
        }
        account = of_thread.account
        began = account.clock()
        for name, timestep in self._steps.items():
            inferences[name] = self._policies[name].infer(streams[name], timestep)
        account.lap(INFERENCE, began)
        return streams, inferences

    def _store(
        self, streams: dict[str, npt.NDArray[np.int32]], inferences: dict[str, Inference]
    ) -> None:
        for name, timestep in self._steps.items():
            self._policies[name].store(streams[name], timestep, inferences[name])

    def finish(self) -> None:
        """See `ActorLoop`."""
        self._store(*self._infer())

    @property
    def acted(self) -> int:
        """See `ActorLoop`."""
        return self._pool.env_steps

    @property
    def episodes(self) -> int:
        """See `ActorLoop`."""
        return self._pool.episodes

    @property
    def unreported(self) -> tuple[int, int]:
        """See `ActorLoop`."""
        steps, episodes = self._reported
        return self.acted - steps, self.episodes - episodes

    def take_report(self) -> dict[str, Report]:
        """Returns what happened since the last call, by policy.

        `episodes` of a report has the records of the policy's streams; `env_steps` and
        `env_episodes` are the environments' and the same in all reports.
        """
        steps, episodes = self.unreported
        self._reported = self.acted, self.episodes
        return {
            name: {
                **part.statistics.take(self._pool.restarts),
                "env_steps": steps,
                "env_episodes": episodes,
            }
            for name, part in self._policies.items()
        }

    def release(self) -> bool:
        """See `ActorLoop`."""
        with in_state(REPLAY_WRITE):
            return any(part.release() for part in self._policies.values())

    def flush(self) -> None:
        """See `ActorLoop`."""
        with in_state(REPLAY_WRITE):
            for part in self._policies.values():
                part.flush()

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()
