"""Policies of earlier runs, and earlier versions of a policy, as opponents that do not learn."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.errors import ConfigError
from distrl.inferencer import Inferencer, InferenceSource
from distrl.policy import (
    POLICY_FILES,
    SavedAgent,
    find_saved,
    load_agent,
    load_saved,
    settings_of,
)
from distrl.rules import RandomPolicy
from distrl.specs import EnvironmentSpec
from distrl.types import Inference, Params, StepType, TimeStep


@dataclasses.dataclass(frozen=True)
class SavedPolicy:
    """A policy that distrl has saved, which acts and does not learn; also a recurrent one.

    Attributes:
      path: a run folder (of a run of several policies, `RUN/tasks/NAME`), or the folder of one
        checkpoint. An actor loads it when it starts.
      which: "latest" or "best" (see `Checkpoints.best`) of a run folder's checkpoints.
      greedy: choose the best action or the mode; False: sample or explore, as in its training.
      trust: run the code that is saved with an agent of the user's own; see `load_policy`.
    """

    path: str
    which: str = "latest"
    greedy: bool = True
    trust: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(Path(self.path).absolute()))
        find_saved(self.path, self.which, "SavedPolicy")

    def check(self, env_spec: EnvironmentSpec, name: str) -> None:
        """Raises ConfigError if the policy `name` cannot act for agents of this spec."""
        checkpoint = find_saved(self.path, self.which, "SavedPolicy")
        saved = settings_of(checkpoint, self.trust)["env_spec"]
        check_spec(saved, env_spec, f"policy {name!r}: SavedPolicy({self.path!r})")

    def make_source(
        self, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ) -> InferenceSource:
        """See `FixedPolicy`."""
        saved = load_saved(self.path, self.which, trust=self.trust, caller="SavedPolicy")
        check_spec(saved.agent.env_spec, env_spec, f"SavedPolicy({self.path!r})")
        return SnapshotSource(saved, max_streams, seed, self.greedy)


@dataclasses.dataclass(frozen=True)
class PastPolicies:
    """Earlier versions of a policy, each chosen at random for an episode: for self-play.

    They are the checkpoints of a run folder, which may be that of the run itself. Before the first
    one the actions are random. `checkpoint.period` and `checkpoint.keep` of that run say how far
    apart they are, and how many there are. Damaged ones are left out.

    Attributes:
      path: the run folder; of a run of several policies, `RUN/tasks/NAME`.
      newest: the most of the newest checkpoints to choose from.
      refresh: seconds between two looks for new ones.
      greedy: see `SavedPolicy`.
      trust: see `SavedPolicy`.
    """

    path: str
    newest: int = 10
    refresh: float = 10.0
    greedy: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(Path(self.path).absolute()))
        if isinstance(self.newest, bool) or not isinstance(self.newest, int) or self.newest < 1:
            raise ConfigError(f"PastPolicies: newest must be 1 or more, got {self.newest!r}")
        if not self.refresh >= 0:
            raise ConfigError(f"PastPolicies: refresh must be 0 s or more, got {self.refresh!r}")

    def make_source(
        self, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ) -> InferenceSource:
        """See `FixedPolicy`."""
        return PastSource(self, env_spec, max_streams, seed)


def check_spec(saved: EnvironmentSpec, env_spec: EnvironmentSpec, what: str) -> None:
    """Raises ConfigError if a saved policy cannot act for agents of `env_spec`."""
    parts = ("observation", "action", "reward")
    for part in parts:
        was, now = (specs.struct(getattr(spec, part)) for spec in (saved, env_spec))
        if was != now or (part == "action" and saved.action != env_spec.action):
            raise ConfigError(
                f"{what} was trained with another {part}: {getattr(saved, part)}; here it is "
                f"{getattr(env_spec, part)}"
            )


class _ChosenParams:
    """Parameters as an inferencer takes them, replaced by hand between two requests."""

    def __init__(self, version: int, params: Params):
        self.version, self.params = version, params

    def update(self) -> None:
        """Does nothing: there are no newer ones."""


class SnapshotSource:
    """Actions of one of several versions of an agent for each stream; see `InferenceSource`.

    A stream keeps its version until its next FIRST, where its recurrent state is reset.
    """

    def __init__(self, saved: SavedAgent, max_streams: int, seed: int, greedy: bool):
        """Args:
        saved: the agent, with the first version.
        max_streams: streams that it serves at most.
        seed: seed of its random numbers.
        greedy: see `SavedPolicy`.
        """
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
        self._snapshots: dict[int, Params] = {}  # by number, in the order of their coming
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


class PastSource:
    """The source of `PastPolicies`."""

    def __init__(
        self, policy: PastPolicies, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ):
        """Args: policy: the settings. Others: see `FixedPolicy.make_source`."""
        self._policy, self._env_spec = policy, env_spec
        self._max_streams, self._seed = max_streams, seed
        self._random = RandomPolicy().make_source(env_spec, max_streams, seed)
        self._checkpoints = Checkpoints(policy.path)
        self._source: SnapshotSource | None = None
        self._loaded: dict[str, SavedAgent] = {}
        self._looked = -np.inf
        self._damaged: set[str] = set()  # names of checkpoints
        self._told = False  # that there is no checkpoint yet
        self._begun: set[int] = set()  # streams whose episodes have a version of the policy

    def inference(
        self,
        stream_ids: npt.NDArray[np.int32],
        timestep: TimeStep,
        life: int = 0,
        with_state: bool = False,
    ) -> Inference:
        """See `SnapshotSource.inference`. An episode that began with random actions keeps them."""
        if time.monotonic() - self._looked >= self._policy.refresh:
            self._look()
        if self._source is None:
            return self._random.inference(stream_ids, timestep, life, with_state)
        self._begun.update(stream_ids[timestep.step_type == StepType.FIRST].tolist())
        known = np.array([stream in self._begun for stream in stream_ids.tolist()])
        if known.all():
            return self._source.inference(stream_ids, timestep, life, with_state)
        inference = self._random.inference(stream_ids, timestep, life, with_state)
        if known.any():
            part = jax.tree.map(lambda leaf: leaf[known], timestep)
            some = self._source.inference(stream_ids[known], part, life).action
            pairs = zip(jax.tree.leaves(inference.action), jax.tree.leaves(some), strict=True)
            for out, leaf in pairs:
                out[known] = leaf
        return inference

    def _look(self) -> None:
        """Loads checkpoints that have come since, and drops those that are too old."""
        self._looked = time.monotonic()
        loaded: dict[str, SavedAgent] = {}
        for path in reversed(self._checkpoints.paths()):
            saved = self._loaded.get(path.name) or self._load(path)
            if saved is not None:
                loaded[path.name] = saved
            if len(loaded) == self._policy.newest:
                break
        loaded = dict(reversed(loaded.items()))
        if not loaded and not self._told:
            self._told = True
            where = self._policy.path
            print(f"PastPolicies: no checkpoint in {where} yet: actions are random", flush=True)
        if not loaded or loaded.keys() == self._loaded.keys():
            return
        self._loaded, snapshots = loaded, list(loaded.values())
        if self._source is None:
            self._source = SnapshotSource(
                snapshots[0], self._max_streams, self._seed, self._policy.greedy
            )
        self._source.offer(snapshots)

    def _load(self, path: Path) -> SavedAgent | None:
        """Returns a checkpoint's agent; None if it is damaged, or the run has removed it."""
        if path.name in self._damaged:
            return None
        try:
            checkpoint = Checkpoint.read(path, POLICY_FILES)
        except ConfigError as error:
            if path.exists():
                self._damaged.add(path.name)
                print(f"PastPolicies: checkpoint skipped: {error}", flush=True)
            return None
        try:
            saved = load_agent(checkpoint, self._policy.trust)
        except (ConfigError, OSError):
            if path.exists():
                raise
            return None
        what = f"PastPolicies({self._policy.path!r})"
        check_spec(saved.agent.env_spec, self._env_spec, what)
        return saved
