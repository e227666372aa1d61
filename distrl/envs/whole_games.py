"""The environment that a policy's score is of, where it learns in another one."""

from distrl.envs.pool import Environment


def whole_games(environment: Environment) -> Environment:
    """Returns an environment without what ends its episodes early or changes its rewards.

    Args:
      environment: with or without a method `whole_games`, which returns it so.
    """
    scored = getattr(environment, "whole_games", None)
    return environment if scored is None else scored()
