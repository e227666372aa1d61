"""PettingZoo's environments, and MPE2's, by name."""

import dataclasses
import difflib
import importlib
import importlib.util
import pkgutil
from typing import Any

from distrl.errors import ConfigError
from distrl.field_checks import plain_numbers
from distrl.runtime.traceback_text import one_line

PACKAGES = {"pettingzoo": "pettingzoo", "mpe2": "mpe2"}
"""What to install, by the prefix of a name."""


@dataclasses.dataclass(frozen=True)
class PettingZooBuilder:
    """Builds an environment of PettingZoo's: parallel if its agents act together, else turn-based.

    Attributes:
      module: the module that has it, e.g. "pettingzoo.classic.tictactoe_v3".
      options: pairs of arguments of its constructor.
    """

    module: str
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        plain_numbers(self)

    def __call__(self) -> Any:
        """Returns a new environment. Raises ConfigError: it lacks a package, or an option."""
        try:
            module = importlib.import_module(self.module)
            env = module.env(**dict(self.options))
            if not env.metadata.get("is_parallelizable", False):
                return env
            env.close()
            return module.parallel_env(**dict(self.options))
        except TypeError as error:  # an unknown option
            if "unexpected keyword" not in str(error):
                raise  # raised by the environment's own code
            raise ConfigError(f"environment: {self.module} cannot be made: {error}") from error
        except ImportError as error:
            text = one_line(error)
            if isinstance(error, ModuleNotFoundError):  # other errors say what is missing
                text += f": pip install {error.name}"
            raise ConfigError(f"environment: {self.module} cannot be made: {text}") from error


def find(name: str) -> str:
    """Returns the module of a name.

    Args:
      name: e.g. "pettingzoo:classic/tictactoe_v3" or "mpe2:simple_spread_v3". PettingZoo's own
        spelling of versions, "classic/tictactoe-v3", is understood as well.

    Raises:
      ConfigError: there is no such environment (with near matches), or the package is missing.
    """
    prefix, _, rest = name.partition(":")
    if importlib.util.find_spec(prefix) is None:
        raise ConfigError(
            f"environment: {name} needs the package {prefix}: pip install {PACKAGES[prefix]}"
        )
    wanted = rest.replace("-v", "_v").replace("/", ".")
    names = _names(prefix)
    if wanted in names:
        return f"{prefix}.{wanted}"
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if not near:  # a name without its family
        near = [n for n in names if n.rpartition(".")[2].startswith(wanted.rpartition("_v")[0])]
    spelled = [n.replace(".", "/") for n in near[:3]]
    hint = f"; did you mean {' or '.join(spelled)}?" if spelled else ""
    raise ConfigError(f"environment: {prefix} has no {rest!r}{hint}")


def _names(package: str) -> list[str]:
    """Returns the names of a package's environments, e.g. "classic.tictactoe_v3"."""
    module = importlib.import_module(package)
    names = []
    for info in pkgutil.iter_modules(module.__path__):
        if _is_environment(info.name):
            names.append(info.name)
        elif info.ispkg and not info.name.startswith("_"):
            spec = importlib.util.find_spec(f"{package}.{info.name}")
            paths = spec.submodule_search_locations if spec else None
            for inner in pkgutil.iter_modules(paths or []):
                if _is_environment(inner.name):
                    names.append(f"{info.name}.{inner.name}")
    return sorted(names)


def _is_environment(name: str) -> bool:
    base, _, version = name.rpartition("_v")
    return bool(base) and version.isdigit()
