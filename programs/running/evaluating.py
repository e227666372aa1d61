"""The evaluator of an experiment, of one policy or of several."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Pool
from distrl.evaluator import Evaluator, Play, play_to_the_end
from distrl.inferencer import InferenceSource
from distrl.metrics.reports import Report
from distrl.multi_agent.evaluator import MultiAgentEvaluator
from distrl.policy_streams import PolicyStreams
from distrl.programs.build import NEVER, Builder
from distrl.variables.client import VariableClient


class TasksEvaluator:
    """Evaluates the tasks of an experiment that can act.

    Where the environment has several agents, the tasks' policies play the same episodes, each for
    its own agents; where it has one agent, they play in turn.
    """

    def __init__(
        self, builders: Mapping[str, Builder], pool: Pool, sources: Mapping[str, Any], life: int
    ):
        """Args:
        builders: each task's builder, by name.
        pool: the evaluator's environments.
        sources: by task, a `VariableSource`.
        life: the evaluator's life.
        """
        builder = next(iter(builders.values()))
        self._config = builder.experiment.evaluator
        self._evaluator: Evaluator | MultiAgentEvaluator
        if builder.experiment.assignment is None:
            policies = {}
            for name, each in builders.items():
                if each.task.is_evaluated:
                    variables = VariableClient(sources[name], NEVER)
                    inferencer = each.make_evaluation_inferencer(variables, pool.num_envs, life)
                    policies[name] = inferencer, variables
            self._evaluator = Evaluator(pool, policies)
        else:
            self._evaluator = _of_agents(builders, pool, sources, life)

    def play(self) -> Play[dict[str, Report]]:
        """Returns a new evaluation, which returns each task's scores."""
        return self._evaluator.play(self._config.episodes, self._config.max_seconds)

    def evaluate(self, should_stop: Callable[[], bool]) -> dict[str, Report]:
        """Returns each task's scores; empty if stopped before the end."""
        return play_to_the_end(self.play(), should_stop) or {}


class EvaluationTurns:
    """Evaluates in turns with training in one process, neither waiting for the other's end."""

    def __init__(
        self,
        evaluator: TasksEvaluator,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        evaluator: plays the episodes.
        interval: seconds between the starts of two evaluations; the first starts after one.
        clock: monotonic, in seconds.
        """
        self._evaluator = evaluator
        self._interval = interval
        self._clock = clock
        self._trained = clock()  # since then it has been training
        self._due = self._trained + interval
        self._play: Play[dict[str, Report]] | None = None
        self._credit = 0.0

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Report]:
        """Evaluates, if an evaluation is due, for as long as was trained since the last call.

        Args:
          should_stop: asked before each step; true: it evaluates no more.

        Returns:
          Each task's scores if an evaluation has ended now; else nothing.
        """
        now = self._clock()
        trained, self._trained = now - self._trained, now
        if self._play is None:
            if now < self._due:
                return {}
            self._due = now + self._interval
            self._play, self._credit = self._evaluator.play(), 0.0
        self._credit += trained
        while self._credit > 0 and not should_stop():
            try:
                next(self._play)
            except StopIteration as ended:
                self._play, self._trained = None, self._clock()
                scores: dict[str, Report] = ended.value
                return scores
            self._trained = self._clock()
            self._credit -= self._trained - now
            now = self._trained
        return {}

    def finish(self, should_stop: Callable[[], bool]) -> dict[str, Report]:
        """Returns the scores of the evaluation in progress; none if there is none, or stopped."""
        return {} if self._play is None else play_to_the_end(self._play, should_stop) or {}


def _of_agents(
    builders: Mapping[str, Builder], pool: Pool, sources: Mapping[str, Any], life: int
) -> MultiAgentEvaluator:
    builder = next(iter(builders.values()))
    experiment, assignment = builder.experiment, builder.experiment.assignment
    assert assignment is not None
    assert isinstance(experiment.environment, SeveralAgents)
    spec = experiment.environment.agents()
    agent_pool = experiment.environment.agent_pool(pool, assignment, 0)
    variables = {
        name: VariableClient(source, NEVER)
        for name, source in sources.items()
        if builders[name].task.is_evaluated
    }
    policies = {}
    for k, name in enumerate(assignment.policies):
        agents = assignment.agents_of(name)
        env_spec = spec.agents[agents[0]]
        source: InferenceSource
        if name in builders:
            source = builders[name].make_evaluation_inferencer(
                variables[name], len(agents) * pool.num_envs, life, pool.num_envs
            )
        else:
            seed = builder.seed(f"evaluator/policy/{k}", 0, life)
            source = experiment.fixed[name].make_source(env_spec, agent_pool.num_streams, seed)
        policies[name] = PolicyStreams(source, None, env_spec, agent_pool.num_streams, life)
    return MultiAgentEvaluator(agent_pool, policies, variables, list(spec.agents))
