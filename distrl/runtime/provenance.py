"""Records which code a program runs: revisions of repositories, and versions of packages."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from distrl.runtime.working_folder import absolute

_GIT_S = 5.0  # for git to answer, on a slow file system
SUITES = (
    "ale-py", "box2d", "box2d-py", "dm-control", "minigrid", "mpe2", "mujoco", "pettingzoo",
)  # fmt: skip
"""Packages of environments, which a program may do without."""
_PACKAGES = (
    "distrl", "jax", "jaxlib", "numpy", "dm-haiku", "optax", "rlax", "dm-reverb", "dm-launchpad",
    "grpcio", "envpool", "gymnasium", "dm-env", *SUITES, "tensorflow", "tensorflow-cpu",
    "cloudpickle",
)  # fmt: skip


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Returns the versions of Python and of the packages that are installed, by name."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def provenance(experiment: str | None = None) -> dict[str, Any]:
    """Returns which code runs, as entries of `config.json`. Never fails.

    Args:
      experiment: path of the file of the user's experiment; None: there is none.

    Returns:
      `code`: a `revision` of distrl and one of the experiment's file, by name. `versions`: see
      `versions`.
    """
    code = {"distrl": revision(Path(__file__)) or _installed_from()}
    if experiment is not None:
        code["experiment"] = revision(absolute(experiment))
    return {"code": code, "versions": versions()}


def revision(file: Path) -> dict[str, Any] | None:
    """Returns the revision of the git repository that tracks a file.

    Args:
      file: its path. A file that is merely in a repository's folder, such as an installed package
        in a virtual environment, is not its code.

    Returns:
      "commit"; and "dirty": whether tracked files differ from it, None if that is unknown. None
      without git, a commit, or a repository that tracks the file.
    """
    path = file.resolve()
    if _git(path.parent, "ls-files", "--error-unmatch", "--", path.name) is None:
        return None
    commit = _git(path.parent, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _git(path.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns the text that git prints; None as in `git`."""
    output = git(folder, *arguments)
    return None if output is None else output.decode(errors="replace").strip()


def git(folder: Path, *arguments: str) -> bytes | None:
    """Returns what git prints; None if it fails, does not answer, or is not installed.

    Args:
      folder: where it looks for the repository.
      arguments: the command and its arguments.
    """
    # Set by a hook, or for another repository that the user works in.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _installed_from() -> dict[str, Any] | None:
    """Returns the commit from which pip has installed distrl; None: not from a repository."""
    try:
        text = metadata.distribution("distrl").read_text("direct_url.json")
        commit = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return None if commit is None else {"commit": commit, "dirty": False}
