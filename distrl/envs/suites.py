"""Environments of suites, by name: EnvPool, gymnasium, dm_control, MiniGrid, Atari, PettingZoo."""

import copy
import dataclasses
import functools
import importlib
import importlib.util
import math
import os
import re
import warnings
from typing import Any

from distrl.envs import minigrid
from distrl.envs.multi_agent import pettingzoo
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.native import NativeEnvironment, similar_names
from distrl.envs.pool import Environment
from distrl.envs.pools.envpool_library import envpool_names
from distrl.envs.python import PoolConfig, PythonEnvironment, WrapperConfig
from distrl.errors import ConfigError
from distrl.field_checks import plain_numbers

_NO_WRAPPERS, _ANY_POOL = WrapperConfig(), PoolConfig()

Options = tuple[tuple[str, Any], ...]

# By prefix: the packages to import, in order, and what to install if one is missing.
_PACKAGES = {
    "envpool": (("envpool",), "envpool"),
    "gym": (("gymnasium",), "gymnasium"),
    "dm_control": (("dm_control",), "dm_control"),
    "minigrid": (("gymnasium", "minigrid"), "minigrid"),
    "ale": (("gymnasium", "ale_py"), "ale-py"),
}
# Prefixes of the names that a package registers with gymnasium when it is imported.
_REGISTERED = {"minigrid": ("MiniGrid-", "BabyAI-"), "ale": ("ALE/",)}
_DM_CONTROL_NAME = re.compile(r"(?!.*-v\d+$)[a-z][A-Za-z0-9_]*-[a-z0-9_]+")


def make(
    name: str,
    *,
    wrappers: WrapperConfig = _NO_WRAPPERS,
    pool: PoolConfig = _ANY_POOL,
    num_threads: int | None = None,
    **options: Any,
) -> Environment:
    """Returns an environment by name.

    Args:
      name: E.g. "CartPole-v1": EnvPool's if it has the name, else from gymnasium's registry
        (MiniGrid's and Atari's names included), else "domain-task" of dm_control. A prefix selects
        the suite: "envpool:", "gym:", "dm_control:", "minigrid:" or "ale:". With several agents,
        "pettingzoo:classic/tictactoe_v3", "mpe2:simple_spread_v3".
      wrappers: its wrappers; `max_episode_steps=None` means the environment's own limit.
      pool: how several environments are stepped; not for EnvPool, which has its own pools.
      num_threads: EnvPool's threads in each pool; see `NativeEnvironment`.
      **options: the environment's own options, as its suite names them: `stack_num=1` (EnvPool's
        Atari), `size=8` (MiniGrid), `flat_observation=True` (dm_control). Hashable.

    Raises:
      ConfigError: there is no such environment (with near matches), a package is missing, or the
        environment cannot have these wrappers.
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"envs.make: expected an environment's name, got {name!r:.80}; a function or class "
            "that builds yours goes into distrl.envs.PythonEnvironment(...)"
        )
    pairs = tuple(sorted(options.items()))
    if name.partition(":")[0] in pettingzoo.PACKAGES:
        agents_builder = pettingzoo.PettingZooBuilder(pettingzoo.find(name), pairs)
        own_name = agents_builder.module.rpartition(".")[2]
        _refuse_threads(name, num_threads)
        return MultiAgentEnvironment(agents_builder, own_name, wrappers, pool)
    suite, own_name = _find(name)
    if suite == "envpool":
        return _native(own_name, wrappers, pool, num_threads, pairs)
    _refuse_threads(name, num_threads)
    builder: GymBuilder | DmControlBuilder
    if suite == "dm_control":
        domain, task = own_name.split("-", 1)
        builder = DmControlBuilder(domain, task, pairs)
        limit, threshold = builder.time_limit(), None
    else:
        builder = GymBuilder(suite, own_name, pairs)
        limit, threshold = builder.registered.max_episode_steps, builder.registered.reward_threshold
    if wrappers.max_episode_steps is None:
        wrappers = dataclasses.replace(wrappers, max_episode_steps=limit)
    return PythonEnvironment(builder, own_name, wrappers, pool, threshold)


@dataclasses.dataclass(frozen=True)
class GymBuilder:
    """Builds an environment of gymnasium's registry, without its time limit and its checks.

    Attributes:
      suite: prefix of the suite whose package registers it.
      name: name in the registry.
      options: pairs of arguments of the environment's constructor.
    """

    suite: str
    name: str
    options: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        plain_numbers(self)
        refused = {
            "max_episode_steps": "use environment.wrappers.max_episode_steps",
            "disable_env_checker": "distrl has checks of its own",
        }
        for name in refused.keys() & dict(self.options):
            raise ConfigError(f"environment: {self.name} takes no option {name}: {refused[name]}")

    @property
    def module(self) -> str:
        """The module that registers it when it is imported; "": the suite's package does."""
        return self.name.rpartition(":")[0]

    @property
    def registered(self) -> Any:
        """The environment's spec in gymnasium's registry."""
        gymnasium, (module, colon, name) = _import(self.suite), self.name.rpartition(":")
        if not colon:
            return gymnasium.spec(self.name)
        try:
            importlib.import_module(module)
            return gymnasium.spec(name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"environment: {self.name}: there is no module {error.name!r}; it is looked for on "
                "Python's path and, last, in the current folder, which other hosts need on "
                "PYTHONPATH"
            ) from error
        except gymnasium.error.Error as error:
            text = str(error).splitlines()[0]
            raise ConfigError(
                f"environment: {self.name}: {module} does not register it: {text}"
            ) from error

    def __call__(self) -> Any:
        """Returns a new environment."""
        gymnasium = _import(self.suite)
        spec = copy.deepcopy(self.registered)
        spec.order_enforce = False  # a pool calls them in order
        try:
            env = gymnasium.make(
                spec, max_episode_steps=-1, disable_env_checker=True, **dict(self.options)
            )
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            text = str(error).splitlines()[0]
            if isinstance(error, TypeError) and "unexpected keyword" not in text:
                raise  # raised by the environment's own code
            if isinstance(error, ModuleNotFoundError):
                text += f": pip install {error.name}"
            raise ConfigError(f"environment: {self.name} cannot be made: {text}") from error
        return minigrid.arrays_only(env) if self.suite == "minigrid" else env


