"""Checks of an experiment's parts, for mistakes that would raise something obscure later."""

import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from distrl.config import (
    ActorsConfig,
    CheckpointConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    MetricsConfig,
    SupervisionConfig,
)
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.errors import ConfigError
from distrl.field_checks import is_whole, plain_numbers
from distrl.goal import Goal
from distrl.multi_agent.learned_policy import check_agent, check_kinds, make_tuples
from distrl.replay.buffer import ReplayConfig
from distrl.same_spaces import different_part
from distrl.seeds import MAX_ACTORS, MAX_ENVS
from distrl.transforms.base import check_transform_kinds

_KINDS: dict[str, type] = {
    "replay": ReplayConfig,
    "actors": ActorsConfig,
    "inference": InferenceConfig,
    "learner": LearnerConfig,
    "evaluator": EvaluatorConfig,
    "supervision": SupervisionConfig,
    "checkpoint": CheckpointConfig,
    "metrics": MetricsConfig,
    "goal": Goal,
}
_MAX_NAME = 150  # bytes of a task's name in those of files in shared memory, which have at most 255
_MAPPINGS = ("policies", "shared")


def check_parts(experiment: Any) -> None:
    """Raises ConfigError for a part of a wrong type. Args: experiment: it is being made."""
    plain_numbers(experiment)
    for name in ("environment", "evaluation_environment"):
        check_environment(name, getattr(experiment, name))
    if experiment.agent is not None:
        check_agent(experiment.agent)
    check_kinds(experiment, _KINDS)
    make_tuples(experiment, ("transforms", "callbacks"))
    check_transform_kinds(experiment.transforms)
    for name in _MAPPINGS:
        value = getattr(experiment, name)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be a dict by name, got {value!r:.80}")
    for name, policy in experiment.policies.items():
        if isinstance(policy, type):
            what = policy.__name__
            raise ConfigError(f"policies: {what} of {name!r} is a class; write {what}(...)")
    seed, lockstep, task = experiment.seed, experiment.lockstep, experiment.task
    if not is_whole(seed, 0):
        raise ConfigError(f"seed must be a whole number, 0 or more; got {seed!r:.80}")
    if not isinstance(lockstep, bool):
        raise ConfigError(f"lockstep must be True or False, got {lockstep!r:.80}")
    if not isinstance(task, str):
        raise ConfigError(f"task must be a name, got {task!r:.80}")


def check_evaluation(experiment: Any) -> None:
    """Raises ConfigError if the evaluator can't play in its environment, or the agent act there."""
    trained, played = experiment.environment, experiment.evaluation_environment
    experiment.evaluator.limited(played or trained)
    if played is None:
        return
    if isinstance(trained, SeveralAgents) != isinstance(played, SeveralAgents):
        raise ConfigError(
            f"evaluation_environment: of {trained.name} and {played.name}, one has several agents "
            "and the other one has a single agent"
        )
    difference = different_part(trained.spec(), played.spec())
    if difference is not None:
        part, ours, other = difference
        raise ConfigError(
            f"evaluation_environment: {played.name} has another {part} than the agent is made for: "
            f"{other}; that of {trained.name} is {ours}"
        )


def check_task_names(tasks: Iterable[str]) -> None:
    """Raises ConfigError for names of tasks that cannot be in the names of files."""
    for name in tasks:
        size = len(urllib.parse.quote(name, safe=""))
        if not 0 < size <= _MAX_NAME:
            raise ConfigError(
                f"task: a name, also a policy's, must have 1 to {_MAX_NAME} characters (one that "
                f"is none of A-Z, a-z, 0-9, _, -, . and ~ counts as three or more); got {size}: "
                f"{name!r:.60}"
            )


def check_counts(
    actors: ActorsConfig, inference: InferenceConfig, evaluator: EvaluatorConfig
) -> None:
    """Raises ConfigError for more nodes than there are seeds or work for."""
    for name, count, most in (
        ("actors.num_actors", actors.num_actors, MAX_ACTORS),
        ("actors.max_actors", actors.largest_num_actors, MAX_ACTORS),
        ("actors.num_envs", actors.num_envs, MAX_ENVS),
        ("evaluator.num_envs", evaluator.num_envs, MAX_ENVS),
    ):
        if count > most:
            raise ConfigError(
                f"{name} must be at most {most}, got {count}: a run has distinct seeds for "
                f"{MAX_ACTORS} actors of {MAX_ENVS} environments"
            )
    if inference.num_inferencers > actors.num_actors:
        raise ConfigError(
            f"inference.num_inferencers={inference.num_inferencers} is more than "
            f"actors.num_actors={actors.num_actors}: some would serve no actor"
        )


def check_environment(name: str, environment: Any) -> None:
    """Raises ConfigError if something is no environment. Args: name: the experiment's field."""
    if environment is None and name == "evaluation_environment":
        return
    if not isinstance(environment, type) and callable(getattr(environment, "spec", None)):
        return
    if isinstance(environment, str):
        hint = f"write distrl.envs.make({environment!r})"
    else:
        hint = "a function that builds yours goes into PythonEnvironment(builder)"
    raise ConfigError(
        f"{name} must be an environment of distrl.envs, got {environment!r:.80}; {hint}"
    )
