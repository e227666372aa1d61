"""One process: actor and learner take turns. Needs neither Launchpad nor TensorFlow."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from distrl.actor import Actor
from distrl.checkpointing.resume_point import (
    ResumePoint,
    note_resumed,
    restore_learner,
    table_counts,
)
from distrl.envs.pool import Pool
from distrl.errors import SaveError, Stopped
from distrl.evaluator import Evaluator
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.metrics import SPENT, Monitor, Report, first_number
from distrl.programs.build import NEVER, Builder
from distrl.runtime.incarnations import next_life
from distrl.variables import VariableClient

_REPORT_S = 0.2  # between two reports


class SingleProcess:
    """The parts of an experiment in this process. All actors' environments form one pool.

    Attributes:
      replay, learner, variables, inferencer, actor: the parts.
      evaluator: None if the experiment has none.
      resumed: facts about what was loaded from a checkpoint, by part.
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
    ):
        """Args:
        experiment: what to train.
        stop: ends waits of the replay.
        printer: takes a line about each actor's environments.
        resume_point: the checkpoint to resume from; None: start from scratch.
        life: life that all parts begin.
        join: connects to the learner's other processes.
        """
        self.builder = Builder(experiment, printer=printer)
        with contextlib.ExitStack() as opened:
            # Pools first: they may fork, which must be done before JAX starts its threads.
            pool = self.builder.make_shared_pool(life)
            opened.callback(pool.close)
            evaluator_pool = None
            if experiment.evaluator.num_evaluators:
                evaluator_pool = self.builder.make_evaluator_pool(life)
                opened.callback(evaluator_pool.close)
            group = opened.enter_context(join())
            self._make_parts(resume_point or ResumePoint(), stop, group, pool, life)
            self.evaluator: Evaluator | None = None
            if evaluator_pool is not None:
                self.evaluator = self.builder.make_evaluator(evaluator_pool, self.learner, life)
            self._opened = opened.pop_all()

    def _make_parts(
        self,
        resume_point: ResumePoint,
        stop: threading.Event | None,
        group: LearnerGroup,
        pool: Pool,
        life: int,
    ) -> None:
        builder, config = self.builder, self.builder.task.replay
        self._has_ratio = config.table == "queue" or config.samples_per_insert is not None
        self.replay = builder.make_local_replay(resume_point.table(), stop)
        self.learner = builder.make_learner(self.replay, group)
        self.resumed: dict[str, dict[str, Any]] = {}
        if resume_point.checkpoint is not None:
            checkpoint = Path(resume_point.checkpoint)
            self.resumed["learner"] = restore_learner(self.learner, checkpoint)
            self.resumed["table"] = table_counts(self.replay.info())
        self.learner.share()
        self.variables = VariableClient(self.learner, NEVER)  # `run_once` refreshes them
        self.inferencer = builder.make_inferencer(self.variables, pool.num_envs, life=life)
        self.actor = builder.make_actor(pool, self.inferencer, self.replay, life=life)
        self.learner.count_acted = lambda: self.actor.acted

    def run_once(self, may_act: Callable[[], bool] = lambda: True) -> bool:
        """Acts with what it learned until there is a batch, and learns from it.

        Without a ratio of samples to inserts, which would allow any number of updates, it acts one
        step before each.

        Args:
          may_act: asked before each step of the actor.

        Returns:
          False if there is no batch and the actor may not act.
        """
        acted = self._has_ratio
        while not (acted and self.replay.can_sample()):
            if not may_act():
                return False
            self.variables.refresh()
            self.actor.step()
            acted = True
        self.learner.step()
        return True

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


