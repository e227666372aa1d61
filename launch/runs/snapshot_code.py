"""A command with the code that a run was made with, instead of today's."""

import io
import os
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.paths import PACKAGE, python_command
from distrl.launch.run_dir.snapshot import (
    FILES,
    MODULES,
    PATCH,
    home,
    installed_packages,
    newest_snapshot,
    own_folders,
    read_about,
)
from distrl.runtime.provenance import git

_MAIN = "distrl.launch.main"
_APPLY_S = 60.0
_NAMED_PACKAGES = 5  # in a line


def run_with_snapshot(command: str, run: str, arguments: list[str]) -> int:
    """Runs a command about a run with the run's own code, in a separate process.

    That code is from the user, or from whoever wrote the run folder: to ask for it is to trust it.

    Args:
      command: its name.
      run: the run folder.
      arguments: the command's own.

    Returns:
      Its exit status.

    Raises:
      ConfigError: there is no snapshot, or its code cannot be had here.
    """
    snapshot = newest_snapshot(Path(run))
    about = {} if snapshot is None else read_about(snapshot)
    if snapshot is None or not about:
        raise ConfigError(
            f"{command}: {run} has no snapshot of its code: it is of an older version, or was "
            "trained with --snapshot=false"
        )
    words = [word for word in _without(arguments, "--code") if word != "--trust"]
    with tempfile.TemporaryDirectory(prefix="distrl-snapshot-") as name:
        folder = Path(name)
        what = _write_code(snapshot, about, folder)
        experiment = about.get("experiment")
        if experiment and not any(word.startswith(("--experiment", "--env")) for word in words):
            file = str(snapshot.absolute() / experiment["file"])
            words.append(f"--experiment={file}" + (":" + experiment["name"]).rstrip(":"))
        print(f"distrl: with the code of {snapshot}: {what}", flush=True)
        for line in _differences(about.get("packages") or {}):
            print(f"distrl: {line}", flush=True)
        paths = [str(folder), str(snapshot.absolute() / MODULES), os.environ.get("PYTHONPATH")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # the snapshot stays as it is
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's
        try:
            done = subprocess.run(
                [*python_command(_MAIN, folder=folder), command, *words, "--trust"],
                env=env,
                check=False,
            )
        finally:
            signal.signal(signal.SIGINT, before)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _without(words: list[str], flag: str) -> list[str]:
    """Returns words without a flag and its value."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == flag:
            next(rest, None)
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


def _write_code(snapshot: Path, about: dict[str, Any], folder: Path) -> str:
    """Writes the snapshot's distrl to a folder; returns what it is, for the user."""
    source = about["distrl"]
    commit = source.get("commit")
    changes = []
    if commit is not None:
        _write_revision(commit, source.get("repository"), folder)
        if (snapshot / PATCH).exists():
            _apply(snapshot / PATCH, folder)
            changes.append("changes")
    if (snapshot / FILES).exists():
        with zipfile.ZipFile(snapshot / FILES) as archive:
            archive.extractall(folder)
        changes += ["new files"] if commit is not None else []
    if any(line.startswith(PATCH) for line in about.get("left_out", ())):
        raise ConfigError(f"{snapshot} lacks the changes to revision {commit}: they were too large")
    if not (folder / PACKAGE.name / "__init__.py").exists():
        raise ConfigError(f"{snapshot} has no code of distrl: it is damaged")
    what = f"distrl {source.get('version')}"
    if commit is not None:
        what += f", revision {commit[:10]}" + (f" with {' and '.join(changes)}" if changes else "")
    return what


def _write_revision(commit: str, repository: str | None, folder: Path) -> None:
    """Writes distrl's folders, as they are in a revision, from a repository that has it."""
    for place in dict.fromkeys([repository, str(home())]):
        if place is None or not Path(place).is_dir():
            continue
        names = git(Path(place), "ls-tree", "--name-only", commit, "--", *own_folders())
        if not names:
            continue
        data = git(Path(place), "archive", "--format=tar", commit, "--", *names.decode().split())
        if data is not None:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(folder)
            return
    raise ConfigError(
        f"revision {commit} of distrl is not in a repository here (it was made in {repository}): "
        "fetch it there, or in the one that distrl is run from"
    )


def _apply(patch: Path, folder: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch.absolute())],
        cwd=folder,
        env={**env, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        timeout=_APPLY_S,
        check=False,
    )
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise ConfigError(f"{patch} does not apply: {text}")


def _differences(then: dict[str, str]) -> list[str]:
    """Returns a line about packages whose version is another one now; empty if there are none."""
    now = installed_packages()
    changed = [
        f"{name} {version} (now {now.get(name, 'missing')})"
        for name, version in then.items()
        if now.get(name) != version and name != "distrl"
    ]
    if not changed:
        return []
    more = len(changed) - _NAMED_PACKAGES
    text = ", ".join(changed[:_NAMED_PACKAGES]) + (f" and {more} more" if more > 0 else "")
    return [f"it was made with other versions of packages: {text}"]
