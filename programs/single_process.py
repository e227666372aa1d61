"""One process: actor and learner take turns. Needs neither Launchpad nor TensorFlow."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from distrl import seeds
from distrl.actor import Actor
from distrl.checkpointing.checkpointer import (
    Checkpointer,
    ResumePoint,
    note_resumed,
    restore_learner,
    table_counts,
)
from distrl.checkpointing.params_file import save_params
from distrl.envs.pool import Pool
from distrl.errors import Stopped
from distrl.evaluator import Evaluator
from distrl.experiment import Experiment
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.metrics import Monitor, Report, first_number
from distrl.policy import agent_writer
from distrl.programs.pools import evaluator_pool, shared_pool
from distrl.replay.columns import Columns
from distrl.replay.late_rewards import with_final_rewards
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.table.files import Stored
from distrl.runtime.incarnations import next_life
from distrl.variables import VariableClient


class SingleProcess:
    """The parts of an experiment in this process. All actors' environments form one pool."""

    def __init__(
        self,
        experiment: Experiment,
        stop: threading.Event | None = None,
        printer: Callable[[str], None] = print,
        *,
        start: ResumePoint | None = None,
        life: int = 0,
        join: Callable[[], LearnerGroup] = SingleProcessGroup,
    ):
        """Args:
        experiment: what to train.
        stop: ends waits of the replay.
        printer: takes a line about each actor's environments.
        start: from which checkpoint the learner and the table go on; None: they begin anew.
        life: that all parts begin.
        join: connects to the learner's other processes.
        """
        self._life = life
        with contextlib.ExitStack() as opened:
            # Pools first: they may fork, which must be done before JAX starts its threads.
            pool = shared_pool(experiment, printer, life)
            opened.callback(pool.close)
            evaluation_pool = None
            if experiment.evaluator.num_evaluators:
                evaluation_pool = evaluator_pool(experiment, printer, life)
                opened.callback(evaluation_pool.close)
            learner_group = opened.enter_context(join())
            self._make_parts(
                experiment, stop, pool, evaluation_pool, start or ResumePoint(), learner_group
            )
            self._opened = opened.pop_all()

    def _make_parts(
        self,
        experiment: Experiment,
        stop: threading.Event | None,
        pool: Pool,
        evaluation_pool: Pool | None,
        start: ResumePoint,
        learner_group: LearnerGroup,
    ) -> None:
        agent = experiment.make_agent()
        config, batch_size = experiment.replay, experiment.learner.batch_size
        struct = experiment.trajectory_struct()
        seed, life, streams = experiment.seed, self._life, experiment.actors.num_streams
        own_seed = seeds.seed(seed, "replay", 0)
        table = LocalTable(struct, config, batch_size, experiment.task, own_seed, streams)
        saved = start.table()
        if saved is not None:
            table.restore(Stored(saved, Columns(struct, config.unroll_length), config))
        self.replay = LocalReplayBuffer(table, struct, config, batch_size, stop=stop)
        self.learner = Learner(
            agent,
            self.replay,
            seed=seeds.seed(seed, "learner", 0),
            timeout=experiment.learner.timeout,
            last=experiment.goal.max_learner_steps,
            devices=Devices(experiment.learner.batch_size, experiment.learner.num_devices),
            learner_group=learner_group,
        )
        self.resumed: dict[str, dict] = {}  # what was loaded, by part
        if start.checkpoint is not None:
            self.resumed["learner"] = restore_learner(self.learner, Path(start.checkpoint))
            self.resumed["table"] = table_counts(self.replay.info())
        self.learner.share()
        self.variables = VariableClient(self.learner, 2**62)  # `turn` refreshes them
        self.inferencer = Inferencer(
            agent,
            self.variables,
            seed=seeds.seed(seed, "inferencer", 0, life),
            max_streams=pool.num_envs,
        )
        replay = with_final_rewards(self.replay, struct, pool.spec)
        self.actor = Actor(pool, self.inferencer, replay, life=life)
        self.evaluator: Evaluator | None = None
        if evaluation_pool is not None:
            variables = VariableClient(self.learner, 2**62)
            inferencer = Inferencer(
                agent,
                variables,
                seed=seeds.seed(seed, "evaluator", 1, life),
                max_streams=evaluation_pool.num_envs,
                evaluation=True,
            )
            self.evaluator = Evaluator(evaluation_pool, inferencer, variables)

    def run_once(self) -> None:
        """Acts until there is a batch, learns from it, and acts with what it learned."""
        while not self.replay.can_sample():
            self.actor.step()
        self.learner.step()
        self.variables.refresh()

    def __enter__(self) -> "SingleProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the environments, and the connection to the learner's other processes."""
        self._opened.__exit__(kind, error, trace)


