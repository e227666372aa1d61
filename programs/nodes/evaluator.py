"""The evaluator: scores the newest parameters at intervals, on separate environments."""

import contextlib
import time

import launchpad as lp

from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.groups import EVALUATOR
from distrl.programs.nodes.process import configure_jax
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import Reporter, TaskVariables, stop_and_tick
from distrl.runtime.heartbeat import current_heartbeat
from distrl.task import Task
from distrl.variables import RemoteVariables


def add_evaluator(
    program: ExperimentProgram, task: Task, learner: NodeHandle, monitor: NodeHandle
) -> None:
    """Adds the evaluator of a task, if it has one."""
    if task.evaluator.num_evaluators:
        program.add_courier_node(EVALUATOR, EvaluatorNode, task.name, learner, monitor)


class EvaluatorNode:
    """Runs an `Evaluator`."""

    def __init__(self, experiment: Experiment, task: str, learner: NodeHandle, monitor: NodeHandle):
        """Args:
        experiment: what to train.
        task: name of the task.
        learner: where the parameters come from.
        monitor: takes reports.
        """
        configure_jax()
        heartbeat = current_heartbeat()
        heartbeat.tick()
        self._stop = lp.stop_event()
        builder = Builder(experiment, task)
        self._config = builder.task.evaluator
        with contextlib.ExitStack() as opened:
            pool = builder.make_evaluator_pool(heartbeat.life)  # before JAX: it may fork
            opened.callback(pool.close)
            self._reporter = Reporter(monitor, task, f"evaluator/{builder.task.index}")
            source = RemoteVariables(TaskVariables(learner, task), builder.agent)
            self._evaluator = builder.make_evaluator(pool, source, heartbeat.life)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Evaluates every `interval` seconds until the program stops."""
        with self._opened:
            while not self._stop.is_set():
                current_heartbeat().tick()
                due = time.monotonic() + self._config.interval
                scores = self._evaluator.evaluate(self._config.episodes, stop_and_tick(self._stop))
                if scores is not None:
                    self._reporter(scores)
                current_heartbeat().wait()
                self._stop.wait(max(0.0, due - time.monotonic()))
            self._reporter.flush()
