"""Environments of EnvPool, by name, as settings."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs import minigrid
from distrl.envs.adapters import spaces
from distrl.envs.pool import Pool
from distrl.envs.pools.envpool_library import envpool, envpool_spec, info_keys, observation_keys
from distrl.envs.pools.native_pool import NativePool
from distrl.errors import ConfigError
from distrl.field_checks import check_flag, check_whole, did_you_mean, plain_numbers

# Options of EnvPool that are other settings, here or of the experiment.
_OWN_OPTIONS = {
    "num_envs": "actors.num_envs",
    "batch_size": "actors.wait_num",
    "seed": "seed",
    "env_seed": "seed",
    "num_threads": "environment.num_threads",
    "max_episode_steps": "environment.max_episode_steps",
}
# Values of a number in a dict: a direction or a row of a maze has no more, a count of steps has.
_MOST_DISCRETE = 64
_FOR_LEARNING = ("episodic_life", "reward_clip")  # Atari's options that change returns
# Part of Craftax's names: such an environment starts the next episode in the step that ends one, so
# that neither the true last observation nor a FIRST is seen.
_AUTO_RESET = "-AutoReset-"
_NO_LIMIT = 2**31 - 1  # EnvPool's max_episode_steps of environments without a limit
# Families (by the names of their specs) whose time limit does nothing but end the episode: with a
# limit one larger everything else is the same, bit by bit. In others it is part of the game
# (Procgen, ViZDoom), of the observation (Craftax) or of the reward (MiniGrid).
_PURE_LIMITS = (
    "Acrobot", "Atari", "BipedalWalker", "Blackjack", "CarRacing", "CartPole", "Catch",
    "CliffWalking", "Dmc", "FrozenLake", "Gym", "LunarLander", "MountainCar", "NChain",
    "Pendulum", "Taxi",
)  # fmt: skip
# Families with steps of some microseconds: handing them to a thread costs more.
_CHEAP = (
    "Acrobot", "Blackjack", "CartPole", "Catch", "CliffWalking", "FrozenLake", "MountainCar",
    "NChain", "Pendulum", "Taxi",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NativeEnvironment:
    """An environment of EnvPool, by name.

    Attributes:
      name: name in EnvPool's list: "CartPole-v1", "Pong-v5", "HalfCheetah-v4".
      num_threads: EnvPool's threads in each pool. None: the machine's cores divided by the number
        of actors, but one for environments whose steps cost next to nothing; 0: one for each core
        that the process may use.
      max_episode_steps: the time limit. None: the environment's own.
      clip_actions: clip continuous actions to their bounds before the environment sees them.
      options: pairs of EnvPool's own options for it: `(("stack_num", 1), ("frame_skip", 2))`.
      check_finite: NaN and infinite observations and rewards raise EnvironmentFault.
      cut: a shorter time limit that EnvPool does not know. Set by `with_time_limit`; no setting.
    """

    name: str
    num_threads: int | None = None
    max_episode_steps: int | None = None
    clip_actions: bool = True
    options: tuple[Any, ...] = ()
    check_finite: bool = True
    cut: int | None = dataclasses.field(default=None, metadata={"setting": False})

    def __post_init__(self) -> None:
        plain_numbers(self)
        if not isinstance(self.name, str):
            raise ConfigError(f"environment.name must be a name of EnvPool's, got {self.name!r}")
        names = envpool().list_all_envs()
        if self.name not in names:
            raise ConfigError(
                f"environment: EnvPool has no {self.name!r}{similar_names(self.name, names)}"
            )
        if _AUTO_RESET in self.name:
            raise ConfigError(
                f"environment: EnvPool's {self.name} shows the next episode in the last step of "
                f"one, and has no first steps; use {self.name.replace(_AUTO_RESET, '-')}"
            )
        check_whole(self, "num_threads", "environment", least=0, none=True)
        for name in ("max_episode_steps", "cut"):
            check_whole(self, name, "environment", none=True)
        for name in ("clip_actions", "check_finite"):
            check_flag(self, name, "environment")
        if not isinstance(self.options, tuple):
            raise ConfigError(
                f"environment.options must be a tuple of (name, value), got {self.options!r}"
            )
        for pair in self.options:
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise ConfigError(f"environment.options: expected (name, value), got {pair!r}")
            if pair[0] in _OWN_OPTIONS:
                raise ConfigError(
                    f"environment.options: {pair[0]} is set by the experiment's "
                    f"{_OWN_OPTIONS[pair[0]]}"
                )
        if self.envpool_spec().config.max_num_players != 1:
            raise ConfigError(
                f"environment: {self.name} is for several players; distrl takes environments of one"
            )

    def envpool_spec(self) -> Any:
        """Returns EnvPool's own spec.

        Raises:
          ConfigError: EnvPool refuses the options, or needs a library that is not installed.
        """
        try:
            return envpool_spec(self.name, self.options)
        except ImportError as error:  # Procgen's, Qt on Python 3.11
            text = str(error).splitlines()[0]
            raise ConfigError(f"environment: EnvPool cannot make {self.name}: {text}") from error
        except (TypeError, ValueError, RuntimeError) as error:  # EnvPool's checks raise all three
            text = str(error).splitlines()[0]
            refusal = f"environment: EnvPool's {self.name} refuses {dict(self.options)}: {text}"
            if "unexpected keyword" in text:
                known = envpool_spec(self.name, ()).config._fields
                near = {
                    m for o, _ in self.options for m in difflib.get_close_matches(str(o), known)
                }
                refusal += f"; near matches: {', '.join(sorted(near)) or ', '.join(known)}"
            raise ConfigError(refusal) from error

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec of one environment; 64 bits become 32, except in `env_info`."""
        raw = self.envpool_spec()
        state = raw.state_array_spec
        observation = {
            name: _observation(state[key], name) for name, key in observation_keys(state).items()
        }
        if type(raw).__name__.startswith("MiniGrid"):  # its spec says 0 to 255, as for brightness
            observation["image"] = minigrid.image_spec(observation["image"])
        action = list(raw.action_array_spec.values())[-1]
        env_info = {
            name: dm_specs.BoundedArray((), np.int8, -1, 1, name)
            if name == "success"
            else _array(state[key], state[key].dtype, name)
            for name, key in info_keys(state).items()
        }
        return specs.EnvironmentSpec(
            observation.get("", observation), _action(action), env_info=env_info or ()
        )

    @property
    def _limit_is_pure(self) -> bool:
        """Whether the time limit does nothing but end the episode."""
        family = type(self.envpool_spec()).__name__
        return family.startswith(_PURE_LIMITS) and not family.startswith("Gymnasium")

    @property
    def exact_limit(self) -> int | None:
        """The time limit if EnvPool's can be one larger (see `NativePool`); else None."""
        config = self.envpool_spec().config
        limit = self.max_episode_steps or config.max_episode_steps
        # With an episodic life, Atari continues a game that its own limit did not end.
        if not self._limit_is_pure or limit >= _NO_LIMIT or getattr(config, "episodic_life", False):
            return None
        return limit

    @property
    def episode_limit(self) -> int | None:
        """The most steps of an episode; None: there is no limit, or it is not known."""
        limit = self.max_episode_steps or self.envpool_spec().config.max_episode_steps
        # BabyAI's 0 means that each level computes its own limit.
        known = int(limit) if 0 < limit < _NO_LIMIT else None
        return min((n for n in (known, self.cut) if n is not None), default=None)

    def with_time_limit(self, max_episode_steps: int) -> "NativeEnvironment":
        """See `distrl.envs.time_limit`. Of the game nothing changes.

        MiniGrid's rewards, for example, fall with the share of EnvPool's limit that was needed.
        """
        limit = self.episode_limit
        if limit is not None and limit <= max_episode_steps:
            return self
        if self._limit_is_pure:
            return dataclasses.replace(self, max_episode_steps=max_episode_steps)
        return dataclasses.replace(self, cut=max_episode_steps)

    @property
    def is_atari(self) -> bool:
        """Whether it is a game of Atari, which shows stacks of frames and may have lives."""
        return type(self.envpool_spec()).__name__.startswith("Atari")

    @property
    def rewards_are_clean(self) -> bool:
        """Whether EnvPool is known to give reward 0 at FIRST, and not an arbitrary value."""
        family = type(self.envpool_spec()).__name__
        return family.startswith(_PURE_LIMITS) and not family.startswith(("Dmc", "Gymnasium"))

    @property
    def return_threshold(self) -> float | None:
        """The mean return at which the environment counts as solved; None if EnvPool has none."""
        return getattr(self.envpool_spec().config, "reward_threshold", None)

    def on_cores(self, cores: int) -> "NativeEnvironment":
        """See `distrl.envs.pool.on_cores`."""
        if self.num_threads is not None:
            return self
        is_cheap = type(self.envpool_spec()).__name__.startswith(_CHEAP)
        return dataclasses.replace(self, num_threads=1 if is_cheap else max(1, cores))

    def whole_games(self) -> "NativeEnvironment":
        """See `distrl.envs.whole_games`: Atari's, with unclipped rewards."""
        options = tuple(pair for pair in self.options if pair[0] not in _FOR_LEARNING)
        if options == self.options or not self.is_atari:
            return self
        return dataclasses.replace(self, options=options)

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `Environment`. EnvPool takes one seed: environment i has `seeds[0] + i`."""
        options, cut = dict(self.options), self.cut
        if self.max_episode_steps is not None:
            options["max_episode_steps"] = self.max_episode_steps
            if not self._limit_is_pure:  # some of these families have a limit of their own only
                cut = min(cut or self.max_episode_steps, self.max_episode_steps)
        return NativePool(
            self.name,
            self.spec(),
            num_envs,
            wait_num,
            seeds[0],
            options=options,
            exact_limit=self.exact_limit,
            cut=cut,
            num_threads=1 if self.num_threads is None else self.num_threads,
            clip_actions=self.clip_actions,
            clean_rewards=self.rewards_are_clean,
            check_finite=self.check_finite,
        )


def similar_names(name: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown environment; see `did_you_mean`."""
    usable = [each for each in names if _AUTO_RESET not in each]
    return did_you_mean(name, usable, most=3, cutoff=0.5)


