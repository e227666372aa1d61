"""The environment in which a policy is scored, without what ends training episodes early."""

from distrl.envs.pool import Environment


def whole_games(environment: Environment) -> Environment:
    """Returns an environment without what ends its episodes early or changes its rewards.

    Args:
      environment: an environment; if it has a method `whole_games`, that returns the result.
    """
    scored = getattr(environment, "whole_games", None)
    return environment if scored is None else scored()
