"""gymnasium environments as steppers."""

import inspect
from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters import spaces
from distrl.envs.adapters.info import InfoReader, attribute
from distrl.envs.adapters.stepper import Step
from distrl.errors import SpecError
from distrl.types import Nest, StepType

_OLD_GYM = (
    "an environment written for an older gym needs a wrapper such as shimmy's GymV21CompatibilityV0"
)


class GymStepper:
    """Steps a gymnasium.Env, or one of gym 0.26.

    `terminated` wins over `truncated`. The environment is seeded by its first reset. Only declared
    parts of its info are kept: `success`, from the keys `success` or `is_success`, and the names in
    the environment's attribute `info_space` (a Dict space).

    Attributes:
      reports_success: the environment's attribute of this name; False if it has none.
      inherits_reward: its `reward_space` is that of an environment inside it.
    """

    def __init__(
        self, env: Any, seed: int, success: bool, reward_shape: tuple[int, ...] | None = None
    ):
        """Args:
        env: the environment.
        seed: seed of its first reset, and of its action space.
        success: keep `env_info["success"]`.
        reward_shape: shape of its rewards; None: that of its `reward_space`, or a scalar.
        """
        self._env = env
        self._seed: int | None = seed
        if hasattr(env.action_space, "seed"):
            env.action_space.seed(seed)
        self._read = spaces.reader(env.observation_space, "observation")
        self._write = spaces.writer(env.action_space, "action")
        if reward_shape is None:
            reward_shape = getattr(attribute(env, "reward_space", None), "shape", ())
        self._reward_shape = reward_shape
        self.inherits_reward = not (
            hasattr(type(env), "reward_space") or "reward_space" in getattr(env, "__dict__", ())
        )
        reward_spec = dm_specs.Array(self._reward_shape, np.float32, "reward")
        self._read_reward = spaces.leaf_reader(reward_spec, "reward") if reward_shape else _number
        self.reports_success = bool(attribute(env, "reports_success", False))
        self._info = InfoReader(attribute(env, "info_space", None), success)
        self._any_info = bool(self._info.spec)

    @property
    def has_seen_success(self) -> bool:
        """Whether the environment's info had `success` so far."""
        return self._info.has_seen_success

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec without wrappers; float32 and int32 instead of 64 bits."""
        return specs.EnvironmentSpec(
            spaces.space_spec(self._env.observation_space, "observation"),
            spaces.space_spec(self._env.action_space, "action"),
            dm_specs.Array(self._reward_shape, np.float32, "reward"),
            self._info.spec,
            int(attribute(self._env, "reward_delay", 0)),
            spaces.starts(self._env.observation_space),
            spaces.starts(self._env.action_space),
        )

    def reset(self) -> Step:
        """See `Stepper`."""
        answer = self._env.reset() if self._seed is None else seeded_reset(self._env, self._seed)
        self._seed = None
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise SpecError(
                "reset: expected (observation, info), as gymnasium's environments give it, got "
                f"a {type(answer).__name__}; {_OLD_GYM}"
            )
        observation, info = answer
        env_info = self._info(info, True) if self._any_info else ()
        return Step(StepType.FIRST, 0.0, 1.0, self._read(observation), env_info)

    def step(self, action: Nest) -> Step:
        """See `Stepper`."""
        answer = self._env.step(self._write(action))
        try:
            observation, reward, terminated, truncated, info = answer
        except (TypeError, ValueError) as error:
            got = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
            raise SpecError(
                "step: expected (observation, reward, terminated, truncated, info), as "
                f"gymnasium's environments give it, got {got}; {_OLD_GYM}"
            ) from error
        observation = self._read(observation)
        env_info = self._info(info, False) if self._any_info else ()
        if type(reward) is not float:
            reward = self._read_reward(reward)
        if terminated:
            return Step(StepType.LAST, reward, 0.0, observation, env_info)
        kind = StepType.LAST if truncated else StepType.MID
        return Step(kind, reward, 1.0, observation, env_info)

    def close(self) -> None:
        """See `Stepper`."""
        self._env.close()


def seeded_reset(env: Any, seed: int) -> Any:
    """Returns what `env.reset(seed=seed)` does.

    Raises:
      SpecError: the environment, or one inside it, has a `reset` that takes no seed.
    """
    try:
        return env.reset(seed=seed)
    except TypeError:
        while _takes_seed(env.reset) and hasattr(env, "env"):
            env = env.env
        if _takes_seed(env.reset):
            raise  # raised by the environment's own code
        raise SpecError(
            f"{type(env).__name__}.reset must take `seed` and `options`, as gymnasium's: "
            "def reset(self, *, seed=None, options=None)"
        ) from None


def _takes_seed(reset: Any) -> bool:
    parameters = inspect.signature(reset).parameters
    return "seed" in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


def _number(reward: Any) -> float:
    """Returns a reward, a number of any kind or an array of one, as a float."""
    try:
        return float(reward)
    except (TypeError, ValueError):
        array = np.asarray(reward)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(()))
        got = f"an array of shape {list(array.shape)}" if array.ndim else repr(reward)
        raise SpecError(
            f"step: expected a number as reward, got {got:.200}; a vector needs an attribute "
            "reward_space"
        ) from None