def _array(spec: Any, dtype: Any, name: str) -> dm_specs.Array:
    return dm_specs.Array([n for n in spec.shape if n != -1], dtype, name)


def _observation(spec: Any, part: str) -> dm_specs.Array:
    """Returns an observation's spec: integers that EnvPool bounds are bounded, few are discrete.

    Args:
      spec: EnvPool's spec.
      part: its name in a dict; "": it is the observation, and a number is a state (Taxi's).
    """
    name = part or "observation"
    array = _array(spec, spaces.narrow(spec.dtype), name)
    if not np.issubdtype(array.dtype, np.integer):
        return array
    low, high, limits = int(np.min(spec.minimum)), int(np.max(spec.maximum)), np.iinfo(array.dtype)
    if low <= limits.min and high >= limits.max:
        return array
    most = _MOST_DISCRETE if part else limits.max
    if not array.shape and low == 0 and high < most:
        return dm_specs.DiscreteArray(high + 1, np.int32, name)
    return spaces.array_spec(array.shape, spec.dtype, low, high, name)


def _action(spec: Any) -> dm_specs.Array:
    """Returns EnvPool's action spec as dm_env's: discrete, or several integers or float32."""
    shape = [n for n in spec.shape if n != -1]
    if np.issubdtype(spec.dtype, np.integer) and not shape:
        if spec.minimum != 0:
            raise ConfigError(f"environment: a discrete action must start at 0, got {spec}")
        return dm_specs.DiscreteArray(int(spec.maximum) + 1, np.int32, "action")
    return spaces.array_spec(shape, spec.dtype, spec.minimum, spec.maximum, "action")
