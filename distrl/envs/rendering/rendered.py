"""Makes environments of which pictures can be taken while they are stepped."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from distrl.envs.adapters.builder import call_builder, close_env
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.multi_agent.pettingzoo import PettingZooBuilder
from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Environment
from distrl.envs.python import PythonEnvironment
from distrl.envs.rendering import native
from distrl.envs.rendering.pictures import Picture, checked
from distrl.envs.suites import DmControlBuilder, GymBuilder
from distrl.errors import ConfigError
from distrl.types import TimeStep

PICTURES, WINDOW = "rgb_array", "human"
"""Modes: pictures for the caller, or a window of the environment's own; gymnasium's names."""

_FPS = 30.0
_HEIGHT, _WIDTH = 360, 480  # size of dm_control's pictures, within its models' buffer
_OWN = (GymBuilder, DmControlBuilder, PettingZooBuilder)


class Rendered(NamedTuple):
    """An environment with its pictures. It has at most one pool, of one environment.

    Attributes:
      environment: steps as the one that it is made from, unless `note` says otherwise.
      picture: returns the picture of the pool's environment; takes its newest time step,
        `[1, ...]`, or None with several agents.
      fps: returns how many steps take a second in the environment's own time.
      note: what the user should know about the pictures; may be empty.
    """

    environment: Environment
    picture: Callable[[TimeStep | None], Picture]
    fps: Callable[[], float]
    note: str = ""


def rendered(environment: Environment, mode: str = PICTURES) -> Rendered:
    """Returns an environment with pictures, or with a window.

    Call `choose_renderer` first where MuJoCo may draw.

    Args:
      environment: as an experiment has it.
      mode: see above.

    Raises:
      ConfigError: it has no pictures.
    """
    if isinstance(environment, (PythonEnvironment, MultiAgentEnvironment)):
        return _of_python(environment, mode)
    if not isinstance(environment, NativeEnvironment):
        raise ConfigError(
            f"{environment.name}: pictures are taken of environments by name and of those in a "
            f"PythonEnvironment or MultiAgentEnvironment, not of a {type(environment).__name__}"
        )
    if mode == PICTURES and environment.is_atari:
        colour, fps = native.WithColours(environment), native.atari_fps(environment)
        return Rendered(colour, colour.picture, lambda: fps)
    similar = native.in_python(environment)
    if similar is not None:
        drawn = _of_python(similar, mode)
        note = f"EnvPool does not draw: this is {native.describe(similar)}, of the same spaces"
        return drawn._replace(note=note)
    if mode == PICTURES and native.has_pictures(environment):
        note = "the pictures are the observations themselves"
        return Rendered(environment, native.observed_picture, lambda: _FPS, note)
    raise ConfigError(
        f"{environment.name}: EnvPool does not draw it, its observation is not an image, and no "
        "other suite that is installed has an environment with its spaces; name another one of "
        "the same spaces: --env=NAME"
    )


def _of_python(environment: PythonEnvironment | MultiAgentEnvironment, mode: str) -> Rendered:
    keeper = _Keeper(_with_mode(environment.builder, mode, environment.name), environment.name)
    pool = dataclasses.replace(
        environment.pool, kind="loop", pin_workers=False, on_fault="fail", step_timeout=math.inf
    )
    drawn = dataclasses.replace(environment, builder=keeper, pool=pool)
    repeat = environment.wrappers.action_repeat
    return Rendered(drawn, keeper.picture, lambda: keeper.fps() / repeat)


def _with_mode(builder: Callable[..., Any], mode: str, name: str) -> Callable[..., Any]:
    """Returns a builder of environments that draw. Args: name: the name in messages."""
    if isinstance(builder, (GymBuilder, PettingZooBuilder)):
        options = {**dict(builder.options), "render_mode": mode}
        return dataclasses.replace(builder, options=tuple(options.items()))
    takes_mode = "render_mode" in inspect.signature(builder).parameters
    if mode == WINDOW and not (takes_mode and _has_window(builder, name)):
        raise ConfigError(
            f"{name} has no window: for one its builder needs a parameter `render_mode`, and the "
            'environment "human" among its metadata["render_modes"]'
        )
    return functools.partial(builder, render_mode=mode) if takes_mode else builder


def _has_window(builder: Callable[..., Any], name: str) -> bool:
    """Returns whether a builder's environments declare a window; building one may raise."""
    env = call_builder(builder, 0)
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or ()
    close_env(env, name)
    return WINDOW in modes


class _Keeper:
    """A builder that keeps the newest environment: the one that the pool steps."""

    def __init__(self, builder: Callable[..., Any], name: str):
        self._builder, self._name = builder, name
        self._env: Any = None

    def __call__(self, seed: int) -> Any:
        """Returns a new environment."""
        self._env = call_builder(self._builder, seed)
        return self._env

    def picture(self, timestep: TimeStep | None) -> Picture:
        """See `Rendered`."""
        del timestep
        if not isinstance(self._builder, _OWN):  # the user's own exceptions are passed on
            return checked(self._draw(), self._name)
        try:
            return checked(self._draw(), self._name)
        except ConfigError:
            raise
        except Exception as error:  # any type: a display, a driver or a package is missing
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            hint = ""
            if any("mujoco" in base.__module__ for base in type(self._bare()).__mro__):
                hint = (
                    "; MuJoCo draws without a display by EGL (libegl1, MUJOCO_GL=egl) or by OSMesa "
                    "(libosmesa6, MUJOCO_GL=osmesa)"
                )
            raise ConfigError(f"{self._name} cannot be drawn: {line}{hint}") from error

    def fps(self) -> float:
        """See `Rendered`, without repeats of actions."""
        if hasattr(self._env, "control_timestep"):  # dm_control's
            return 1.0 / float(self._env.control_timestep())
        metadata = getattr(self._env, "metadata", None) or {}
        return float(metadata.get("render_fps") or _FPS)

    def _draw(self) -> Any:
        if hasattr(self._env, "render"):
            try:
                return self._env.render()
            except NotImplementedError:
                if not _inherits_render(self._bare()):
                    raise
        if hasattr(self._env, "physics"):
            return self._env.physics.render(_HEIGHT, _WIDTH, camera_id=0)
        raise ConfigError(
            f"{self._name} has no pictures: give {type(self._bare()).__name__} a method render() "
            "that returns one, uint8 [H, W, 3]"
        )

    def _bare(self) -> Any:
        return getattr(self._env, "unwrapped", self._env)


def _inherits_render(env: Any) -> bool:
    """Returns whether an environment only has the `render` of a library's base class."""
    module = getattr(getattr(type(env), "render", None), "__module__", None)
    return module in ("gymnasium.core", "gym.core", "pettingzoo.utils.env")
