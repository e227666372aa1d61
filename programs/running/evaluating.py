"""The evaluator of an experiment, of one policy or of several."""

from collections.abc import Callable, Mapping
from typing import Any

from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Pool
from distrl.evaluator import Evaluator
from distrl.inferencer import InferenceSource
from distrl.metrics import Report
from distrl.multi_agent.evaluator import MultiAgentEvaluator
from distrl.policy_streams import PolicyStreams
from distrl.programs.build import NEVER, Builder
from distrl.variables import VariableClient


class TasksEvaluator:
    """Evaluates all tasks of an experiment in the same episodes."""

    def __init__(
        self, builders: Mapping[str, Builder], pool: Pool, sources: Mapping[str, Any], life: int
    ):
        """Args:
        builders: of each task, by name.
        pool: the evaluator's environments.
        sources: by task, a `VariableSource`.
        life: the evaluator's life.
        """
        builder = next(iter(builders.values()))
        self._task = builder.task.name
        self._config = builder.experiment.evaluator
        self._evaluator: Evaluator | MultiAgentEvaluator
        if builder.experiment.assignment is None:
            self._evaluator = builder.make_evaluator(pool, sources[self._task], life)
        else:
            self._evaluator = _of_agents(builders, pool, sources, life)

    def evaluate(self, should_stop: Callable[[], bool]) -> dict[str, Report]:
        """Returns each task's scores; empty if stopped before the end."""
        scores = self._evaluator.evaluate(self._config.episodes, should_stop)
        if scores is None:
            return {}
        return scores if isinstance(self._evaluator, MultiAgentEvaluator) else {self._task: scores}


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
        if name in assignment.policies  # the others only learn
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
