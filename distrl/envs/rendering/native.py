"""Pictures of EnvPool's environments, which EnvPool does not draw."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from distrl import specs
from distrl.envs import suites
from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Pool
from distrl.envs.python import PythonEnvironment, WrapperConfig
from distrl.envs.rendering.pictures import Picture, is_picture, newest_picture
from distrl.errors import ConfigError, EnvironmentFault
from distrl.types import Nest, TimeStep

_ATARI_HZ = 60.0
_COLOURS = {"gray_scale": False, "img_height": 210, "img_width": 160, "stack_num": 1}


def atari_fps(environment: NativeEnvironment) -> float:
    """Returns how many steps of a game take a second."""
    return _ATARI_HZ / environment.envpool_spec().config.frame_skip


class WithColours:
    """An Atari game beside its twin, whose observation is the emulator's whole picture.

    The twin differs in nothing else. With the same seed and the same actions it plays the same
    game, which each step checks.
    """

    def __init__(self, environment: NativeEnvironment):
        """Args: environment: the game."""
        self._environment = environment
        options = tuple({**dict(environment.options), **_COLOURS}.items())
        self._twin = dataclasses.replace(environment, options=options)
        self._pool: _TwoPools | None = None

    @property
    def name(self) -> str:
        """See `Environment`."""
        return self._environment.name

    def spec(self) -> specs.EnvironmentSpec:
        """See `Environment`."""
        return self._environment.spec()

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `Environment`."""
        pools = (e.make_pool(num_envs, wait_num, seeds) for e in (self._environment, self._twin))
        self._pool = _TwoPools(*pools)
        return self._pool

    def picture(self, timestep: TimeStep | None) -> Picture:
        """Returns the picture of the first environment of the pool."""
        del timestep
        assert self._pool is not None
        return newest_picture(self._pool.picture[0])


class _TwoPools(Pool):
    """Steps two pools with the same actions.

    Attributes:
      picture: the newest observation of the second.
    """

    picture: Any = None

    def __init__(self, pool: Pool, twin: Pool):
        # The two clip actions themselves, unless they are set not to.
        super().__init__(pool.name, pool.spec, pool.num_envs, pool.wait_num, clip_actions=False)
        self._pool, self._twin = pool, twin

    def _start(self) -> None:
        self._pool.start()
        self._twin.start()

    def _send(self, action: Nest, env_ids: Any) -> None:
        self._pool.send(action, env_ids)
        self._twin.send(action, env_ids)

    def _recv(self) -> tuple[Any, ...]:
        step, twin = self._pool.recv(), self._twin.recv()
        for name in ("step_type", "reward", "discount", "env_id"):
            if not np.array_equal(getattr(step, name), getattr(twin, name)):
                raise EnvironmentFault(
                    f"{self.name}: the environment that gives the pictures plays another game: "
                    f"{name} {getattr(twin, name)}, expected {getattr(step, name)}"
                )
        self.picture = twin.observation
        observation, info = step.observation, step.env_info
        return step.step_type, step.reward, step.discount, observation, step.env_id, info

    def close(self) -> None:
        """See `Pool`."""
        self._pool.close()
        self._twin.close()


def in_python(environment: NativeEnvironment) -> PythonEnvironment | None:
    """Returns another suite's environment with the same spaces; None: there is none.

    It is the one of the same name, else the newest version of that.

    Raises:
      ConfigError: it does not take an option that EnvPool's environment was given.
    """
    spec = environment.spec()
    for name in _similar(environment.name):
        wrappers = WrapperConfig(environment.clip_actions, environment.episode_limit)
        try:
            candidate = suites.make(name, wrappers=wrappers, **dict(environment.options))
            same = _shapes(candidate.spec()) == _shapes(spec)
        except ConfigError as error:
            if environment.options and "unexpected keyword" in str(error):
                raise
            continue  # its package is missing, or it needs MuJoCo's old binding
        if same:
            assert isinstance(candidate, PythonEnvironment)
            return candidate
    return None


def describe(environment: PythonEnvironment) -> str:
    """Returns a suite's name with the environment's."""
    suite = getattr(environment.builder, "suite", "dm_control")
    return f"{'gymnasium' if suite == 'gym' else suite}'s {environment.name}"


def _similar(name: str) -> list[str]:
    """Returns names of other suites' environments that may be the same, the likeliest first."""
    base, _, version = name.rpartition("-v")
    suite = suites.registered_by(name)
    try:
        others = [each for each in suites.names_in(suite) if each.rpartition("-v")[0] == base]
    except ConfigError:  # its package is not installed
        others = []
    others.sort(key=lambda each: (each != name, -int(each.rpartition("-v")[2])))
    names = [f"{suite}:{each}" for each in others]
    if not names and version == "1":
        wanted = base.lower()
        try:
            tasks = suites.names_in("dm_control")
        except ConfigError:
            return []
        names = [f"dm_control:{each}" for each in tasks if _squeezed(each) == wanted]
    return names


def _squeezed(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _shapes(spec: specs.EnvironmentSpec) -> Any:
    """Returns shapes and dtypes of observations and actions, and how many actions there are."""

    def one(leaf: Any) -> tuple[Any, ...]:
        return tuple(leaf.shape), np.dtype(leaf.dtype), getattr(leaf, "num_values", None)

    return [
        jax.tree.map(one, dict(nest) if isinstance(nest, dict) else nest, is_leaf=specs.is_spec)
        for nest in (spec.observation, spec.action)
    ]


def has_pictures(environment: NativeEnvironment) -> bool:
    """Returns whether an observation is, or has, a picture."""
    return any(map(is_picture, jax.tree.leaves(specs.struct(environment.spec().observation))))


def observed_picture(timestep: TimeStep | None) -> Picture:
    """Returns the picture in the first environment's observation."""
    assert timestep is not None
    return newest_picture(jax.tree.map(lambda leaf: leaf[0], timestep.observation))