@dataclasses.dataclass(frozen=True)
class DmControlBuilder:
    """Builds a task of dm_control's suite, without its time limit.

    Attributes:
      domain, task: names in the suite.
      options: pairs of arguments of dm_control's `control.Environment`.
    """

    domain: str
    task: str
    options: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        plain_numbers(self)

    def __call__(self, seed: int) -> Any:
        """Returns a new environment with this seed."""
        return self._load({"random": seed, "time_limit": math.inf})

    def time_limit(self) -> int | None:
        """Returns the steps of an episode in the suite; None: no limit."""
        limit = self._load({})._step_limit
        return math.ceil(limit) if math.isfinite(limit) else None

    def _load(self, task_options: dict[str, Any]) -> Any:
        try:
            return _dm_control_suite().load(
                self.domain, self.task, task_options, environment_kwargs=dict(self.options)
            )
        except TypeError as error:  # an unknown option
            name = f"{self.domain}-{self.task}"
            raise ConfigError(f"environment: {name} cannot be made: {error}") from error


def _find(name: str) -> tuple[str, str]:
    """Returns the suite of a name, and the name in it."""
    prefix, colon, rest = name.partition(":")
    if colon:
        if prefix not in _PACKAGES:
            known = ", ".join([*_PACKAGES, *pettingzoo.PACKAGES])
            raise ConfigError(
                f"environment: no suite {prefix!r}; there is {known}; for what the "
                f"module {prefix} registers with gymnasium write gym:{name}"
            )
        if prefix == "gym":
            prefix = registered_by(rest)
        names = names_in(prefix)
        if rest in names or (prefix == "gym" and ":" in rest):
            return prefix, rest
        raise ConfigError(f"environment: {prefix} has no {rest!r}{similar_names(rest, names)}")
    if name in envpool_names():
        return "envpool", name
    seen = sorted(envpool_names())
    suites = [registered_by(name)]
    if _DM_CONTROL_NAME.fullmatch(name):
        suites.append("dm_control")
    for suite in suites:
        if suite == "gym" and importlib.util.find_spec("gymnasium") is None:
            continue
        names = names_in(suite)
        if name in names:
            return suite, name
        seen += names
    raise ConfigError(f"environment: there is no {name!r}{similar_names(name, seen)}")


