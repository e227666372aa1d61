"""dm_env environments as steppers."""

from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters import spaces
from distrl.envs.adapters.info import dm_info_reader, dm_info_spec
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
        env_info = env.env_info_spec() if hasattr(env, "env_info_spec") else {}
        self._spec = specs.EnvironmentSpec(
            spaces.dm_spec(env.observation_spec(), "observation"),
            spaces.dm_spec(env.action_spec(), "action"),
            dm_specs.Array(env.reward_spec().shape, np.float32, "reward"),
            dm_info_spec(env_info),
            int(getattr(env, "reward_delay", 0)),
        )
        self._read = spaces.dm_reader(self._spec.observation, "observation")
        self._read_info = dm_info_reader(self._spec.env_info)
        self._read_reward = spaces.leaf_reader(self._spec.reward, "reward")
        self._write = spaces.dm_writer(env.action_spec())

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec without wrappers; float32 and int32 instead of 64 bits."""
        return self._spec

    def reset(self) -> Step:
        """See `Stepper`."""
        step = self._env.reset()
        return self._convert(step, 0.0, 1.0)

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        step = self._env.step(self._write(action))
        reward = step.reward
        if type(reward) is not float and reward is not None:  # None: of a FIRST, which is refused
            reward = self._read_reward(reward)
        return self._convert(step, reward, step.discount)

    def close(self) -> None:
        """See `Stepper`."""
        self._env.close()

    def _convert(self, step: Any, reward: Any, discount: Any) -> Step:
        env_info = () if self._read_info is None else self._read_info(self._env.env_info())
        observation = self._read(step.observation)
        return Step(int(step.step_type), reward, discount, observation, env_info)
