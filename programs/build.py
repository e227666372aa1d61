"""Makes every part of a task, for one process and for nodes alike."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distrl import seeds
from distrl.agents.agent import Agent
from distrl.agents.compiling import start_backend
from distrl.agents.without_learning import without_learning
from distrl.callbacks import TaskCallbacks
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Pool
from distrl.experiment import Experiment
from distrl.gradients.shares import ShareGradients
from distrl.gradients.update import SplitUpdate
from distrl.inferencer import InferenceCodec, Inferencer
from distrl.learner import Learner
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import LearnerGroup
from distrl.lockstep import (
    LockstepReader,
    LockstepSchedule,
    LockstepVariables,
    LockstepWriter,
)
from distrl.metrics.monitor import Monitor
from distrl.metrics.run_status import RunStatus
from distrl.metrics.sinks import make_writer
from distrl.programs import pools
from distrl.programs.learner_kinds import learner_kind
from distrl.replay.buffer import ReplayReader, ReplayWriter
from distrl.replay.columns import Columns
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.table.files import Stored
from distrl.rounds.clients import RoundVariables
from distrl.rounds.collection import CollectionRounds
from distrl.sharing.learner import Sharing
from distrl.transforms.comparison import check_own_transforms
from distrl.types import Trajectory
from distrl.variables.client import VariableClient

NEVER = 2**62  # sync interval of parameters that are refreshed by hand


def print_line(line: str) -> None:
    """Prints a line and flushes it, so that a node's log has it at once."""
    print(line, flush=True)


def make_sharing(builders: Mapping[str, "Builder"]) -> Sharing:
    """Returns what tasks share, for the builders of the tasks of one process, by name."""
    first = next(iter(builders.values()))
    first.start_backend()
    shared = first.experiment.shared
    names = {name for group in shared.values() for name in group.tasks}
    return Sharing(
        {name: group for name, group in shared.items() if set(group.tasks) <= set(builders)},
        {
            name: (builder.agent, builder.seed("learner", builder.task.index))
            for name, builder in builders.items()
            if name in names
        },
    )


