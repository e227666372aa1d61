"""gymnasium and dm_env environments as steppers."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs import spaces
from distrl.envs.conform import NestCheck, SpecViolation
from distrl.envs.stepper import Step, Stepper
from distrl.envs.wrappers import WrapperConfig, wrap, wrapped_spec
from distrl.errors import ConfigError, SpecError
from distrl.types import Nest, StepType

Builder = Callable[..., Any]

_SUCCESS_NAMES = ("is_success", "success")  # in gymnasium's info: its robotics', Meta-World's
_OLD_GYM = (
    "an environment written for an older gym needs a wrapper such as shimmy's GymV21CompatibilityV0"
)
_SUCCESS = dm_specs.BoundedArray((), np.int8, -1, 1, "success")


def check_builder(builder: Builder) -> None:
    """Raises ConfigError where it is not clear how to call it with a seed."""
    _takes(builder)


def make_stepper(
    builder: Builder, seed: int, wrappers: WrapperConfig, spec: specs.EnvironmentSpec
) -> Stepper:
    """Builds one environment with its wrappers.

    Args:
      builder: see `PythonEnvironment`.
      seed: of the environment.
      wrappers: put around it.
      spec: what `environment_spec` gave for the same builder and wrappers.
    """
    env = _build(builder, seed)
    stepper: Stepper
    if _is_gymnasium(env):
        stepper = GymStepper(env, seed, "success" in spec.env_info)
    else:
        stepper = DmStepper(env)
    return wrap(stepper, spec, wrappers)


def environment_spec(builder: Builder, name: str, wrappers: WrapperConfig) -> specs.EnvironmentSpec:
    """Builds one environment, resets and steps it once, closes it, and tells its spec.

    Args:
      builder: see `PythonEnvironment`.
      name: for messages.
      wrappers: put around it; the spec is what they make of the environment's.

    Raises:
      ConfigError: not an environment that distrl can use, or not with these wrappers.
      SpecError: the two steps break the environment's own spaces or specs.
    """
    env = _build(builder, 0)
    try:
        adapter: GymStepper | DmStepper
        adapter = GymStepper(env, 0, True) if _is_gymnasium(env) else DmStepper(env)
        raw = adapter.spec()
        spec = wrapped_spec(raw, wrappers)
        stepper = wrap(adapter, spec, wrappers)
        first = stepper.reset()
        second = stepper.step(_any_action(spec.action))
        silent = isinstance(adapter, GymStepper) and not adapter.reports_success
        if silent and all(step.env_info["success"] < 0 for step in (first, second)):
            env_info = {k: v for k, v in spec.env_info.items() if k != "success"}
            spec = spec._replace(env_info=env_info or ())
        check = NestCheck("observation", spec.observation, False)
        for step, which in ((first, "first"), (second, "second")):
            try:
                check(step.observation)
            except SpecViolation as breach:
                raise SpecError(f"{name}: {which} {breach}") from None
        return spec
    finally:
        env.close()


class GymStepper:
    """A gymnasium.Env, or one of gym 0.26.

    `terminated` wins over `truncated`. The environment is seeded by its first reset. Of its info,
    only what is declared is kept: `success`, from the keys `success` or `is_success`, and what
    the environment's attribute `info_space` (a Dict space) names.

    Attributes:
      reports_success: whether the environment's attribute of this name says that it does.
    """

    def __init__(self, env: Any, seed: int, success: bool):
        """Args:
        env: the environment.
        seed: for its first reset, and its action space.
        success: keep `env_info["success"]`.
        """
        self._env = env
        self._seed: int | None = seed
        if hasattr(env.action_space, "seed"):
            env.action_space.seed(seed)
        self._read = spaces.reader(env.observation_space, "observation")
        self._write = spaces.writer(env.action_space, "action")
        self._reward_shape = getattr(_attribute(env, "reward_space", None), "shape", ())
        self._vector = bool(self._reward_shape)
        self._success = success
        self.reports_success = bool(_attribute(env, "reports_success", False))
        self._info_space = _attribute(env, "info_space", None)
        self._infos: dict[str, tuple[spaces.Reader | None, Any]] = {}
        if self._info_space is not None:
            declared = spaces.space_spec(self._info_space, "info_space")
            if not isinstance(declared, dict):
                raise ConfigError(f"info_space must be a Dict space, got {self._info_space!r}")
            for name, space in self._info_space.spaces.items():
                self._infos[name] = spaces.reader(space, name), specs.zeros(declared[name])
        self._any_info = success or bool(self._infos)

    def spec(self) -> specs.EnvironmentSpec:
        """Of the environment without wrappers; float32 and int32 instead of 64 bits."""
        env_info: dict[str, Any] = {"success": _SUCCESS} if self._success else {}
        if self._info_space is not None:
            env_info.update(spaces.space_spec(self._info_space, "info_space"))
        return specs.EnvironmentSpec(
            spaces.space_spec(self._env.observation_space, "observation"),
            spaces.space_spec(self._env.action_space, "action"),
            dm_specs.Array(self._reward_shape, np.float32, "reward"),
            env_info or (),
            int(_attribute(self._env, "reward_delay", 0)),
        )

    def reset(self) -> Step:
        """See `Stepper`."""
        answer = self._env.reset() if self._seed is None else self._env.reset(seed=self._seed)
        self._seed = None
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise SpecError(
                "reset: expected (observation, info), as gymnasium's environments give it, got "
                f"a {type(answer).__name__}; {_OLD_GYM}"
            )
        observation, info = answer
        if self._read is not None:
            observation = self._read(observation)
        env_info = self._env_info(info, True) if self._any_info else ()
        return Step(StepType.FIRST, 0.0, 1.0, observation, env_info)

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
        if self._read is not None:
            observation = self._read(observation)
        env_info = self._env_info(info, False) if self._any_info else ()
        if not self._vector:
            reward = float(reward)  # environments give integers too
        if terminated:
            return Step(StepType.LAST, reward, 0.0, observation, env_info)
        kind = StepType.LAST if truncated else StepType.MID
        return Step(kind, reward, 1.0, observation, env_info)

    def close(self) -> None:
        """See `Stepper`."""
        self._env.close()

    def _env_info(self, info: Mapping[str, Any], first: bool) -> dict[str, Any]:
        env_info: dict[str, Any] = {}
        if self._success:
            said = next((info[name] for name in _SUCCESS_NAMES if name in info), None)
            env_info["success"] = np.int8(-1 if said is None else bool(said))
        for name, (read, empty) in self._infos.items():
            if name not in info:
                if not first:
                    raise SpecError(f"info: expected {name!r}, as info_space declares, at a step")
                env_info[name] = empty  # gymnasium's resets often have an empty info
            else:
                env_info[name] = info[name] if read is None else read(info[name])
        return env_info


class DmStepper:
    """A dm_env.Environment.

    It may have `env_info_spec()`, a dict of specs, with `env_info()`, which is asked after each
    reset and step; and an attribute `reward_delay`.
    """

    def __init__(self, env: Any):
        """Args: env: the environment."""
        self._env = env
        self._read = spaces.dm_reader(env.observation_spec(), "observation")
        self._write = spaces.dm_writer(env.action_spec())
        self._declares_info = hasattr(env, "env_info_spec") and bool(env.env_info_spec())

    def spec(self) -> specs.EnvironmentSpec:
        """Of the environment without wrappers; float32 and int32 instead of 64 bits."""
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
        env_info = self._env.env_info() if self._declares_info else ()
        return Step(int(step.step_type), reward, discount, observation, env_info)


def _takes(builder: Builder) -> str:
    """How it takes a seed: "keyword", "position" or "" for not at all."""
    try:
        parameters = list(inspect.signature(builder).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"environment.builder: {builder!r} does not say what it takes; wrap it in a function"
        ) from error
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    by_name = [p for p in parameters if p.name == "seed" and p.kind != p.POSITIONAL_ONLY]
    others = [p.name for p in required if not by_name or p.name != "seed"]
    if by_name and not others:
        return "keyword"
    if len(others) == 1 and not by_name and required[0].kind != required[0].KEYWORD_ONLY:
        return "position"
    if not others:
        return ""
    raise ConfigError(
        "environment.builder must need nothing but a seed, and it needs "
        f"{', '.join(p.name for p in required)}: set them with functools.partial"
    )


def _build(builder: Builder, seed: int) -> Any:
    how = _takes(builder)
    arguments = {"keyword": ((), {"seed": seed}), "position": ((seed,), {}), "": ((), {})}[how]
    env = builder(*arguments[0], **arguments[1])
    if hasattr(env, "single_observation_space"):
        raise ConfigError(
            f"environment.builder returned a vector environment ({type(env).__name__}); distrl "
            "makes its own batches: return one environment"
        )
    if not (_is_gymnasium(env) or hasattr(env, "observation_spec")):
        raise ConfigError(
            "environment.builder must return a gymnasium.Env or a dm_env.Environment, got a "
            f"{type(env).__name__}, which has neither observation_space nor observation_spec"
        )
    return env


def _is_gymnasium(env: Any) -> bool:
    return hasattr(env, "observation_space")


def _attribute(env: Any, name: str, default: Any) -> Any:
    """Of the outermost wrapper that has it (gymnasium's wrappers do not pass attributes on)."""
    while not hasattr(env, name):
        if not hasattr(env, "env"):
            return default
        env = env.env
    return getattr(env, name)


def _any_action(spec: Nest) -> Nest:
    """A legal action: zeros, or what is nearest to them within the bounds."""

    def one(leaf: Any) -> np.ndarray:
        zeros = np.zeros(leaf.shape, leaf.dtype)
        if not isinstance(leaf, dm_specs.BoundedArray):
            return zeros
        return np.clip(zeros, leaf.minimum, leaf.maximum).astype(leaf.dtype)

    return jax.tree.map(one, spec, is_leaf=specs.is_spec)
