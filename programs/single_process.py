"""One process: actor and learner take turns. Needs neither Launchpad nor TensorFlow."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from distrl import seeds
from distrl.actor import Actor
from distrl.errors import Stopped
from distrl.evaluator import Evaluator
from distrl.experiment import Experiment
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.metrics import Monitor, Report
from distrl.params_file import save_params
from distrl.replay.local import LocalReplayBuffer, LocalTable
from distrl.variables import VariableClient


class SingleProcess:
    """The parts of an experiment in this process. All actors' environments form one pool."""

    def __init__(self, experiment: Experiment, stop: threading.Event | None = None):
        """Args:
        experiment: what to train.
        stop: ends waits of the replay.
        """
        agent = experiment.make_agent()
        num_envs = experiment.num_streams
        wait_num = experiment.wait_num * experiment.actors.num_actors
        config, batch_size = experiment.replay, experiment.learner.batch_size
        struct = experiment.trajectory_struct()
        table = LocalTable(struct, config, batch_size, experiment.task)
        self.replay = LocalReplayBuffer(table, struct, config, batch_size, stop=stop)
        self.learner = Learner(
            agent,
            self.replay,
            seed=seeds.seed(experiment.seed, "learner", 0),
            timeout=experiment.learner.timeout,
        )
        self.variables = VariableClient(self.learner, 2**62)  # `turn` refreshes them
        self.inferencer = Inferencer(
            agent,
            self.variables,
            seed=seeds.seed(experiment.seed, "inferencer", 0),
            max_streams=num_envs,
        )
        own_seeds = tuple(
            one
            for index in range(experiment.actors.num_actors)
            for one in seeds.environment_seeds(
                experiment.seed, "actor", index, experiment.actors.num_envs
            )
        )
        pool = experiment.environment.make_pool(num_envs, wait_num, own_seeds)
        self.actor = Actor(pool, self.inferencer, self.replay)
        self.evaluator: Evaluator | None = None
        if experiment.evaluator.num_evaluators:
            variables = VariableClient(self.learner, 2**62)
            own_envs = experiment.evaluator.num_envs
            inferencer = Inferencer(
                agent,
                variables,
                seed=seeds.seed(experiment.seed, "evaluator", 1),
                max_streams=own_envs,
                evaluation=True,
            )
            own_seeds = seeds.environment_seeds(experiment.seed, "evaluator", 0, own_envs)
            pool = experiment.environment.make_pool(own_envs, own_envs, own_seeds)
            self.evaluator = Evaluator(pool, inferencer, variables)

    def turn(self) -> None:
        """Acts until there is a batch, learns from it, and acts with what it learned."""
        while not self.replay.can_sample():
            self.actor.step()
        self.learner.step()
        self.variables.refresh()


def single_process(
    experiment: Experiment,
    *,
    stop: threading.Event,
    run_dir: Path | None = None,
    printer: Callable[[str], None] = print,
) -> tuple[str, bool] | None:
    """Trains until the goal, or until `stop` is set.

    Args:
      experiment: what to train.
      stop: set from outside (a signal handler) to end the run.
      run_dir: where metrics and final parameters are written; None: nowhere.
      printer: takes lines of progress.

    Returns:
      The reason for the end, and whether the goal was reached; None when stopped from outside.
    """
    ending: list[tuple[str, bool]] = []
    monitor = Monitor(
        experiment.resolved_goal(),
        lambda reason, reached: ending.append((reason, reached)),
        run_dir,
        printer=printer,
    )
    parts = SingleProcess(experiment, stop)
    number = 0

    def report(*reports: Report) -> None:
        nonlocal number
        monitor.report("single_process", number, reports)
        number += 1

    due, evaluation_due = 0.0, time.monotonic() + experiment.evaluator.interval
    while not stop.is_set() and not ending:
        try:
            parts.turn()
        except Stopped:  # a wait of the replay ended, because `stop` was set
            break
        if time.monotonic() >= due:
            report(parts.actor.take_report(), parts.learner.take_report())
            due = time.monotonic() + 0.2
        if parts.evaluator is not None and time.monotonic() >= evaluation_due:
            scores = parts.evaluator.evaluate(experiment.evaluator.episodes, stop.is_set)
            if scores is not None:
                report(scores)
            evaluation_due = time.monotonic() + experiment.evaluator.interval
    if run_dir is not None:
        save_params(run_dir / "params.npz", *parts.learner.variables)
    monitor.close()
    parts.actor.close()
    return ending[0] if ending else None
