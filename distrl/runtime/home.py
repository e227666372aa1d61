"""The user's home folder, which is unknown without HOME or an entry in /etc/passwd."""

import os
from pathlib import Path

from distrl.errors import ConfigError


def expanded(path: str | os.PathLike[str], name: str) -> str:
    """Returns a path with ~ or ~USER at its beginning replaced with the home folder.

    Args:
      path: the path, as a user has given it.
      name: name of the setting, for messages: "--run_dir".

    Raises:
      ConfigError: the home folder is not known.
    """
    text = os.path.expanduser(path)
    if text.startswith("~"):
        user = text.partition("/")[0]
        raise ConfigError(
            f"{name}: {text}: the home folder {user} is not known; give the path without {user}"
        )
    return text


def cache_folder() -> Path:
    """Returns distrl's folder in the user's cache. Raises ConfigError: there is no home folder."""
    return Path(expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "the cache"), "distrl")