def _native(
    name: str, wrappers: WrapperConfig, pool: PoolConfig, num_threads: int | None, options: Options
) -> NativeEnvironment:
    instead = f"write gym:{name} for gymnasium's in a pool of Python environments"
    if name.startswith(_REGISTERED["minigrid"]):
        instead = instead.replace("gym:", "minigrid:")
    envpool_options = {"action_repeat": "frame_skip", "frame_stack": "stack_num"}
    environment = NativeEnvironment(
        name, num_threads, wrappers.max_episode_steps, wrappers.clip_actions, options
    )
    for setting, option in envpool_options.items():
        if getattr(wrappers, setting) > 1:
            if hasattr(environment.envpool_spec().config, "stack_num"):  # Atari, ViZDoom
                instead = f"set its own option {option}"
            raise ConfigError(
                f"environment: EnvPool's {name} takes no wrappers.{setting}; {instead}"
            )
    if wrappers.post_process is not None:
        raise ConfigError(
            f"environment: EnvPool's {name} takes no wrappers.post_process; {instead}"
        )
    if pool != _ANY_POOL:
        raise ConfigError(
            f"environment: EnvPool steps {name} in its own threads and takes no pool settings; "
            f"{instead}"
        )
    return environment


def _refuse_threads(name: str, num_threads: int | None) -> None:
    if num_threads is not None:
        raise ConfigError(
            f"environment: num_threads is EnvPool's, and {name} is stepped by a pool of Python "
            "environments; set pool.kind and pool.num_workers"
        )


def registered_by(name: str) -> str:
    """Returns the suite whose package registers a name with gymnasium."""
    return next((s for s, begin in _REGISTERED.items() if name.startswith(begin)), "gym")


def names_in(suite: str) -> list[str]:
    """Returns the names of a suite's environments. Args: suite: its prefix.

    Raises:
      ConfigError: its package is missing.
    """
    if suite == "envpool":
        _require(suite)
        return sorted(envpool_names())
    if suite == "dm_control":
        return [f"{domain}-{task}" for domain, task in _dm_control_suite().ALL_TASKS]
    names = list(_import(suite).registry)
    if suite in _REGISTERED:
        names = [name for name in names if name.startswith(_REGISTERED[suite])]
    return names


def _require(suite: str) -> None:
    packages, install = _PACKAGES[suite]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"environment: {suite} needs the package {package}: pip install {install}"
            )


@functools.cache
def _import(suite: str) -> Any:
    """Returns gymnasium with a suite's environments registered."""
    _require(suite)
    gymnasium = importlib.import_module("gymnasium")
    # For most versions of its environments gymnasium warns that there is a newer one.
    warnings.filterwarnings("ignore", message=".*is out of date", module="gymnasium")
    if suite == "minigrid":
        importlib.import_module("minigrid")
    if suite == "ale":
        ale_py = importlib.import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # a banner for each game
        gymnasium.register_envs(ale_py)
    return gymnasium


@functools.cache
def _dm_control_suite() -> Any:
    """Returns dm_control's suite, imported without looking for a display, which would warn."""
    _require("dm_control")
    unset = "MUJOCO_GL" not in os.environ
    if unset:
        os.environ["MUJOCO_GL"] = "disabled"
    try:
        return importlib.import_module("dm_control.suite")
    finally:
        if unset:
            del os.environ["MUJOCO_GL"]