def single_process(
    experiment: Experiment,
    *,
    stop: threading.Event,
    run_dir: Path | None = None,
    printer: Callable[[str], None] = print,
    resume_point: ResumePoint | None = None,
    give_up: Callable[[], None] = lambda: None,
    join: Callable[[], LearnerGroup] = SingleProcessGroup,
) -> tuple[str, bool] | None:
    """Trains until the goal, or until `stop` is set.

    Args:
      experiment: what to train.
      stop: set from outside, e.g. by a thread that handles signals, to end the run.
      run_dir: where metrics, checkpoints and final parameters are written; None: nowhere.
      printer: takes lines of progress.
      resume_point: the checkpoint to resume from; None: start from scratch.
      give_up: called in another thread when `stop` was set and everything is saved, and this call
        does not return: it compiles, say, or waits for a step of an environment.
      join: connects to the learner's other processes.

    Returns:
      The reason for the end, and whether the goal was reached; None if stopped from outside, or by
      another process of the learner.

    Raises:
      SaveError: the last checkpoint or `params.npz` could not be saved.
    """
    resume_point = resume_point or ResumePoint()
    manifest = resume_point.manifest()
    ending: list[tuple[str, bool]] = []
    monitor = Builder(experiment, printer=printer).make_monitor(
        lambda reason, reached: ending.append((reason, reached)), run_dir
    )
    life = 0 if run_dir is None else next_life(run_dir, *_nodes(experiment))
    parts = SingleProcess(
        experiment, stop, printer, resume_point=resume_point, life=life, join=join
    )
    goal = experiment.goal
    learner, evaluator, config = parts.learner, parts.evaluator, experiment.evaluator
    number, acted_elsewhere = first_number(life), 0

    def report(*reports: Report) -> None:
        nonlocal number
        monitor.report("single_process", number, reports)
        number += 1

    def report_counts(counts: Report) -> None:
        nonlocal acted_elsewhere
        elsewhere: Report = {
            "env_steps": learner.acted_elsewhere - acted_elsewhere,
            "episodes": [],
        }
        acted_elsewhere = learner.acted_elsewhere
        report(parts.actor.take_report(), elsewhere, counts)

    with contextlib.ExitStack() as opened:
        opened.enter_context(parts)
        opened.enter_context(contextlib.closing(monitor))
        if manifest is not None and run_dir is not None:
            monitor.restore(manifest["monitor"])
            parts.resumed["monitor"] = monitor.state()
            for part, facts in parts.resumed.items():
                note_resumed(run_dir, part, facts)
        checkpointer = None
        if run_dir is not None:
            checkpointer = parts.builder.make_checkpointer(
                run_dir, learner, parts.replay, monitor.state, resume_point, give_up
            )
            checkpointer.start(stop)

            def close(kind: Any, error: BaseException | None, trace: Any) -> None:
                try:
                    checkpointer.close()
                except SaveError as not_saved:
                    if error is None:
                        reason = f"{ending[0][0]}, but " if ending else ""
                        raise SaveError(f"{reason}{not_saved}") from not_saved
                    printer(f"distrl: {not_saved}")  # `error` is why the run ends

            opened.push(close)
        due, evaluation_due = 0.0, time.monotonic() + config.interval
        within_budget = functools.partial(_within_budget, goal, monitor, parts.actor)
        while not stop.is_set() and not ending:
            try:
                learned = parts.run_once(within_budget)
            except Stopped:  # a wait of the replay ended, or another of the learner's processes has
                break
            # The counts of every update are judged, so that a run ends at the same one each time;
            # the logs, which cost more, are only read in intervals of time.
            counts = learner.counts()
            if not learned:
                counts[SPENT] = goal.acting_budget
            elif time.monotonic() >= due:
                counts = learner.take_report()
                due = time.monotonic() + _REPORT_S
            report_counts(counts)
            if evaluator is not None and time.monotonic() >= evaluation_due:
                scores = evaluator.evaluate(config.episodes, stop.is_set)
                if scores is not None:
                    report(scores)
                evaluation_due = time.monotonic() + config.interval
            if checkpointer is not None:
                checkpointer.check()
        learner.leave()
        report_counts(learner.take_report())
    return ending[0] if ending else None


def _within_budget(goal: Goal, monitor: Monitor, actor: Actor) -> bool:
    """Returns whether the actor may step once more. What it did since its report counts too."""
    steps, episodes = actor.unreported
    max_env_steps, max_episodes = goal.acting_budget
    return (max_env_steps is None or monitor.acted + steps < max_env_steps) and (
        max_episodes is None or monitor.episodes + episodes < max_episodes
    )


def _nodes(experiment: Experiment) -> list[str]:
    """Returns the nodes of other topologies whose parts are here; their lives are counted too."""
    actors = [f"actor/{index}" for index in range(experiment.actors.num_actors)]
    return ["single_process", *actors, "inferencer/0", "evaluator/0"]
