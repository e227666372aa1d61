"""The experiment to train, as one checked dataclass."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distrl.agents.agent import Agent
from distrl.agents.defaults import defaults_of
from distrl.callbacks import Callback, check_callbacks
from distrl.config import (
    ActorsConfig,
    CheckpointConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    MetricsConfig,
    SupervisionConfig,
)
from distrl.envs.multi_agent.assignment import Assignment, PolicyOf
from distrl.envs.multi_agent.environment import SeveralAgents, steps_per_env_step
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.experiment_checks import check_counts, check_evaluation, check_parts, check_task_names
from distrl.field_checks import check_choice
from distrl.goal import Goal
from distrl.learning.update_trigger import started_by
from distrl.metrics.sinks import check_sinks
from distrl.multi_agent import policy_checks
from distrl.multi_agent.learned_policy import (
    LearnedPolicy as LearnedPolicy,  # documented here as well
)
from distrl.population import Population, check_members
from distrl.replay.buffer import ReplayConfig
from distrl.rules import FixedPolicy
from distrl.runtime.files import TASKS
from distrl.sharing.config import Shared, groups_of, update_order
from distrl.specs import EnvironmentSpec
from distrl.task import AgentConfig, Task
from distrl.transforms.base import Transform
from distrl.types import Trajectory

_FROM_AGENT: Any = None  # `Experiment` replaces it with the algorithm's default
_deferred = contextvars.ContextVar("_deferred", default=False)


@contextlib.contextmanager
def deferred_checks() -> Iterator[None]:
    """In the context, experiments are checked by `Experiment.check`, not when they are made.

    So flags can first change what is wrong, such as a table that is too large for the memory.
    """
    token = _deferred.set(True)
    try:
        yield
    finally:
        _deferred.reset(token)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment, the same under every topology.

    Without `replay`, `actors` or `learner` it has the algorithm's defaults, which suit each other
    and the parts that are given. It is checked when made: what can't work raises ConfigError, with
    the arithmetic.

    In an environment with several agents all follow the one policy of `agent`, or several
    `policies`. `agent`, `replay`, `learner` and `transforms` then belong to each of these.

    Attributes:
      environment: the environment that actors step.
      agent: the algorithm's settings.
      replay: how experience reaches the learner.
      actors, inference, learner, evaluator: settings of the parts.
      supervision: what happens to nodes that die or hang.
      checkpoint: when the whole program is saved.
      metrics: where metrics go besides `metrics.csv`.
      transforms: transforms of time steps, in order, from the raw one to the agent.
      evaluation_environment: the evaluator's environment, with the same spaces. None: the same
        environment; EnvPool's Atari with whole games and unclipped rewards.
      goal: when the run ends.
      lockstep: run actors and learner on a fixed, reproducible schedule, so that two runs make the
        same parameters; see `distrl.lockstep`. For one process, and for heavy_env with its replay
        in shared memory.
      seed: root of every seed of the run.
      task: name of the task, which names its tables and metrics; at most 150 characters.
      policies: policies by name, each a `LearnedPolicy`, an algorithm's settings for one with its
        defaults, or a `distrl.rules.FixedPolicy`, such as a rule.
      policy_of: maps the environment's agents to names of policies: a mapping, or a function of
        the agent's id and a `distrl.envs.multi_agent.assignment.Episode`, called where the agent's
        episode begins.
      learners: where several policies learn: "each" in a process of its own, or all in "one"
        process, in turn. In `single_process` all learn in the one process.
      shared: parameters that several policies share and train together, in one process: from a part
        of the parameters' names, e.g. "torso", to the policies' names, or to a
        `distrl.sharing.Shared`.
      population: all learned policies are members of a population, of which the worst copy the
        best; see `distrl.population`.
      callbacks: called after updates, evaluations and checkpoints; see `distrl.callbacks`.
    """

    environment: Environment
    agent: AgentConfig = _FROM_AGENT
    replay: ReplayConfig = _FROM_AGENT
    actors: ActorsConfig = _FROM_AGENT
    inference: InferenceConfig = InferenceConfig()
    learner: LearnerConfig = _FROM_AGENT
    evaluator: EvaluatorConfig = EvaluatorConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    transforms: tuple[Transform, ...] = ()
    evaluation_environment: Environment | None = None
    goal: Goal = Goal()
    lockstep: bool = False
    seed: int = 0
    task: str = "task"
    policies: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    policy_of: PolicyOf | None = None
    learners: str = "each"
    shared: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    population: Population | None = None
    callbacks: Sequence[Callback] = dataclasses.field(default=(), metadata={"setting": False})

    def __post_init__(self) -> None:
        check_parts(self)
        check_choice(self, "learners", ("each", "one"), prefix="")
        check_callbacks(self.callbacks)
        check_sinks(self.metrics)
        policy_checks.check_agents(self.environment, self.evaluator.num_evaluators, self.lockstep)
        shared = {k: v if isinstance(v, Shared) else Shared(v) for k, v in self.shared.items()}
        object.__setattr__(self, "shared", shared)
        self._check_policies()
        self._fill_in()
        if not _deferred.get():
            self.check()

    def check(self) -> None:
        """Raises ConfigError for parts that can't work together, with the arithmetic."""
        check_task_names(self.tasks)
        check_counts(self.actors, self.inference, self.evaluator)
        policy_checks.check_copies(self.environment, self.assignment, self.actors)
        for name, policy in self.fixed.items():
            if hasattr(policy, "check"):
                policy.check(self.env_spec_of(name), name)
        if self.population is not None:
            check_members(self.population, self.tasks, list(self.shared))
        policy_checks.check_each(self.tasks, Task.check)
        check_evaluation(self)
        if self.policies and self.actors.min_actors is not None:
            raise ConfigError(
                "actors.min_actors: policies cannot have rounds: unrolls do not end together; "
                "leave it None, or bound the age of their data: learner.max_policy_lag"
            )
        if self.lockstep:
            policy_checks.check_each(self.tasks, Task.lockstep_schedule)
        policy_checks.check_each(self.tasks, Task.check_memory)
        policy_checks.check_several(self.tasks, self.shared, self.lockstep)

    def _check_policies(self) -> None:
        if self.policies:
            of_policy = ("agent", "replay", "learner", "transforms")
            given = [name for name in of_policy if getattr(self, name) not in (None, ())]
            policy_checks.check_policies(
                self.environment, self.policies, self.learned, self.acting, self.policy_of, given
            )
        else:
            policy_checks.check_only_policy(self.agent, self.policy_of, self.shared)

    def _fill_in(self) -> None:
        """Sets the parts that were not given to the algorithm's defaults."""
        if self.policies:
            self._fill_in_policies()
            return
        if None not in (self.actors, self.learner, self.replay):
            return
        env_spec = self.env_spec_of(self.task)
        if self.actors is None:
            defaults = defaults_of(self.agent, env_spec, None, self.learner)
            object.__setattr__(self, "actors", defaults.actors)
        defaults = defaults_of(self.agent, env_spec, self._streams(self.task), self.learner)
        for name in ("learner", "replay"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(defaults, name))

    def _fill_in_policies(self) -> None:
        if self.actors is None:
            first = next(iter(self.learned))
            defaults = defaults_of(self.learned[first].agent, self.env_spec_of(first))
            object.__setattr__(self, "actors", defaults.actors)
        policies = dict(self.policies)
        for name, policy in self.learned.items():
            policies[name] = policy.filled_in(self.env_spec_of(name), self._streams(name))
        object.__setattr__(self, "policies", policies)

    @functools.cached_property
    def assignment(self) -> Assignment | None:
        """The policies of the environment's agents; None if it has one agent."""
        if not isinstance(self.environment, SeveralAgents):
            return None
        agents = self.environment.agents()
        if not self.policies:
            return Assignment(agents, [self.task], dict.fromkeys(agents.agents, self.task))
        assert self.policy_of is not None
        return Assignment(agents, list(self.acting), self.policy_of)

    @property
    def learned(self) -> Mapping[str, LearnedPolicy]:
        """The policies that learn, by name, if there are `policies`: first those that act."""
        learned = {
            name: LearnedPolicy(policy) if hasattr(policy, "make") else policy
            for name, policy in self.policies.items()
            if name not in self.fixed
        }
        order = sorted(learned, key=lambda name: self._teacher(name) is not None)
        return {name: learned[name] for name in order}

    def _teacher(self, name: str) -> str | None:
        return getattr(self.policies.get(name), "learns_from", None)

    @property
    def acting(self) -> tuple[str, ...]:
        """Names of the policies that act, in order; the others learn from what these do."""
        return tuple(name for name in self.policies if self._teacher(name) is None) or (self.task,)

    def actor_of(self, task: str) -> str:
        """Returns the name of the policy whose steps a task learns from, in most cases its own."""
        return self._teacher(task) or task

    @property
    def fixed(self) -> Mapping[str, FixedPolicy]:
        """The policies that do not learn, by name."""
        return {
            name: policy for name, policy in self.policies.items() if hasattr(policy, "make_source")
        }

    def _agents(self, task: str) -> tuple[str, ...]:
        """Returns the agents that a task acts for; () if the environment has one."""
        assignment = self.assignment
        return () if assignment is None else tuple(assignment.agents_of(self.actor_of(task)))

    def env_spec_of(self, task: str) -> EnvironmentSpec:
        """Returns the spec of what a policy sees, before transforms. Args: task: its name."""
        if not isinstance(self.environment, SeveralAgents):
            return self.environment.spec()
        return self.environment.agents().agents[self._agents(task)[0]]

    def _streams(self, task: str) -> ActorsConfig:
        """Returns the actors with a task's streams instead of environments."""
        return self.actors.with_streams(len(self._agents(task)) or 1)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The experiment's tasks by name, in order: its learned policies."""
        if not self.policies:
            alone = LearnedPolicy(self.agent, self.replay, self.learner, self.transforms)
            return {self.task: self._task(self.task, 0, alone)}
        return {
            name: self._task(name, index, policy)
            for index, (name, policy) in enumerate(self.learned.items())
        }

    @property
    def acting_tasks(self) -> tuple[str, ...]:
        """The tasks that act, whose parameters actors need."""
        return tuple(name for name, task in self.tasks.items() if task.learns_from is None)

    @property
    def learner_nodes(self) -> tuple[tuple[str, ...], ...]:
        """The tasks of each learner's process, where learners have processes."""
        names = update_order(self.shared, tuple(self.tasks))
        return (tuple(names),) if self.learners == "one" else groups_of(self.shared, names)

    def _task(self, name: str, index: int, policy: LearnedPolicy) -> Task:
        agents, streams = self._agents(name), self._streams(name)
        per_env = steps_per_env_step(self.environment, agents)
        return Task(
            name=name,
            index=index,
            environment=self.environment,
            evaluation_environment=self.evaluation_environment,
            agent=policy.agent,
            transforms=policy.transforms,
            replay=started_by(policy.learner, policy.replay, streams.num_streams, per_env),
            learner=policy.learner,
            evaluator=self.evaluator,
            goal=policy.goal_within(self.goal),
            actors=streams,
            inference=self.inference,
            agents=agents,
            learns_from=policy.learns_from,
        )

    @property
    def only_task(self) -> Task:
        """The task of an experiment that has one."""
        (task,) = self.tasks.values()
        return task

    def task_dir(self, run_dir: Path, task: str) -> Path:
        """Makes the folder of a task's metrics and checkpoints: the run folder if it is alone."""
        if len(self.tasks) == 1:
            return run_dir
        path = run_dir / TASKS / task
        path.mkdir(parents=True, exist_ok=True)
        return path

    def check_single_process(self) -> None:
        """Raises ConfigError for what one process cannot have."""
        for task in self.tasks.values():
            if task.learner.num_gradient_workers:
                raise ConfigError(
                    f"learner.num_gradient_workers={task.learner.num_gradient_workers}: they are "
                    "nodes, and one process has none: there an update uses all cores already; take "
                    "0, or --topology=heavy_env or light_env"
                )

    def make_agent(self) -> Agent:
        """Returns the agent of the only task, behind its transforms if there are any."""
        return self.only_task.make_agent()

    def trajectory_struct(self) -> Trajectory:
        """Returns shapes and dtypes of what the only task stores, for one stream at one step."""
        return self.only_task.trajectory_struct()
