"""The interface of one environment to its worker, independent of its library."""

from typing import Any, NamedTuple, Protocol

from distrl.types import Nest


class Step(NamedTuple):
    """One step of one environment; arrays have no leading axis."""

    step_type: int  # a StepType
    reward: Any  # for the action before; a number, or a vector if the spec has one; 0 at FIRST
    discount: float  # 0 or 1, as in TimeStep's table
    observation: Nest  # arrays or numbers
    env_info: Any = ()  # by name, as declared by the spec


class Stepper(Protocol):
    """One environment. Adapters make it from a library's; wrappers make one from another."""

    def reset(self) -> Step:
        """Starts an episode. Called first, and after every LAST."""

    def step(self, action: Nest) -> Step:
        """Takes an action; never called before `reset`, nor after LAST."""

    def close(self) -> None:
        """Closes the environment."""
