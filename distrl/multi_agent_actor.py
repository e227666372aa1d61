"""The actor of environments with several agents: environments -> policies -> replays."""

from collections.abc import Mapping

import numpy as np

from distrl.envs.multi_agent.pool import AgentPool
from distrl.metrics import Report
from distrl.policy_streams import PolicyStreams
from distrl.types import Inference, Nest


class MultiAgentActor:
    """Steps a pool whose agents follow several policies, each with its own parts."""

    def __init__(
        self, pool: AgentPool, policies: Mapping[str, PolicyStreams], *, first_stream: int = 0
    ):
        """Args:
        pool: the environments; the actor starts it.
        policies: the parts of each policy, by name.
        first_stream: stream i of the pool is `first_stream + i` in the program.
        """
        self._pool = pool
        self._policies = dict(policies)
        self._first_stream = first_stream
        pool.start()
        self._steps = pool.recv()

    def step(self) -> None:
        """Infers for each policy's streams, sends the actions, stores, and receives the next."""
        actions: dict[str, Nest] = {}
        inferences: dict[str, Inference] = {}
        streams = {
            name: (timestep.env_id + self._first_stream).astype(np.int32)
            for name, timestep in self._steps.items()
        }
        for name, timestep in self._steps.items():
            inferences[name] = self._policies[name].infer(streams[name], timestep)
            actions[name] = inferences[name].action
        self._pool.send(actions)
        for name, timestep in self._steps.items():
            self._policies[name].store(streams[name], timestep, inferences[name], timestep.env_id)
        self._steps = self._pool.recv()

    def take_reports(self) -> dict[str, Report]:
        """Returns what happened since the last call, by policy."""
        restarts = self._pool.restarts
        return {name: part.statistics.take(restarts) for name, part in self._policies.items()}

    def flush(self) -> None:
        """Waits until every unroll that was completed is in its table."""
        for part in self._policies.values():
            part.flush()

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()
