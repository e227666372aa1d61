"""Calls of a user's builder, which makes one environment."""

import inspect
import logging
from collections.abc import Callable
from typing import Any

from distrl.errors import ConfigError

LOG = logging.getLogger("distrl.envs")

Builder = Callable[..., Any]


def check_builder(builder: Builder, product: str) -> None:
    """Raises ConfigError if it is not clear how to call the builder with a seed.

    Args:
      builder: see `PythonEnvironment`.
      product: what it must return, for messages.
    """
    if not callable(builder):
        raise ConfigError(
            f"environment.builder must be a function (or class) that returns {product}, got "
            f"{builder!r}"
        )
    _seed_parameter(builder)


def builder_name(builder: Builder) -> str:
    """Returns the name of a builder, for messages and run folders."""
    function = getattr(builder, "func", builder)  # unwraps functools.partial
    return getattr(function, "__name__", "environment")


def build(builder: Builder, seed: int) -> Any:
    """Returns an environment of gymnasium or dm_env.

    Args:
      builder: see `PythonEnvironment`.
      seed: the environment's seed.

    Raises:
      ConfigError: the builder returned something else.
    """
    env = call_builder(builder, seed)
    if hasattr(env, "possible_agents"):
        raise ConfigError(
            f"environment.builder returned an environment with several agents "
            f"({type(env).__name__}); use MultiAgentEnvironment for it"
        )
    if hasattr(env, "single_observation_space"):
        raise ConfigError(
            f"environment.builder returned a vector environment ({type(env).__name__}); distrl "
            "makes its own batches: return one environment"
        )
    if not (is_gymnasium(env) or hasattr(env, "observation_spec")):
        raise ConfigError(
            "environment.builder must return a gymnasium.Env or a dm_env.Environment, got a "
            f"{type(env).__name__}, which has neither observation_space nor observation_spec"
        )
    return env


def call_builder(builder: Builder, seed: int) -> Any:
    """Returns what the builder returns; passes the seed if it takes one."""
    kind = _seed_parameter(builder)
    arguments = {"keyword": ((), {"seed": seed}), "position": ((seed,), {}), "": ((), {})}[kind]
    return builder(*arguments[0], **arguments[1])


def close_env(env: Any, name: str) -> None:
    """Closes an environment that was built for inspection. Args: name: its name in the log."""
    try:
        env.close()
    except Exception:  # as in a pool: what it returned before was right
        LOG.exception("%s: closing it raised", name)


def is_gymnasium(env: Any) -> bool:
    """Returns whether an environment has gymnasium's interface; otherwise it has dm_env's."""
    return hasattr(env, "observation_space")


def _seed_parameter(builder: Builder) -> str:
    """Returns how a builder takes a seed: "keyword", "position" or "" for not at all."""
    try:
        parameters = list(inspect.signature(builder).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"environment.builder: the parameters of {builder!r} are unknown; wrap it in a function"
        ) from error
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    by_name = [p for p in parameters if p.name == "seed" and p.kind != p.POSITIONAL_ONLY]
    others = [p.name for p in required if not by_name or p.name != "seed"]
    if by_name and not others:
        return "keyword"
    if len(others) == 1 and not by_name and required[0].kind != required[0].KEYWORD_ONLY:
        return "position"
    if not others:
        return ""
    raise ConfigError(
        "environment.builder must need nothing but a seed, and it needs "
        f"{', '.join(p.name for p in required)}: set them with functools.partial"
    )
