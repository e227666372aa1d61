"""The evaluator: scores the newest parameters at intervals, on separate environments."""

import contextlib
import time
from collections.abc import Mapping

from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.groups import EVALUATOR
from distrl.programs.nodes.process import configure_jax
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import Reporter, TaskVariables, stop_and_tick
from distrl.programs.running.evaluating import TasksEvaluator
from distrl.programs.substrate import node_context
from distrl.runtime.durations import longest_wait
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.time_account import IDLE, current_account, in_state
from distrl.variables.service import RemoteVariables


def add_evaluator(
    program: ExperimentProgram, learner: Mapping[str, NodeHandle], monitor: NodeHandle
) -> None:
    """Adds the evaluator, if the experiment has one. Args: learner: by task."""
    if program.experiment.evaluator.num_evaluators:
        program.add_courier_node(EVALUATOR, EvaluatorNode, dict(learner), monitor)


class EvaluatorNode:
    """Runs the evaluator of all tasks."""

    def __init__(
        self, experiment: Experiment, learner: Mapping[str, NodeHandle], monitor: NodeHandle
    ):
        """Args:
        experiment: what to train.
        learner: by task, where the parameters come from.
        monitor: takes reports.
        """
        configure_jax()
        heartbeat = current_heartbeat()
        heartbeat.tick()
        self._stop = node_context.stop_event()
        builders = {task: Builder(experiment, task) for task in experiment.tasks}
        self._interval = experiment.evaluator.interval
        with contextlib.ExitStack() as opened:
            # Before JAX: it may fork.
            pool = next(iter(builders.values())).make_evaluator_pool(heartbeat.life)
            opened.callback(pool.close)
            self._reporters = {task: Reporter(monitor, task, "evaluator/0") for task in builders}
            sources = {
                task: RemoteVariables(TaskVariables(learner[task], task), builder.agent)
                for task, builder in builders.items()
            }
            self._evaluator = TasksEvaluator(builders, pool, sources, heartbeat.life)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Evaluates every `interval` seconds until the program stops."""
        with self._opened:
            while not self._stop.is_set():
                current_heartbeat().tick()
                due = time.monotonic() + self._interval
                scores = self._evaluator.evaluate(stop_and_tick(self._stop))
                for task, report in scores.items():
                    self._reporters[task]({**report, "time": current_account().totals()})
                current_heartbeat().wait()
                with in_state(IDLE):
                    self._stop.wait(longest_wait(max(0.0, due - time.monotonic())))
            for reporter in self._reporters.values():
                reporter.close()
