"""Policies of earlier runs, and earlier versions of a policy, as opponents that do not learn."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import numpy.typing as npt

from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.errors import ConfigError
from distrl.field_checks import check_flag, check_whole
from distrl.inferencer import InferenceSource
from distrl.policy import (
    POLICY_FILES,
    SavedAgent,
    find_saved,
    load_agent,
    load_saved,
    settings_of,
)
from distrl.rules import RandomPolicy
from distrl.runtime.durations import check_duration
from distrl.runtime.working_folder import absolute
from distrl.same_spaces import different_part
from distrl.saved.saved_agent import own_code
from distrl.snapshot_source import SnapshotSource
from distrl.specs import EnvironmentSpec
from distrl.task import Task
from distrl.types import Inference, StepType, TimeStep

Loaded = TypeVar("Loaded")


@dataclasses.dataclass(frozen=True)
class SavedPolicy:
    """A policy that distrl has saved, which acts and does not learn; also a recurrent one.

    Attributes:
      path: a run folder (of a run of several policies, `RUN/tasks/NAME`), or the folder of one
        checkpoint. An actor loads it when it starts.
      which: "latest" or "best" (see `Checkpoints.best`) of a run folder's checkpoints.
      greedy: choose the best action or the mode; False: sample or explore, as in training.
      trust: run the code that is saved with an agent of the user's own; see `load_policy`.
    """

    path: str
    which: str = "latest"
    greedy: bool = True
    trust: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(absolute(self.path)))
        for name in ("greedy", "trust"):
            check_flag(self, name, "SavedPolicy")
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
    """Earlier versions of a policy, for self-play: one is chosen at random for each episode.

    They are the checkpoints of a run folder, which may be that of the run itself. Before the first
    checkpoint, actions are random. `checkpoint.period` and `checkpoint.keep` of that run say how
    far apart they are, and how many there are. Damaged ones are skipped.

    Attributes:
      path: the run folder; of a run of several policies, `RUN/tasks/NAME`.
      newest: how many of the newest checkpoints to choose from, at most.
      refresh: seconds between two searches for new ones.
      greedy: see `SavedPolicy`.
      trust: see `SavedPolicy`.
    """

    path: str
    newest: int = 10
    refresh: float = 10.0
    greedy: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(absolute(self.path)))
        check_whole(self, "newest", "PastPolicies")
        check_duration("PastPolicies.refresh", self.refresh, zero=True)
        for name in ("greedy", "trust"):
            check_flag(self, name, "PastPolicies")

    def check(self, env_spec: EnvironmentSpec, name: str) -> None:
        """Like that of `SavedPolicy`, for the newest undamaged checkpoint, if there is one."""
        for path in reversed(Checkpoints(self.path).paths()):
            settings = _load_past(path, lambda checkpoint: settings_of(checkpoint, self.trust))
            if settings is not None:
                what = f"policy {name!r}: PastPolicies({self.path!r})"
                check_spec(settings["env_spec"], env_spec, what)
                return

    def check_own(self, task: Task, env_spec: EnvironmentSpec, name: str) -> None:
        """Like `check`, for the checkpoints that the run itself will write to the folder.

        Args:
          task: the task that will write them.
          env_spec, name: see `check`.
        """
        what, code = f"policy {name!r}: PastPolicies({self.path!r})", own_code(task)
        if code is not None and not self.trust:
            raise ConfigError(
                f"{what} has the checkpoints of this run, and its agent, a transform or the spec "
                f"is not distrl's ({code}): loading them runs that code; set trust=True"
            )
        check_spec(task.env_spec, env_spec, what)

    def make_source(
        self, env_spec: EnvironmentSpec, max_streams: int, seed: int
    ) -> InferenceSource:
        """See `FixedPolicy`."""
        return PastSource(self, env_spec, max_streams, seed)


def check_spec(saved: EnvironmentSpec, env_spec: EnvironmentSpec, what: str) -> None:
    """Raises ConfigError if a saved policy cannot act for agents of `env_spec`."""
    difference = different_part(saved, env_spec)
    if difference is not None:
        part, was, now = difference
        raise ConfigError(f"{what} was trained with another {part}: {was}; here it is {now}")


def _load_past(
    path: Path,
    load: Callable[[Checkpoint], Loaded],
    skip: Callable[[ConfigError], None] = lambda error: None,
) -> Loaded | None:
    """Returns what `load` returns for a checkpoint; None if it is damaged or was removed.

    Args:
      path: its folder.
      load: takes the checkpoint, whose files were checked.
      skip: takes the error of a damaged checkpoint.
    """
    try:
        checkpoint = Checkpoint.read(path, POLICY_FILES)
    except ConfigError as error:
        if path.exists():
            skip(error)
        return None
    try:
        return load(checkpoint)
    except (ConfigError, OSError):
        if path.exists():
            raise
        return None


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
        self._damaged: set[str] = set()  # names of damaged checkpoints
        self._reported = False  # whether it printed that there is no checkpoint yet
        self._begun: set[int] = set()  # streams whose episodes a version of the policy plays

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
        """Loads new checkpoints, and drops those that are too old."""
        self._looked = time.monotonic()
        loaded: dict[str, SavedAgent] = {}
        for path in reversed(self._checkpoints.paths()):
            saved = self._loaded.get(path.name) or self._load(path)
            if saved is not None:
                loaded[path.name] = saved
            if len(loaded) == self._policy.newest:
                break
        loaded = dict(reversed(loaded.items()))
        if not loaded and not self._reported:
            self._reported = True
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

        def skip(error: ConfigError) -> None:
            self._damaged.add(path.name)
            print(f"PastPolicies: checkpoint skipped: {error}", flush=True)

        saved = _load_past(
            path, lambda checkpoint: load_agent(checkpoint, self._policy.trust), skip
        )
        if saved is None:
            return None
        what = f"PastPolicies({self._policy.path!r})"
        check_spec(saved.agent.env_spec, self._env_spec, what)
        return saved
