"""EnvPool's C++ thread pools behind the Pool interface."""

import contextlib
import dataclasses
import difflib
import functools
import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.pool import Pool
from distrl.errors import ConfigError
from distrl.types import Nest

# The part of EnvPool's state that every environment has; the rest is observation and info.
_COMMON = ("info:env_id", "info:players.env_id", "elapsed_step", "done", "reward", "discount",
           "step_type", "trunc")  # fmt: skip


@functools.cache
def _envpool() -> Any:
    """EnvPool, imported on first use and without the notice that its old gym prints."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        import envpool
    return envpool


@functools.cache
def _envpool_spec(name: str) -> Any:
    with warnings.catch_warnings():  # float64 bounds cast to float32
        warnings.simplefilter("ignore")
        return _envpool().make_spec(name)


@dataclasses.dataclass(frozen=True)
class NativeEnvironment:
    """An environment of EnvPool, by name.

    Attributes:
      name: as EnvPool lists it: "CartPole-v1", "Pong-v5", "HalfCheetah-v4".
      num_threads: EnvPool's threads in each pool. 0: as many as the process may use cores.
      max_episode_steps: the time limit. None: the environment's own.
      clip_actions: clip continuous actions to their bounds before the environment sees them.
    """

    name: str
    num_threads: int = 1
    max_episode_steps: int | None = None
    clip_actions: bool = True

    def __post_init__(self) -> None:
        names = _envpool().list_all_envs()
        if self.name not in names:
            near = difflib.get_close_matches(self.name, names, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(f"environment: EnvPool has no {self.name!r}{hint}")
        if self.num_threads < 0:
            raise ConfigError(
                f"environment.num_threads must be 0 (one a core) or more, got {self.num_threads}"
            )
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(
                f"environment.max_episode_steps must be 1 or more, got {self.max_episode_steps}"
            )

    def spec(self) -> specs.EnvironmentSpec:
        """Of one environment; float64 is given and taken as float32."""
        state = _envpool_spec(self.name).state_array_spec
        nested = {k.removeprefix("obs:"): v for k, v in state.items() if k.startswith("obs:")}
        observation = (
            {name: _observation(value, name) for name, value in nested.items()}
            if nested
            else _observation(state["obs"], "observation")
        )
        action = list(_envpool_spec(self.name).action_array_spec.values())[-1]
        return specs.EnvironmentSpec(observation, _action(action))

    @property
    def return_threshold(self) -> float | None:
        """The mean return at which the environment counts as solved, where EnvPool says."""
        return getattr(_envpool_spec(self.name).config, "reward_threshold", None)

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> "NativePool":
        """See `Environment`. EnvPool takes one seed: environment i has `seeds[0] + i`."""
        return NativePool(self, num_envs, wait_num, seeds)


class NativePool(Pool):
    """See `Pool`.

    It takes EnvPool's raw state arrays: its dm API reports a time limit as a true end, and its
    gymnasium API costs more than a step of CartPole. EnvPool calls an episode that truly ends on
    the very step of its time limit truncated; so does this pool.
    """

    def __init__(
        self, environment: NativeEnvironment, num_envs: int, wait_num: int, seeds: Sequence[int]
    ):
        """See `NativeEnvironment.make_pool`."""
        super().__init__(environment.name, environment.spec(), num_envs, wait_num)
        options: dict[str, Any] = {}
        if environment.max_episode_steps is not None:
            options["max_episode_steps"] = environment.max_episode_steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._env = _envpool().make(
                environment.name,
                env_type="gymnasium",
                num_envs=num_envs,
                batch_size=wait_num,
                num_threads=environment.num_threads,
                seed=seeds[0] % 2**31,
                **options,
            )
        keys = self._env.spec._state_keys
        at = {key: i for i, key in enumerate(keys)}
        self._env_id, self._reward = at["info:env_id"], at["reward"]
        self._discount, self._step_type, self._trunc = at["discount"], at["step_type"], at["trunc"]
        self._observations = [
            (key.removeprefix("obs:"), i)
            for key, i in at.items()
            if key == "obs" or key.startswith("obs:")
        ]
        self._single = at.get("obs")
        self._infos = [
            (key.removeprefix("info:"), i)
            for key, i in at.items()
            if key.startswith("info:") and key not in _COMMON
        ]
        raw_action = list(self._env.spec.action_array_spec.values())[-1]
        self._action_dtype = np.dtype(raw_action.dtype)
        self._bounds = None
        continuous = not isinstance(self.spec.action, dm_specs.DiscreteArray)
        if environment.clip_actions and continuous:
            self._bounds = (self.spec.action.minimum, self.spec.action.maximum)
        self._checked = False

    def _start(self) -> None:
        self._env.async_reset()

    def _send(self, action: Any, env_ids: np.ndarray) -> None:
        if not self._checked:  # once: EnvPool reads the memory as it comes
            specs.check(action, self.spec.action, (len(env_ids),), f"action of {self.name}")
            self._checked = True
        if self._bounds is not None:
            action = np.clip(action, *self._bounds).astype(self._action_dtype, order="C")
        else:  # EnvPool wants memory that it could write to, which JAX's is not
            action = np.array(action, self._action_dtype, order="C")
        self._env._send([env_ids, env_ids, action])

    def _recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, Nest, np.ndarray, Nest]:
        state = self._env._recv()
        observation: Any
        if self._single is not None:
            observation = _narrow(state[self._single])
        else:
            observation = {name: _narrow(state[i]) for name, i in self._observations}
        discount = state[self._discount]
        if np.count_nonzero(state[self._trunc]):
            discount[state[self._trunc]] = 1.0
        return (
            state[self._step_type].astype(np.int8),
            state[self._reward],
            discount,
            observation,
            state[self._env_id],
            {name: state[i] for name, i in self._infos} if self._infos else (),
        )

    def close(self) -> None:
        """See `Pool`."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()
        self._env = None


def _narrow(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _observation(spec: Any, name: str) -> dm_specs.Array:
    dtype = np.dtype(np.float32 if np.dtype(spec.dtype) == np.float64 else spec.dtype)
    return dm_specs.Array([n for n in spec.shape if n != -1], dtype, name)


def _action(spec: Any) -> dm_specs.Array:
    """EnvPool's action spec as dm_env's: discrete, or bounded float32."""
    shape = [n for n in spec.shape if n != -1]
    if np.issubdtype(spec.dtype, np.integer):
        if shape or spec.minimum != 0:
            raise ConfigError(
                f"environment: actions must be one integer from 0 on, or floats; got {spec}"
            )
        return dm_specs.DiscreteArray(int(spec.maximum - spec.minimum + 1), np.int32, "action")
    minimum, maximum = (np.broadcast_to(np.asarray(b), shape) for b in (spec.minimum, spec.maximum))
    return dm_specs.BoundedArray(shape, np.float32, minimum, maximum, "action")
