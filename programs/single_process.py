"""One process: actor and learner take turns. Needs neither Launchpad nor TensorFlow."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from distrl import seeds
from distrl.actor import Actor
from distrl.envs.pool import Pool
from distrl.errors import Stopped
from distrl.evaluator import Evaluator
from distrl.experiment import Experiment
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.metrics import Monitor, Report
from distrl.params_file import save_params
from distrl.replay.late_rewards import with_final_rewards
from distrl.replay.local import LocalReplayBuffer, LocalTable
from distrl.variables import VariableClient
from programs.pools import evaluator_pool, shared_pool


class SingleProcess:
    """The parts of an experiment in this process. All actors' environments form one pool."""

    def __init__(
        self,
        experiment: Experiment,
        stop: threading.Event | None = None,
        printer: Callable[[str], None] = print,
    ):
        """Args:
        experiment: what to train.
        stop: ends waits of the replay.
        printer: takes a line about each actor's environments.
        """
        with contextlib.ExitStack() as opened:
            # Pools first: they may fork, which must be done before JAX starts its threads.
            pool = shared_pool(experiment, printer)
            opened.callback(pool.close)
            evaluation_pool = None
            if experiment.evaluator.num_evaluators:
                evaluation_pool = evaluator_pool(experiment, printer)
                opened.callback(evaluation_pool.close)
            self._make_parts(experiment, stop, pool, evaluation_pool)
            self._opened = opened.pop_all()

    def _make_parts(
        self,
        experiment: Experiment,
        stop: threading.Event | None,
        pool: Pool,
        evaluation_pool: Pool | None,
    ) -> None:
        agent = experiment.make_agent()
        config, batch_size = experiment.replay, experiment.learner.batch_size
        struct = experiment.trajectory_struct()
        seed, streams = seeds.seed(experiment.seed, "replay", 0), experiment.num_streams
        table = LocalTable(struct, config, batch_size, experiment.task, seed, streams)
        self.replay = LocalReplayBuffer(table, struct, config, batch_size, stop=stop)
        self.learner = Learner(
            agent,
            self.replay,
            seed=seeds.seed(experiment.seed, "learner", 0),
            timeout=experiment.learner.timeout,
            last=experiment.goal.max_learner_steps,
        )
        self.variables = VariableClient(self.learner, 2**62)  # `turn` refreshes them
        self.inferencer = Inferencer(
            agent,
            self.variables,
            seed=seeds.seed(experiment.seed, "inferencer", 0),
            max_streams=pool.num_envs,
        )
        replay = with_final_rewards(self.replay, struct, pool.spec)
        self.actor = Actor(pool, self.inferencer, replay)
        self.evaluator: Evaluator | None = None
        if evaluation_pool is not None:
            variables = VariableClient(self.learner, 2**62)
            inferencer = Inferencer(
                agent,
                variables,
                seed=seeds.seed(experiment.seed, "evaluator", 1),
                max_streams=evaluation_pool.num_envs,
                evaluation=True,
            )
            self.evaluator = Evaluator(evaluation_pool, inferencer, variables)

    def turn(self) -> None:
        """Acts until there is a batch, learns from it, and acts with what it learned."""
        while not self.replay.can_sample():
            self.actor.step()
        self.learner.step()
        self.variables.refresh()

    def close(self) -> None:
        """Ends the environments."""
        self._opened.close()


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
        spec=experiment.environment.spec(),
    )
    number = 0

    def report(*reports: Report) -> None:
        nonlocal number
        monitor.report("single_process", number, reports)
        number += 1

    parts = SingleProcess(experiment, stop, printer)
    with contextlib.closing(parts), contextlib.closing(monitor):
        last = experiment.goal.max_learner_steps
        due, evaluation_due = 0.0, time.monotonic() + experiment.evaluator.interval
        while not stop.is_set() and not ending:
            try:
                parts.turn()
            except Stopped:  # a wait of the replay ended, because `stop` was set
                break
            if time.monotonic() >= due or parts.learner.version == last:
                report(parts.actor.take_report(), parts.learner.take_report())
                due = time.monotonic() + 0.2
            if parts.evaluator is not None and time.monotonic() >= evaluation_due:
                scores = parts.evaluator.evaluate(experiment.evaluator.episodes, stop.is_set)
                if scores is not None:
                    report(scores)
                evaluation_due = time.monotonic() + experiment.evaluator.interval
        if run_dir is not None:
            save_params(run_dir / "params.npz", *parts.learner.variables)
    return ending[0] if ending else None
