"""Environments that sleep in each step, named for its milliseconds: Sleeping1-v0, Sleeping10-v0."""

import time
from typing import Any

import gymnasium

MILLISECONDS = (50, 10, 1)


class Sleeping(gymnasium.Env[Any, Any]):
    """Waits in each step, without work."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, milliseconds: float):
        """Args: milliseconds: of a step."""
        self._seconds = milliseconds / 1e3

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        return self.observation_space.low, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Waits."""
        time.sleep(self._seconds)
        return self.observation_space.low, 1.0, False, False, {}


for _milliseconds in MILLISECONDS:
    gymnasium.register(
        f"Sleeping{_milliseconds}-v0",
        entry_point=Sleeping,
        max_episode_steps=500,
        kwargs={"milliseconds": _milliseconds},
    )
