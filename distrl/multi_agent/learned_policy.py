"""The settings of a policy that learns, in an experiment with several policies."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from distrl.agents.defaults import defaults_of
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.transforms.base import Transform

_FROM_AGENT: Any = None  # `filled_in` replaces it with the algorithm's default
FROM_THE_AGENT = ("actors", "replay", "learner")  # parts that may have this value


@dataclasses.dataclass(frozen=True)
class LearnedPolicy:
    """An agent with a table and a learner.

    Without `replay` or `learner` it has the algorithm's defaults, which suit each other and the
    parts that are given.

    Attributes:
      agent: the algorithm's settings.
      replay: how experience reaches the learner.
      learner: settings of the learner.
      transforms: transforms of time steps, in order, from the raw one to the agent.
      goal: when the policy counts as learned; the run ends when all of them do. Budgets that it
        leaves out are the experiment's. None: the experiment's goal.
      learns_from: name of the policy from whose steps it learns, instead of acting itself: an
        auxiliary task, or an algorithm that learns from others' actions.
    """

    agent: Any
    replay: ReplayConfig = _FROM_AGENT
    learner: LearnerConfig = _FROM_AGENT
    transforms: tuple[Transform, ...] = ()
    goal: Goal | None = None
    learns_from: str | None = None

    def __post_init__(self) -> None:
        check_agent(self.agent, "LearnedPolicy: ")
        check_kinds(self, {"replay": ReplayConfig, "learner": LearnerConfig}, "LearnedPolicy: ")
        make_tuples(self, ("transforms",), "LearnedPolicy: ")
        if self.goal is not None:
            check_kinds(self, {"goal": Goal}, "LearnedPolicy: ")

    def filled_in(self, env_spec: EnvironmentSpec, actors: ActorsConfig) -> "LearnedPolicy":
        """Returns the policy with the algorithm's defaults for what was not given.

        Args:
          env_spec: spec of the agents that it acts for.
          actors: the actors, with the policy's streams instead of environments.
        """
        if self.replay is not None and self.learner is not None:
            return self
        defaults = defaults_of(self.agent, env_spec, actors, self.learner)
        return dataclasses.replace(
            self,
            replay=defaults.replay if self.replay is None else self.replay,
            learner=defaults.learner,
        )

    def goal_within(self, experiment: Goal) -> Goal:
        """Returns the policy's goal; budgets that it leaves out are those of the experiment's."""
        return experiment if self.goal is None else self.goal.within(experiment)


def check_agent(agent: Any, prefix: str = "") -> None:
    """Raises ConfigError unless these are an algorithm's settings. Args: see `check_kinds`."""
    if isinstance(agent, type):
        raise ConfigError(f"{prefix}agent: {agent.__name__} is a class; write {agent.__name__}()")
    if not callable(getattr(agent, "make", None)):
        raise ConfigError(
            f"{prefix}agent must be an algorithm's settings, such as PPOConfig(), got {agent!r:.80}"
        )


def check_kinds(parts: Any, kinds: Mapping[str, type], prefix: str = "") -> None:
    """Raises ConfigError for a part of a wrong type.

    Args:
      parts: an `Experiment` or a `LearnedPolicy`.
      kinds: the types of its parts, by name.
      prefix: the beginning of the message.
    """
    for name, kind in kinds.items():
        value = getattr(parts, name)
        if not isinstance(value, kind) and not (value is None and name in FROM_THE_AGENT):
            raise ConfigError(f"{prefix}{name} must be a {kind.__name__}, got {value!r:.80}")


def make_tuples(parts: Any, names: Sequence[str], prefix: str = "") -> None:
    """Turns lists, which flags and run folders have, into tuples. Args: see `check_kinds`."""
    for name in names:
        value = getattr(parts, name)
        if not isinstance(value, (list, tuple)):
            raise ConfigError(
                f"{prefix}{name} must be a tuple, as in {name}=(x,), got {value!r:.80}"
            )
        object.__setattr__(parts, name, tuple(value))