class Builder:
    """The parts of one task of an experiment.

    What follows from the experiment is derived once. Environments may fork, which must come before
    JAX starts its threads: make pools first.

    Attributes:
      experiment: what to train.
      task: the task whose parts are made.
      printer: takes lines of progress.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: str | None = None,
        printer: Callable[[str], None] = print_line,
    ):
        """Args:
        experiment: what to train.
        task: name of the task; None: the only one.
        printer: takes lines of progress.
        """
        self.experiment, self.printer = experiment, printer
        self.task = experiment.only_task if task is None else experiment.tasks[task]
        self._several = len(experiment.tasks) > 1

    @functools.cached_property
    def agent(self) -> Agent:
        """The task's agent, behind its transforms."""
        return self.task.make_agent()

    @functools.cached_property
    def callbacks(self) -> TaskCallbacks:
        """The callbacks, which are called while the task is learned."""
        return TaskCallbacks(self.task.name, tuple(self.experiment.callbacks))

    @functools.cached_property
    def struct(self) -> Trajectory:
        """Shapes and dtypes of what is stored, for one stream at one step."""
        return self.task.trajectory_struct(self.agent)

    @functools.cached_property
    def schedule(self) -> LockstepSchedule | None:
        """The order of events in lockstep; None: actors and learner run freely."""
        return self.task.lockstep_schedule() if self.experiment.lockstep else None

    def seed(self, part: str, index: int, life: int = 0) -> int:
        """Returns the seed of a part in one of its lives."""
        return seeds.seed(self.experiment.seed, part, index, life)

    def start_backend(self) -> None:
        """Makes JAX's clients, as the agents of all tasks want them. Make pools first."""
        start_backend(task.make_agent() for task in self.experiment.tasks.values())

    # Environments.

    def make_actor_pool(self, index: int, life: int) -> Pool:
        """Returns the environments of one actor."""
        return pools.actor_pool(self.experiment, index, self.printer, life)

    def make_shared_pool(self, life: int) -> Pool:
        """Returns the environments of all actors, as one pool."""
        return pools.shared_pool(self.experiment, self.printer, life)

    def make_evaluator_pool(self, life: int) -> Pool:
        """Returns the evaluator's environments."""
        return pools.evaluator_pool(self.experiment, self.printer, life)

    # Acting.

    def make_variables(
        self, source: Any, stop: Any, timeout: float | None = None
    ) -> VariableClient | LockstepVariables | RoundVariables:
        """Returns an actor's parameters, refreshed in the background, by schedule or in rounds.

        Args:
          source: a `VariableSource`, in lockstep a `VersionSource`.
          stop: event that ends waits.
          timeout: seconds to wait for the scheduled parameters; None: `learner.timeout`.
        """
        timeout = self.task.learner.timeout if timeout is None else timeout
        if self.experiment.actors.min_actors is not None:
            return RoundVariables(source, stop)
        if self.schedule is None:
            return VariableClient(source, self.task.sync_interval, background=True)
        return LockstepVariables(
            source, self.schedule, self.task.replay.unroll_length, stop, timeout
        )

    def make_inferencer(
        self,
        variables: VariableClient | LockstepVariables | RoundVariables | None,
        max_streams: int,
        *,
        index: int = 0,
        life: int = 0,
        is_service: bool = False,
        batch_sizes: Sequence[int] = (),
        codec: InferenceCodec | None = None,
    ) -> Inferencer:
        """Returns an inferencer for actors.

        Args:
          variables: its parameters; None: see `Inferencer.set_variables`.
          max_streams: streams that it serves at most.
          index: the inferencer's index, or that of the actor that it belongs to.
          life: its node's life.
          is_service: it has a node, whose index and lives are not an actor's.
          batch_sizes, codec: see `Inferencer`.
        """
        self.start_backend()
        return Inferencer(
            self.agent,
            variables,
            seed=self.seed("inference service" if is_service else "inferencer", index, life),
            max_streams=max_streams,
            batch_sizes=batch_sizes,
            codec=codec,
        )

    def scheduled_writer(self, replay: ReplayWriter, actor: int) -> ReplayWriter:
        """Returns an actor's writer, in lockstep behind the schedule."""
        if self.schedule is None:
            return replay
        return LockstepWriter(replay, self.schedule, self.task.replay.unroll_length, actor)

    def make_rounds(self, life: int, gone: Callable[[], frozenset[int]]) -> CollectionRounds | None:
        """Returns `CollectionRounds` with these arguments; None: there are no rounds."""
        actors = self.experiment.actors
        if actors.min_actors is None:
            return None
        keep_late = actors.late_data == "keep"
        return CollectionRounds(
            actors.num_actors, actors.min_actors, actors.round_grace, keep_late, life, gone=gone
        )

    # Learning.

    def scheduled_reader(self, replay: ReplayReader) -> ReplayReader:
        """Returns the learner's reader, in lockstep behind the schedule."""
        return replay if self.schedule is None else LockstepReader(replay, self.schedule)

    def make_learner(
        self,
        replay: ReplayReader,
        learner_group: LearnerGroup | None = None,
        timeout: float | None = None,
        sharing: Sharing | None = None,
        split_update: SplitUpdate | None = None,
        few_readers: bool = False,
    ) -> Learner:
        """Returns the learner; see `Learner`.

        Args:
          replay, learner_group: see `Learner`.
          timeout: None: `learner.timeout`.
          sharing, few_readers: see `learner_kind`.
          split_update: see `Learner`.
        """
        self.start_backend()
        check_own_transforms(self.agent, self.task.replay, self.struct)
        config = self.task.learner
        devices = Devices(config.batch_size, config.num_devices)
        is_divided = split_update is not None or devices.several
        agent = self.agent if config.learning else without_learning(self.agent)
        learner = learner_kind(self.task, agent, sharing, is_divided, few_readers)(
            agent,
            replay,
            seed=self.seed("learner", self.task.index),
            timeout=config.timeout if timeout is None else timeout,
            keep=1 if self.schedule is None else self.schedule.versions_kept,
            last=self.task.goal.max_learner_steps,
            max_trained_steps=self.task.goal.max_trained_steps,
            devices=devices,
            learner_group=learner_group,
            period=self.task.replay.period,
            on_nonfinite=config.on_nonfinite,
            max_policy_lag=config.max_policy_lag,
            own_actions=self.task.learns_from is None,
            split_update=split_update,
            policy=self.task.name if self._several else "",
        )
        learner.on_update = self.callbacks.on_update
        learner.drops_when_done = self._several
        return learner

    def make_share_gradients(self) -> ShareGradients:
        """Returns the computation of gradients of shares of the task's batches."""
        length, batch_size = self.task.replay.unroll_length, self.task.learner.batch_size
        return ShareGradients(self.agent, self.struct, length, batch_size)

    def make_local_replay(self, saved: Path | None, stop: Any) -> LocalReplayBuffer:
        """Returns a replay in this process.

        Args:
          saved: folder of a saved table to start from; None: it starts empty.
          stop: event that ends waits.
        """
        config, batch_size = self.task.replay, self.task.learner.batch_size
        if self.task.learner.every_steps is not None:  # counted by the caller, not by the table
            config = dataclasses.replace(
                config, samples_per_insert=None, error_buffer=None, strict_ratio=False
            )
        seed, streams = self.seed("replay", self.task.index), self.task.actors.num_streams
        table = LocalTable(self.struct, config, batch_size, self.task.name, seed, streams)
        if saved is not None:
            table.restore(Stored(saved, Columns(self.struct, config.unroll_length), config))
        return LocalReplayBuffer(table, self.struct, config, batch_size, stop=stop)

    # Evaluation and metrics.

    def make_evaluation_inferencer(
        self, variables: VariableClient, max_streams: int, life: int, num_envs: int = 0
    ) -> Inferencer:
        """Returns an inferencer that acts greedily.

        Args:
          variables: its parameters.
          max_streams: streams that it serves at most.
          life: its node's life.
          num_envs: environments whose agents come and go; 0: batches have one size.
        """
        return Inferencer(
            self.agent,
            variables,
            seed=self.seed("evaluator", 1 + self.task.index, life),
            max_streams=max_streams,
            batch_sizes=self.task.batch_sizes(num_envs) if num_envs else (),
            evaluation=True,
        )

    def make_monitor(self, on_end: Callable[[str, bool], None], run_dir: Path | None) -> Monitor:
        """Returns the monitor, which adds up reports and ends the run at its goal."""
        printer, name = self._print, self.task.name
        goal, about = self.task.resolved_goal(), {"task": name, "seed": self.experiment.seed}
        writer = make_writer(self.experiment.metrics, run_dir, printer, about, goal.max_env_steps)
        coupled, size = self.task.is_coupled, self.task.replay.max_size
        return Monitor(
            goal,
            on_end,
            writer,
            printer=printer,
            status=RunStatus(goal, run_dir, printer, coupled, size),
            spec=self.task.env_spec,
            agents=self._evaluated_agents,
        )

    def _print(self, line: str) -> None:
        """Prints a line, with the task's name if there are several."""
        self.printer(f"{self.task.name}: {line}" if self._several else line)

    @property
    def _evaluated_agents(self) -> tuple[str, ...]:
        """The environment's agents if there are several, and an evaluator."""
        environment = self.experiment.environment
        if not isinstance(environment, SeveralAgents) or not self.task.evaluator.num_evaluators:
            return ()
        return tuple(environment.agents().agents)
