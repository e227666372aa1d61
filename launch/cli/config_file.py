"""`--config_file`: flags and settings from a file, such as the `config.json` of a run."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.cli.config_flags import PREFIX, describe
from distrl.launch.cli.load_experiment import apply_settings
from distrl.launch.cli.train_flags import SHORT, joined_flags, without_flags
from distrl.launch.run_dir.config_dict import as_tuples, plain
from distrl.launch.run_dir.config_diff import flat
from distrl.runtime.working_folder import absolute

_NOT_AGAIN = ("config_file", "run_dir")  # flags of a run's command that are not taken over
_SETTINGS = "config"  # key of the settings in a file that a user writes
_SIZED = re.compile(r"config\.(policies\.\w+\.)?(learner|replay)\.")  # follow the actors


class ConfigFile(NamedTuple):
    """What a file says.

    Attributes:
      words: flags, as on a command line.
      settings: values of settings by the names of their flags, "config.learner.batch_size".
      of_run: whether it is a run's, whose settings of other versions are left out.
    """

    words: list[str]
    settings: dict[str, Any]
    of_run: bool

    def setting_words(
        self, experiment: Experiment, values: flags.FlagValues, of_line: Sequence[str]
    ) -> list[str]:
        """Returns the settings as flags, which must be defined.

        Most settings of a run are defaults that nobody chose: they are left out where nothing
        changes them. Sizes that followed the run's actors are left out, too, where the command line
        has other actors.

        Args:
          experiment: the experiment whose settings the flags are.
          values: the defined flags.
          of_line: flags of the command line.

        Raises:
          ConfigError: there is no such setting.
        """
        words = []
        given = joined_flags(of_line, values)
        has_actors = any(word.startswith("--config.actors.") for word in given)
        follow = self._not_set(experiment, values) if self.of_run and has_actors else set()
        for name, value in self.settings.items():
            if name not in values:
                if self.of_run:
                    continue  # a function, or what only an older version had
                raise ConfigError(
                    f"--config_file: there is no setting {name.partition('.')[2]!r}; "
                    "`distrl train --help` lists all"
                )
            as_default = self.of_run and (has_actors or not _SIZED.match(name))
            if name in follow or (as_default and _is_default(name, value, values)):
                continue
            words.append(_word(name, value))
        return words

    def _not_set(self, experiment: Experiment, values: flags.FlagValues) -> set[str]:
        """Returns the settings of learner and table that are the defaults for a run's actors.

        Args: see `setting_words`.
        """
        known = {name: value for name, value in self.settings.items() if name in values}
        given = {name: value for name, value in known.items() if not _SIZED.match(name)}
        not_set = set[str]()
        for part in ("learner", "replay"):  # whose defaults suit the learner, too
            scratch = copy.deepcopy(values)
            words = [
                _word(name, value)
                for name, value in given.items()
                if not _is_default(name, value, values)
            ]
            scratch(["distrl train", *words])
            defaults = describe(apply_settings(experiment, scratch), PREFIX)
            for name, value in known.items():
                match = _SIZED.match(name)
                if match is None or match[2] != part:
                    continue
                if name in defaults and as_tuples(plain(defaults[name].value)) == as_tuples(value):
                    not_set.add(name)
                else:
                    given[name] = value
        return not_set


def read(path: str, values: flags.FlagValues) -> ConfigFile:
    """Reads a file: a run's `config.json`, or flags by name in JSON or YAML with `config` in it.

    Args:
      path: the file.
      values: the defined flags.

    Raises:
      ConfigError: it cannot be read, or names a flag or a setting that does not exist.
    """
    data = _load(Path(path))
    if "experiment" in data and isinstance(data["experiment"], Mapping):
        settings = flat(data["experiment"], "config.")
        # Its settings have what these flags came to, one form of which overrode the other.
        both = [name for pair in SHORT.items() if pair[1] in settings for name in pair]
        words = without_flags(list(data.get("command", []))[1:], (*_NOT_AGAIN, *both), values)
        words += [] if "topology" not in data else [_word("topology", data["topology"])]
        return ConfigFile(words, settings, True)
    settings = data.pop(_SETTINGS, None) or {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"--config_file: {path}: `config` must have settings by name")
    for name in data:
        if name not in values or name in _NOT_AGAIN:
            raise ConfigError(
                f"--config_file: {path}: {name!r} is not a flag that a file may set; "
                "settings of the experiment go under `config`"
            )
    words = [_flag(name, value) for name, value in data.items() if value is not None]
    return ConfigFile(words, flat(settings, "config."), False)


def _load(path: Path) -> dict[str, Any]:
    try:
        text = absolute(path).read_text("utf-8")
        if path.suffix in (".yaml", ".yml"):
            import yaml

            data = yaml.safe_load(text)
        else:
            data = json.loads(text)
    except OSError as error:
        raise ConfigError(f"--config_file: {path}: {error.strerror}") from error
    except ImportError as error:
        raise ConfigError(
            f"--config_file: {path} needs PyYAML (pip install PyYAML); JSON needs nothing"
        ) from error
    except Exception as error:  # the parsers' errors have no common base
        raise ConfigError(f"--config_file: {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"--config_file: {path} must have names and values")
    return data


def _flag(name: str, value: Any) -> str:
    """Returns a flag as a word, with a list as absl takes one."""
    return _word(name, ",".join(map(str, value)) if isinstance(value, list) else value)


def _word(name: str, value: Any) -> str:
    value = as_tuples(value)
    return f"--{name}={value if isinstance(value, str) else repr(value)}"


def _is_default(name: str, value: Any, values: flags.FlagValues) -> bool:
    """Returns whether a setting has the value that it has without its flag."""
    return bool(as_tuples(plain(values[name].default)) == as_tuples(value))
