"""The experiment to train, as one checked dataclass."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distrl.agents.agent import Agent
from distrl.agents.defaults import defaults_of
from distrl.config import (
    ActorsConfig,
    CheckpointConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    SupervisionConfig,
)
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.replay.buffer import ReplayConfig
from distrl.runtime.host_resources import memory_limit
from distrl.task import AgentConfig, Task
from distrl.transforms.base import Transform
from distrl.types import Trajectory

_FROM_AGENT: Any = None  # `Experiment` replaces it by the default of the algorithm


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment, the same under every topology.

    Without `replay`, `actors` or `learner` it has the algorithm's defaults, which suit each other
    and the parts that are given. It is checked when made: what can't work raises ConfigError, with
    the arithmetic.

    Attributes:
      environment: the environment that actors step.
      agent: the algorithm's settings.
      replay: how experience reaches the learner.
      actors, inference, learner, evaluator: settings of the parts.
      supervision: what happens to nodes that die or hang.
      checkpoint: when the whole program is saved.
      transforms: transforms of time steps, in order, from the raw one to the agent.
      evaluation_environment: the evaluator's environment, with the same spaces; None: the same.
      goal: when the run ends.
      lockstep: run actors and learner on a fixed, reproducible schedule, so that two runs make the
        same parameters; see `distrl.lockstep`. For one process, and for heavy_env with its replay
        in shared memory.
      seed: root of every seed of the run.
      task: name of the task, which names its tables and metrics.
    """

    environment: Environment
    agent: AgentConfig
    replay: ReplayConfig = _FROM_AGENT
    actors: ActorsConfig = _FROM_AGENT
    inference: InferenceConfig = InferenceConfig()
    learner: LearnerConfig = _FROM_AGENT
    evaluator: EvaluatorConfig = EvaluatorConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    transforms: tuple[Transform, ...] = ()
    evaluation_environment: Environment | None = None
    goal: Goal = Goal()
    lockstep: bool = False
    seed: int = 0
    task: str = "task"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        self._fill_in()
        for task in self.tasks.values():
            task.check()
        if self.inference.num_inferencers > self.actors.num_actors:
            raise ConfigError(
                f"inference.num_inferencers={self.inference.num_inferencers} is more than "
                f"actors.num_actors={self.actors.num_actors}: some would serve no one"
            )
        for task in self.tasks.values():
            if self.lockstep:
                task.lockstep_schedule()
            _check_memory(task)

    def _fill_in(self) -> None:
        """Sets the parts that were not given to the algorithm's defaults."""
        missing = [name for name in ("actors", "learner", "replay") if getattr(self, name) is None]
        if missing:
            env_spec = self.environment.spec()
            defaults = defaults_of(self.agent, env_spec, self.actors, self.learner)
            for name in missing:
                object.__setattr__(self, name, getattr(defaults, name))

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The experiment's tasks by name, in order."""
        return {
            self.task: Task(
                name=self.task,
                index=0,
                environment=self.environment,
                evaluation_environment=self.evaluation_environment,
                agent=self.agent,
                transforms=self.transforms,
                replay=self.replay,
                learner=self.learner,
                evaluator=self.evaluator,
                goal=self.goal,
                actors=self.actors,
                inference=self.inference,
            )
        }

    @property
    def only_task(self) -> Task:
        """The task of an experiment that has one."""
        (task,) = self.tasks.values()
        return task

    def task_dir(self, run_dir: Path, task: str) -> Path:
        """Returns the folder of a task's metrics and checkpoints: the run folder if it is alone."""
        return run_dir if len(self.tasks) == 1 else run_dir / "tasks" / task

    def make_agent(self) -> Agent:
        """Returns the agent of the only task, behind its transforms if there are any."""
        return self.only_task.make_agent()

    def trajectory_struct(self) -> Trajectory:
        """Returns shapes and dtypes of what the only task stores, for one stream at one step."""
        return self.only_task.trajectory_struct()


def _check_memory(task: Task) -> None:
    """Raises ConfigError if the table does not fit; the agent's own checks come with its shapes."""
    max_size = task.replay.max_size
    memory = task.replay.nbytes(task.trajectory_struct())
    limit = memory_limit()
    if memory > limit:
        raise ConfigError(
            f"replay.max_size={max_size} unrolls of {memory / max_size / 1e6:.1f} MB need "
            f"{memory / 1e9:.1f} GB, and this machine has {limit / 1e9:.1f} GB; at most "
            f"{int(limit / (memory / max_size))} unrolls fit"
        )
