"""The parts of an environment's info that are kept: success, and those that it declares."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.adapters import spaces
from distrl.errors import ConfigError, SpecError
from distrl.types import Nest

_SUCCESS_NAMES = ("is_success", "success")  # in gymnasium's info: its robotics', Meta-World's
_SUCCESS = dm_specs.BoundedArray((), np.int8, -1, 1, "success")  # whatever type is declared


def attribute(env: Any, name: str, default: Any) -> Any:
    """Returns the attribute of the outermost wrapper that has it.

    gymnasium's wrappers do not pass attributes on.
    """
    while not hasattr(env, name):
        if not hasattr(env, "env"):
            return default
        env = env.env
    return getattr(env, name)


class InfoReader:
    """Reads the declared parts of gymnasium's and PettingZoo's info dicts.

    Attributes:
      spec: a dict of specs by name; () if nothing is declared.
      has_seen_success: whether an info so far had `success`, whatever it said.
    """

    def __init__(self, info_space: Any, success: bool):
        """Args:
        info_space: a Dict space of names in the info; None: none.
        success: keep `success`, from the keys `success` or `is_success`.
        """
        self._success, self.has_seen_success = success, False
        self._readers: dict[str, tuple[spaces.Reader, Any]] = {}
        declared: dict[str, Any] = {"success": _SUCCESS} if success else {}
        if info_space is not None:
            named = spaces.space_spec(info_space, "info_space")
            if not isinstance(named, dict):
                raise ConfigError(f"info_space must be a Dict space, got {info_space!r}")
            for name, space in info_space.spaces.items():
                self._readers[name] = spaces.reader(space, name), specs.zeros(named[name])
            if "success" in named:
                named["success"] = _SUCCESS
                self._readers["success"] = _code("info's success"), np.int8(-1)
            declared.update(named)
        self.spec: Any = declared or ()

    def __call__(self, info: Mapping[str, Any], first: bool) -> Any:
        """Returns `env_info` as declared.

        Args:
          info: what the environment gave.
          first: at an episode's FIRST, where what is missing is 0: infos of resets are often empty.

        Raises:
          SpecError: the info is no mapping, a step's lacks a declared name, or `success` is no
            truth value or number.
        """
        if self.spec == ():
            return ()
        if type(info) is not dict and not isinstance(info, Mapping):
            where = "reset" if first else "step"
            raise SpecError(f"{where}: expected a dict as info, got a {type(info).__name__}")
        env_info: dict[str, Any] = {}
        if self._success:
            env_info["success"] = np.int8(-1)
            said = next((name for name in _SUCCESS_NAMES if name in info), None)
            if said is not None:
                self.has_seen_success = True
                env_info["success"] = specs.success_code(info[said], "info's success")
        for name, (read, empty) in self._readers.items():
            if name not in info:
                if not first:
                    raise SpecError(f"info: expected {name!r}, as info_space declares, at a step")
                env_info[name] = empty
            else:
                env_info[name] = read(info[name])
        return env_info


def dm_info_spec(declared: Mapping[str, Any], of: str = "") -> Any:
    """Returns a declared dict of dm_env specs with distrl's dtypes; () if it is empty.

    Args:
      declared: specs by name; or ().
      of: suffix that says whose specs they are, for messages, such as " of worker".
    """
    if not declared:
        return ()
    return {
        name: _SUCCESS if name == "success" else spaces.dm_spec(part, f"{name}{of}")
        for name, part in declared.items()
    }


def dm_info_reader(spec: Any, of: str = "") -> spaces.Reader | None:
    """Returns the conversion of infos with a spec of `dm_info_spec`; None if that is empty."""
    if not spec:
        return None
    read = spaces.dm_reader(spec, f"env_info{of}")
    if "success" not in spec:
        return read
    code = _code(f"env_info's success{of}")

    def read_with_success(info: Any) -> Nest:
        env_info = read(info)
        return {**env_info, "success": code(env_info["success"])}

    return read_with_success


def _code(where: str) -> spaces.Reader:
    """Returns the conversion of an environment's `success`, a truth value or a number, to int8."""
    return lambda said: specs.success_code(said, where)
