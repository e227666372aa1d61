"""The evaluator: scores the newest parameters at intervals, on separate environments."""

import contextlib
import time
from collections.abc import Mapping

from distrl.agents.agent import Agent
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
from distrl.types import Params
from distrl.variables.service import RemoteVariables


def add_evaluator(
    program: ExperimentProgram, learner: Mapping[str, NodeHandle], monitor: NodeHandle
) -> None:
    """Adds the evaluator, if the experiment has one. Args: learner: by task."""
    if program.experiment.evaluator.num_evaluators:
        program.add_call_node(EVALUATOR, EvaluatorNode, dict(learner), monitor)


class EvaluatedVariables:
    """A `VariableSource` that says from which life of the learner the parameters come.

    Attributes:
      life: that life, or an earlier one.
    """

    def __init__(self, learner: TaskVariables, agent: Agent):
        """Args: learner: gives out the parameters of a task. agent: the parameters' agent."""
        self._learner, self._variables = learner, RemoteVariables(learner, agent)
        self.life = -1

    def get_variables(self, newer_than: int) -> tuple[int, Params] | None:
        """See `VariableSource`. The same version from another life counts as a newer one."""
        before, self.life = self.life, self._learner.life()
        return self._variables.get_variables(newer_than if self.life == before else -1)


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
            self._sources = {
                task: EvaluatedVariables(TaskVariables(learner[task], task), builder.agent)
                for task, builder in builders.items()
            }
            self._evaluator = TasksEvaluator(builders, pool, self._sources, heartbeat.life)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Evaluates every `interval` seconds until the program stops."""
        with self._opened:
            while not self._stop.is_set():
                current_heartbeat().tick()
                due = time.monotonic() + self._interval
                scores = self._evaluator.evaluate(stop_and_tick(self._stop))
                for task, report in scores.items():
                    life, time_spent = self._sources[task].life, current_account().totals()
                    self._reporters[task]({**report, "learner_life": life, "time": time_spent})
                current_heartbeat().wait()
                with in_state(IDLE):
                    self._stop.wait(longest_wait(max(0.0, due - time.monotonic())))
            for reporter in self._reporters.values():
                reporter.close()
