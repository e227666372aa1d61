"""Access to the EnvPool library: its import, its environments, and the names in its states."""

import contextlib
import functools
import io
import warnings
from typing import Any

# Names in EnvPool's info that every environment has, and that describe the pool.
_COMMON_INFO = ("info:env_id", "info:players.env_id")
_SUCCESS = ("info:success", "info:is_success")


@functools.cache
def envpool() -> Any:
    """Returns EnvPool, imported on first use and without the notice that its old gym prints."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        import envpool as module
    return module


@functools.cache
def envpool_names() -> frozenset[str]:
    """Returns the environments that EnvPool lists; none if it is not installed."""
    try:
        return frozenset(envpool().list_all_envs())
    except ImportError:
        return frozenset()


@functools.cache
def envpool_spec(name: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """Returns EnvPool's spec of an environment with options."""
    with warnings.catch_warnings():  # float64 bounds cast to float32
        warnings.simplefilter("ignore")
        return envpool().make_spec(name, **dict(options))


def observation_keys(state: Any) -> dict[str, str]:
    """Returns the keys of an observation in EnvPool's state, by name; "" if it is one array.

    MiniGrid's mission, a text in characters, is left out, as it is from gymnasium's MiniGrid.
    """
    if "obs" in state:
        return {"": "obs"}
    keys = [key for key in state if key.startswith("obs:") and key != "obs:mission"]
    return {key.removeprefix("obs:"): key for key in keys}


def info_keys(state: Any) -> dict[str, str]:
    """Returns the keys of `env_info` in EnvPool's state, by name."""
    keys = [key for key in state if key.startswith("info:") and key not in _COMMON_INFO]
    return {"success" if key in _SUCCESS else key.removeprefix("info:"): key for key in keys}
