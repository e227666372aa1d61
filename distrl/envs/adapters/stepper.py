"""One environment as its worker sees it, whatever library it comes from."""

from typing import Any, NamedTuple, Protocol

from distrl.types import Nest


class Step(NamedTuple):
    """One step of one environment; arrays have no leading axis."""

    step_type: int  # a StepType
    reward: Any  # a number, or a vector where the spec says so; of the action before; 0 at FIRST
    discount: float  # 0 or 1, as in TimeStep's table
    observation: Nest  # of arrays or numbers
    env_info: Any = ()  # by name, as the spec declares it


class Stepper(Protocol):
    """Adapters make it from an environment; wrappers make one from another."""

    def reset(self) -> Step:
        """Begins an episode. Called first, and after every LAST."""

    def step(self, action: Nest) -> Step:
        """Takes an action; never called before `reset`, nor after LAST."""

    def close(self) -> None:
        """Frees what the environment holds."""
