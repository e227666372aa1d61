"""dm_env environments as steppers."""

from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters import spaces
from distrl.envs.adapters.stepper import Step
from distrl.types import Nest


class DmStepper:
    """Steps a dm_env.Environment.

    The environment may have `env_info_spec()`, a dict of specs, with `env_info()`, which is called
    after each reset and step; and an attribute `reward_delay`.
    """

    def __init__(self, env: Any):
        """Args: env: the environment."""
        self._env = env
        self._read = spaces.dm_reader(env.observation_spec(), "observation")
        self._write = spaces.dm_writer(env.action_spec())
        self._declares_info = hasattr(env, "env_info_spec") and bool(env.env_info_spec())

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec without wrappers; float32 and int32 in the place of 64 bits."""
        env_info = self._env.env_info_spec() if self._declares_info else {}
        return specs.EnvironmentSpec(
            spaces.dm_spec(self._env.observation_spec(), "observation"),
            spaces.dm_spec(self._env.action_spec(), "action"),
            dm_specs.Array(self._env.reward_spec().shape, np.float32, "reward"),
            {name: spaces.dm_spec(spec, name) for name, spec in env_info.items()} or (),
            int(getattr(self._env, "reward_delay", 0)),
        )

    def reset(self) -> Step:
        """See `Stepper`."""
        step = self._env.reset()
        return self._convert(step, 0.0, 1.0)

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        step = self._env.step(self._write(action))
        return self._convert(step, step.reward, step.discount)

    def close(self) -> None:
        """See `Stepper`."""
        self._env.close()

    def _convert(self, step: Any, reward: Any, discount: Any) -> Step:
        observation = step.observation if self._read is None else self._read(step.observation)
        env_info: Any = self._env.env_info() if self._declares_info else ()
        if "success" in (env_info or ()):
            specs.success_code(env_info["success"], "env_info's success")
        return Step(int(step.step_type), reward, discount, observation, env_info)
