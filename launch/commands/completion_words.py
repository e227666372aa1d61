"""The names that shells complete, in a file of the user's cache.

Run as a program it writes the file: it makes an experiment of each agent, which imports JAX.
"""

import contextlib
import fcntl
import re
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.paths import PACKAGE
from distrl.runtime.files import make_private_folder, read_dict, write_json
from distrl.runtime.home import cache_folder
from distrl.version import __version__

_ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")  # an agent has settings for one of them
_CHOICE = re.compile(r'"([a-z_]\w*)"')


def read() -> tuple[dict[str, Any], bool]:
    """Returns the names, and whether they are those of this code; see `collect`.

    A user without a home has no file, and no names: ({}, True).
    """
    try:
        words = read_dict(_file()) or {}
    except ConfigError:
        return {}, True
    return words, words.get("fingerprint") == fingerprint()


def fingerprint() -> str:
    """Returns what changes with the code: its version, and when a source was written last."""
    newest = max(path.stat().st_mtime_ns for path in _sources())
    return f"{__version__} {newest}"


def _sources() -> list[Path]:
    folders = (PACKAGE / "agents", PACKAGE / "envs", PACKAGE / "launch" / "cli", PACKAGE / "replay")
    return [path for folder in (PACKAGE, *folders) for path in folder.glob("*.py")]


def _file() -> Path:
    return cache_folder() / "completion.json"


def collect() -> dict[str, Any]:
    """Returns the names by kind.

    `flags`: of `distrl train`; `choices`: the values of some. `settings`: by agent, values to
    choose from by setting, "config.x", empty for others. `environments`: names.
    """
    from absl import flags

    from distrl import presets
    from distrl.envs.pools.envpool_library import envpool_names
    from distrl.errors import SpecError
    from distrl.launch.cli import config_flags, read_command

    settings: dict[str, dict[str, list[str]]] = {}
    for agent in sorted(presets.AGENTS):
        for environment in _ENVIRONMENTS:
            with contextlib.suppress(ConfigError, SpecError):
                values = flags.FlagValues()
                experiment = presets.experiment(environment, agent)
                config_flags.define_flags(experiment, values=values)
                settings[agent] = {name: choices(values[name]) for name in values}
                break
    of_train = [
        flag
        for module in read_command.FLAG_MODULES[:2]
        for flag in flags.FLAGS.get_flags_for_module(module)
    ]
    return {
        "fingerprint": fingerprint(),
        "flags": sorted(flag.name for flag in of_train),
        "choices": {flag.name: flag_values for flag in of_train if (flag_values := _values(flag))},
        "settings": settings,
        "environments": sorted({*envpool_names(), *_gymnasium_names()}),
    }


def _values(flag: Any) -> list[str]:
    """Returns the values that a flag of absl's may have, if they are few words."""
    return ["true", "false"] if flag.boolean else list(getattr(flag.parser, "enum_values", ()))


def choices(flag: Any) -> list[str]:
    """Returns the values that a setting may have, if these are few words: from its explanation."""
    kinds = flag.parser.syntactic_help.split(" or ")
    if "bool" in kinds:
        return ["True", "False"]
    if "str" not in kinds:
        return []
    default = [flag.default] if isinstance(flag.default, str) and flag.default else []
    return list(dict.fromkeys([*_CHOICE.findall(flag.help), *default]))


def _gymnasium_names() -> list[str]:
    import gymnasium

    return list(gymnasium.registry)


def main() -> None:
    """Writes the file, unless another process is about to."""
    path = _file()
    make_private_folder(path.parent)
    with open(path.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not read()[1]:
            from distrl.runtime.jax_import import import_jax

            import_jax()
            write_json(path, collect(), durable=False)


if __name__ == "__main__":
    main()
