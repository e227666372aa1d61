"""The user's home folder, which is not known without HOME and an entry in /etc/passwd."""

import os
from pathlib import Path

from distrl.errors import ConfigError


def expanded(path: str | os.PathLike[str], name: str) -> str:
    """Returns a path with the home folder in the place of ~ or ~USER at its beginning.

    Args:
      path: as a user has given it.
      name: what it is for, for messages: "--run_dir".

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
