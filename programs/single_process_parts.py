"""The parts of an experiment in one process, where actor and learners take turns."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from distrl.actor import ActorLoop
from distrl.agents.compiling import computing_threads
from distrl.checkpointing.resume_point import ResumePoint, restore_learner, table_counts
from distrl.envs.pool import Pool
from distrl.experiment import Experiment
from distrl.learner_group.devices import check_gpus
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.learning.update_trigger import StepStart
from distrl.programs.build import NEVER, Builder, make_sharing
from distrl.programs.groups import LEARNER
from distrl.programs.running.acting import make_actor
from distrl.programs.running.evaluating import TasksEvaluator
from distrl.programs.running.turns_core import TurnsCore
from distrl.runtime.host_resources import native_threads, usable_cores
from distrl.runtime.start_up import mark
from distrl.runtime.time_account import ENV_STEP, OTHER, current_account
from distrl.sharing.config import update_order
from distrl.sharing.learner import Sharing
from distrl.variables.client import VariableClient


class TaskParts:
    """The parts of one task.

    Attributes:
      builder: made them.
      replay, learner, variables, inferencer: the parts.
      resumed: facts about what was loaded from a checkpoint, by part.
    """

    def __init__(
        self,
        builder: Builder,
        resume_point: ResumePoint,
        stop: threading.Event | None,
        group: LearnerGroup,
        sharing: Sharing,
        num_envs: int,
        life: int,
    ):
        """Args:
        builder: the task's builder.
        resume_point: the checkpoint to resume from, if any.
        stop: ends waits of the replay.
        group: all processes of the learner.
        sharing: what tasks share.
        num_envs: number of environments in this process.
        life: life that the parts begin.
        """
        self.builder = builder
        self._is_coupled = builder.task.is_coupled
        every = builder.task.learner.every_steps
        self._start = None if every is None else StepStart(every)
        self.replay = builder.make_local_replay(resume_point.table(), stop)
        self.learner = builder.make_learner(self.replay, group, sharing=sharing, few_readers=True)
        self.resumed: dict[str, dict[str, Any]] = {}
        if resume_point.checkpoint is not None:
            checkpoint = Path(resume_point.checkpoint)
            inserts = None if resume_point.table() is not None else self.replay.info().inserts
            self.resumed["learner"] = restore_learner(self.learner, checkpoint, inserts)
            self.resumed["table"] = table_counts(self.replay.info())
        self.learner.share()
        self.learner.compile_ahead(builder.task.batch_struct(builder.struct))
        self.variables = VariableClient(self.learner, NEVER)  # `run_once` refreshes them
        self.inferencer = builder.make_inferencer(
            self.variables,
            num_envs * builder.task.streams_per_env,
            index=builder.task.index,  # those of several tasks draw different numbers
            life=life,
            batch_sizes=builder.task.batch_sizes(num_envs),
        )

    def may_learn(self, acted: bool) -> bool:
        """Returns whether there is a batch to learn from.

        Without a ratio of samples to inserts, which would allow any number of updates, there is one
        only right after a step of the actor.

        Args:
          acted: whether the actor has just made a step.
        """
        if self._start is not None:
            return self._start.is_due(self.learner.count_acted()[0], self.learner.can_step())
        return (acted or self._is_coupled) and self.learner.can_step()

    def learn(self) -> None:
        """Makes an update; drops the batch if the learner is done."""
        self.learner.step()
        if self._start is not None:
            self._start.done()


def make_builders(experiment: Experiment, printer: Callable[[str], None]) -> dict[str, Builder]:
    """Returns the builder of each task, by name."""
    return {name: Builder(experiment, name, printer) for name in experiment.tasks}


class SingleProcess:
    """The parts of an experiment in this process. All actors' environments form one pool.

    Attributes:
      tasks: the parts of each task, by name.
      actor: acts for all tasks.
      evaluator: None if the experiment has none.
    """

    def __init__(
        self,
        experiment: Experiment,
        stop: threading.Event | None = None,
        printer: Callable[[str], None] = print,
        *,
        resume_point: ResumePoint | None = None,
        life: int = 0,
        join: Callable[[], LearnerGroup] = SingleProcessGroup,
        builders: Mapping[str, Builder] | None = None,
    ):
        """Args:
        experiment: what to train.
        stop: ends waits of the replay.
        printer: takes a line about each actor's environments.
        resume_point: the checkpoint to resume from; None: start from scratch.
        life: life that all parts begin.
        join: connects to the learner's other processes.
        builders: those of all tasks, if they were made already.
        """
        experiment.check_single_process()
        builders = builders or make_builders(experiment, printer)
        first = next(iter(builders.values()))
        with contextlib.ExitStack() as opened:
            # Pools first: they may fork, which must be done before JAX starts its threads.
            before = native_threads()
            pool = first.make_shared_pool(life)
            opened.callback(pool.close)
            env_threads = native_threads() - before
            evaluator_pool: Pool | None = None
            if experiment.evaluator.num_evaluators:
                evaluator_pool = first.make_evaluator_pool(life)
                opened.callback(evaluator_pool.close)
            mark("environments")
            group = opened.enter_context(join())
            first.start_backend()  # before anything else that makes JAX's clients
            self._core: TurnsCore | None = None
            computing = computing_threads()
            if experiment.actors.pin and pool.one_thread and usable_cores() > 1:
                self._core = TurnsCore(env_threads | computing)
            num_gpus = LEARNER.num_gpus(experiment)
            check_gpus(num_gpus, f"learner.num_gpus={num_gpus}")
            start = resume_point or ResumePoint()
            sharing = make_sharing(builders)
            self.tasks = {
                name: TaskParts(
                    builder, start.of_task(name), stop, group, sharing, pool.num_envs, life
                )
                for name, builder in builders.items()
            }
            mark("parameters and table")
            self.actor: ActorLoop = make_actor(
                builders,
                pool,
                {name: part.inferencer for name, part in self.tasks.items()},
                {name: part.replay for name, part in self.tasks.items()},
                life=life,
            )
            self._in_turn = [
                self.tasks[name] for name in update_order(experiment.shared, list(builders))
            ]
            for part in self.tasks.values():
                part.learner.count_acted = lambda: (self.actor.acted, self.actor.episodes)
                if self._core is not None and computing:
                    part.learner.while_computing = self._core
            self.evaluator: TasksEvaluator | None = None
            if evaluator_pool is not None:
                learners = {name: part.learner for name, part in self.tasks.items()}
                self.evaluator = TasksEvaluator(builders, evaluator_pool, learners, life)
            self._is_finished = False
            self._opened = opened.pop_all()

    def run_once(self, may_act: Callable[[], bool] | None = None) -> bool:
        """Acts with what was learned until a task has a batch; those that have one learn from it.

        Args:
          may_act: asked before each step of the actor; None: it always may. Once it may not, it
            never may again.

        Returns:
          False if there is no batch and the actor may not act.
        """
        parts = self._in_turn
        if all(part.learner.is_done for part in parts):  # as when they were saved
            return True
        ready = [part for part in parts if part.may_learn(acted=False)]
        if not ready:  # nothing is learned while it acts
            for part in parts:
                part.variables.refresh()
            with self._acting():
                ready = self._act(may_act)
        for part in ready:
            part.learn()
        return bool(ready)

    def _act(self, may_act: Callable[[], bool] | None) -> list[TaskParts]:
        """Acts until a task has a batch; returns those that have one: none if it may not act."""
        ready: list[TaskParts] = []
        while not ready:
            if may_act is not None and not may_act():
                return self._finish()
            self.actor.step()
            if self._core is not None:
                self._core.count()
            ready = [part for part in self._in_turn if part.may_learn(acted=True)]
        return ready

    def _finish(self) -> list[TaskParts]:
        """Stores what is left of the acting until a task has a batch; returns those that have one.

        That is the last step, once, and then the steps that wait for late rewards.
        """
        if not self.actor.acted:
            return []
        ready: list[TaskParts] = []
        while not ready:
            if not self._is_finished:
                self._is_finished = True
                self.actor.finish()
            elif not self.actor.release():
                break
            ready = [part for part in self._in_turn if part.may_learn(acted=False)]
        return ready

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        current_account().switch(ENV_STEP)
        try:
            with self._core or contextlib.nullcontext():
                yield
        finally:
            current_account().switch(OTHER)

    def __enter__(self) -> "SingleProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the environments, and the connection to the learner's other processes."""
        self._opened.__exit__(kind, error, trace)


def nodes_of(experiment: Experiment) -> list[str]:
    """Returns the nodes of other topologies whose parts are here; their lives are counted too."""
    actors = [f"actor/{index}" for index in range(experiment.actors.num_actors)]
    return ["single_process", *actors, "inferencer/0", "evaluator/0"]