def single_process(
    experiment: Experiment,
    *,
    stop: threading.Event,
    run_dir: Path | None = None,
    printer: Callable[[str], None] = print,
    start: ResumePoint | None = None,
    give_up: Callable[[], None] = lambda: None,
    join: Callable[[], LearnerGroup] = SingleProcessGroup,
) -> tuple[str, bool] | None:
    """Trains until the goal, or until `stop` is set.

    Args:
      experiment: what to train.
      stop: set from outside (by a thread that hears of signals) to end the run.
      run_dir: where metrics, checkpoints and final parameters are written; None: nowhere.
      printer: takes lines of progress.
      start: from which checkpoint it goes on; None: it begins anew.
      give_up: called in another thread when `stop` was set and all is saved, and this call does not
        return: it compiles, say, or waits for a step of an environment.
      join: connects to the learner's other processes.

    Returns:
      The reason for the end, and whether the goal was reached; None when stopped from outside, or
      by another process of the learner.
    """
    start = start or ResumePoint()
    manifest = start.manifest()
    ending: list[tuple[str, bool]] = []
    monitor = Monitor(
        experiment.only_task.resolved_goal(),
        lambda reason, reached: ending.append((reason, reached)),
        run_dir,
        printer=printer,
        spec=experiment.environment.spec(),
    )
    life = 0 if run_dir is None else next_life(run_dir, *_nodes(experiment))
    parts = SingleProcess(experiment, stop, printer, start=start, life=life, join=join)
    number = first_number(life)

    def report(*reports: Report) -> None:
        nonlocal number
        monitor.report("single_process", number, reports)
        number += 1

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
            checkpointer = Checkpointer(
                run_dir,
                experiment.checkpoint,
                parts.learner,
                parts.replay,
                monitor.state,
                start.about(experiment),
                fill=agent_writer(experiment, printer),
                give_up=give_up,
                printer=printer,
            )
            checkpointer.start(stop)
            opened.callback(checkpointer.close)
        last = experiment.goal.max_learner_steps
        due, evaluation_due = 0.0, time.monotonic() + experiment.evaluator.interval
        while not stop.is_set() and not ending:
            try:
                parts.run_once()
            except Stopped:  # a wait of the replay ended, or another of the learner's processes has
                break
            if time.monotonic() >= due or parts.learner.version == last:
                report(parts.actor.take_report(), parts.learner.take_report())
                due = time.monotonic() + 0.2
            if parts.evaluator is not None and time.monotonic() >= evaluation_due:
                scores = parts.evaluator.evaluate(experiment.evaluator.episodes, stop.is_set)
                if scores is not None:
                    report(scores)
                evaluation_due = time.monotonic() + experiment.evaluator.interval
            if checkpointer is not None:
                checkpointer.check()
        parts.learner.leave()
        report(parts.actor.take_report(), parts.learner.take_report())
        if run_dir is not None:
            save_params(run_dir / "params.npz", *parts.learner.variables)
    return ending[0] if ending else None


def _nodes(experiment: Experiment) -> list[str]:
    """The nodes that other topologies have for the parts, whose lives are counted as well."""
    actors = [f"actor/{index}" for index in range(experiment.actors.num_actors)]
    return ["single_process", *actors, "inferencer/0", "evaluator/0"]
