"""An inferencer that acts with one of several saved versions of an agent for each stream."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl.agents.compiling import make_clients
from distrl.inferencer import Inferencer
from distrl.policy import SavedAgent
from distrl.types import Inference, Params, StepType, TimeStep


class _ChosenParams:
    """Parameters for an inferencer, which are replaced explicitly between two requests."""

    def __init__(self, version: int, params: Params):
        self.version, self.params = version, params

    def update(self) -> None:
        """Does nothing: there are no newer ones."""


class SnapshotSource:
    """Acts with one of several versions of an agent for each stream; see `InferenceSource`.

    A stream keeps its version until its next FIRST, where its recurrent state is reset.
    """

    def __init__(self, saved: SavedAgent, max_streams: int, seed: int, greedy: bool):
        """Args:
        saved: the agent, with the first version.
        max_streams: most streams that it serves.
        seed: seed of its random numbers.
        greedy: see `SavedPolicy`.
        """
        make_clients()
        self._chosen = _ChosenParams(saved.version, None)
        variables: Any = self._chosen
        self._inferencer = Inferencer(
            saved.agent,
            variables,
            seed=seed,
            max_streams=max_streams,
            batch_sizes=tuple(-(-max_streams // part) for part in (8, 4, 2, 1)),
            evaluation=greedy,
        )
        self._rng = np.random.default_rng(seed)
        self._snapshots: dict[int, Params] = {}  # by number, in order of arrival
        self._current: list[int] = []  # numbers to choose from
        self._of_stream: dict[int, int] = {}
        self.offer([saved])

    def offer(self, snapshots: list[SavedAgent]) -> None:
        """Replaces the versions that streams choose from at their next FIRST."""
        first = max(self._snapshots, default=-1) + 1
        self._current = list(range(first, first + len(snapshots)))
        for number, saved in zip(self._current, snapshots, strict=True):
            self._snapshots[number] = jax.device_put(saved.params)
        used = {*self._current, *self._of_stream.values()}
        self._snapshots = {n: params for n, params in self._snapshots.items() if n in used}

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: int = 0,
        with_state: bool = False,
    ) -> Inference:
        """See `Inferencer.inference`; the version is always 0."""
        numbers = np.array(
            [
                self._choose(stream, first)
                for stream, first in zip(
                    stream_ids.tolist(), timestep.step_type == StepType.FIRST, strict=True
                )
            ]
        )
        actions: Any = None
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            self._chosen.params = self._snapshots[number]
            part = timestep
            if len(rows) < len(numbers):
                part = jax.tree.map(lambda leaf, rows=rows: leaf[rows], timestep)
            some = self._inferencer.inference(stream_ids[rows], part, life).action
            if actions is None:
                actions = jax.tree.map(
                    lambda leaf: np.empty((len(numbers), *leaf.shape[1:]), leaf.dtype), some
                )
            for out, leaf in zip(jax.tree.leaves(actions), jax.tree.leaves(some), strict=True):
                out[rows] = leaf
        return Inference(actions, (), 0, () if with_state else None)

    def _choose(self, stream: int, first: bool) -> int:
        if first or stream not in self._of_stream:
            choice = self._current[self._rng.integers(len(self._current))]
            self._of_stream[stream] = choice
        return self._of_stream[stream]
