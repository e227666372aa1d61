"""Shortens the time limit of an environment's episodes, for example for evaluation."""

import dataclasses
from typing import Any

from distrl.errors import ConfigError


def with_time_limit(environment: Any, max_episode_steps: int) -> Any:
    """Returns the environment with episodes of at most this many steps; shorter limits stay.

    Args:
      environment: one with a method `with_time_limit`, which does this, as `NativeEnvironment`; or
        a dataclass with a field `max_episode_steps`, or with `wrappers`, as one in Python. If it
        has an `episode_limit`, a shorter one stays.
      max_episode_steps: the limit, counted like the environment's own setting of that name: steps
        of the environment itself, or joint steps if it has several agents. An episode that reaches
        it ends as truncated.

    Raises:
      ConfigError: the environment has no such setting, or a limit would lose its rewards.
    """
    with_limit = getattr(environment, "with_time_limit", None)
    if with_limit is not None:
        return with_limit(max_episode_steps)

    def shorter(settings: Any) -> Any:
        limit = min(max_episode_steps, settings.max_episode_steps or max_episode_steps)
        return dataclasses.replace(settings, max_episode_steps=limit)

    fields = _fields(environment)
    if "max_episode_steps" in fields:
        limit = getattr(environment, "episode_limit", None)
        limited = environment if limit and limit <= max_episode_steps else shorter(environment)
    elif "wrappers" in fields:
        _check_rewards(environment, max_episode_steps)
        limited = dataclasses.replace(environment, wrappers=shorter(environment.wrappers))
    else:
        raise ConfigError(
            f"{type(environment).__name__} has no max_episode_steps to set, a field of a "
            "dataclass; let it end episodes itself"
        )
    if limited is not environment:
        vars(limited).update(_known(environment))
    return limited


def _check_rewards(environment: Any, limit: int) -> None:
    """Raises ConfigError if a wrapper that ends episodes would lose rewards.

    The environment checks its own wrappers where it makes its spec, which is copied here.
    """
    late = ""
    if hasattr(environment, "agents"):
        if environment.agents().ends_itself:
            late = "the pending rewards of waiting agents"
    elif delay := environment.spec().reward_delay:
        late = f"rewards, which it reports up to {delay} steps late,"
    if late:
        raise ConfigError(
            f"evaluator.max_episode_steps={limit}: {late} would be lost in {environment.name}; let "
            "it end episodes itself"
        )


def _known(environment: Any) -> dict[str, Any]:
    """Returns the specs that the environment has cached, so that none is built to find them out."""
    fields = _fields(environment)
    return {name: value for name, value in vars(environment).items() if name not in fields}


def _fields(environment: Any) -> set[str]:
    """Returns the names of a dataclass's fields; none of another object."""
    if not dataclasses.is_dataclass(environment):
        return set()
    return {field.name for field in dataclasses.fields(environment)}
