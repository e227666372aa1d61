"""The code that a run was made with, kept in its folder: `RUN/code/1`, and another for each change.

A snapshot has distrl's revision and what differs from it, or its files if that is not known; and
every module of the user's own code that was imported when the run began.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.paths import PACKAGE, file_and_name
from distrl.runtime.files import as_utf8, read_dict, write_json
from distrl.runtime.provenance import git, revision
from distrl.runtime.working_folder import absolute
from distrl.saved.saved_agent import is_users, pickled
from distrl.version import __version__

FOLDER, ABOUT = "code", "snapshot.json"
PATCH, FILES, PICKLE = "distrl.patch", "distrl.zip", "experiment.pkl"
EXPERIMENT, MODULES = "experiment", "modules"  # folders

_FORMAT = 1
_MOST_BYTES = 10_000_000  # limit of a patch, and of all of the user's modules together
_SAME = ("format", "distrl", "packages", "experiment")  # what makes two snapshots different


def write_snapshot(
    run_dir: Path, experiment: Experiment, file: str | None, command: Sequence[str]
) -> Path:
    """Keeps the code of this process in a run's folder, unless its newest snapshot is the same.

    Args:
      run_dir: the run folder.
      experiment: what is trained; kept as a pickle where no flag names it.
      file: FILE.py[:NAME] of `--experiment`; "": flags name an environment; None: neither does.
      command: the command line.

    Returns:
      The snapshot's folder.

    Raises:
      OSError: it cannot be written.
      ConfigError: the newest cannot be read.
    """
    left_out: list[str] = []
    about: dict[str, Any] = {"format": _FORMAT, "packages": installed_packages()}
    about["distrl"], files = _own_code(left_out)
    path, name = file_and_name(file or "")
    folder = absolute(path).parent if path else None
    for key, data in _users_modules(folder, left_out):
        files[key] = data
    about["experiment"] = None
    if path:
        key = f"{EXPERIMENT}/{Path(path).name}"
        about["experiment"] = {"file": key, "name": name, "from": str(absolute(path))}
    elif file is None:
        try:
            files[PICKLE] = pickled(experiment)
        except Exception as error:  # the user's own objects may raise anything
            left_out.append(f"{PICKLE}: {type(error).__name__}: {error}".splitlines()[0])
    digest = hashlib.sha256(json.dumps([about[key] for key in _SAME]).encode())
    for key in sorted(files):
        digest.update(f"{as_utf8(key)}\0{len(files[key])}\0".encode() + files[key])
    about["digest"] = digest.hexdigest()
    newest = newest_snapshot(run_dir)
    if newest is not None and read_about(newest).get("digest") == about["digest"]:
        return newest
    about |= {"command": list(command), "time": time.time(), "left_out": left_out}
    target = run_dir / FOLDER / str(1 if newest is None else int(newest.name) + 1)
    for key, data in files.items():
        (target / key).parent.mkdir(parents=True, exist_ok=True)
        (target / key).write_bytes(data)
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / ABOUT, about, durable=False)  # last: it is complete
    return target


def newest_snapshot(run_dir: Path) -> Path | None:
    """Returns the folder of a run's newest snapshot; None if it has none.

    Raises ConfigError: this user may not read it.
    """
    folder = run_dir / FOLDER
    with _refusing():
        folders = folder.iterdir() if folder.is_dir() else ()
        complete = [each for each in folders if each.name.isdecimal() and (each / ABOUT).exists()]
    return max(complete, key=lambda each: int(each.name), default=None)


def read_about(snapshot: Path) -> dict[str, Any]:
    """Returns what `snapshot.json` has; empty if it is damaged.

    Raises ConfigError: this user may not read it.
    """
    with _refusing():
        return read_dict(snapshot / ABOUT) or {}


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raises ConfigError where a file is another user's, and not to be read."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename}: {error.strerror}; its owner lets a group read a run by "
            "chmod -R g+rX RUN"
        ) from error


def pickled_experiment(run_dir: Path) -> Path | None:
    """Returns the file of the experiment that no flag named; None if there is none."""
    snapshot = newest_snapshot(run_dir)
    path = snapshot / PICKLE if snapshot is not None else None
    return path if path is not None and path.exists() else None


def installed_packages() -> dict[str, str]:
    """Returns the version of every package that this process could import, and of Python."""
    versions = {"python": sys.version.split()[0], "distrl": __version__}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):  # a metadata reader takes some hundred times as long
                package, _, version = name.removesuffix(".dist-info").partition("-")
                versions.setdefault(package, version)
    return dict(sorted(versions.items()))


def home() -> Path:
    """Returns the folder that the package is in, which itself may be a link."""
    return PACKAGE.resolve().parent


def own_folders() -> list[str]:
    """Returns the folders of distrl's code, relative to the folder that they are in."""
    folders = [PACKAGE, *((PACKAGE / name).resolve() for name in ("launch", "programs"))]
    names = [folder.relative_to(home()) for folder in map(Path.resolve, folders)]
    return [name.as_posix() for name in names if PACKAGE.name not in name.parts[:-1]]


def _own_code(left_out: list[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns what is known of distrl's code, and the files that say the rest."""
    known = revision(PACKAGE / "__init__.py")
    about: dict[str, Any] = {"version": __version__, "commit": None, "repository": None}
    patch = untracked = None
    if known is not None:
        folders = own_folders()
        patch = git(home(), "diff", "--binary", "--relative", "HEAD", "--", *folders)
        untracked = git(home(), "ls-files", "-z", "--others", "--exclude-standard", "--", *folders)
    if known is None or patch is None or untracked is None:
        return about, {FILES: _zipped(_package_files())}
    about |= {"commit": known["commit"], "repository": str(home())}
    files = {}
    if len(patch) > _MOST_BYTES:
        left_out.append(f"{PATCH}: {len(patch)} bytes, at most {_MOST_BYTES}")
    elif patch:
        files[PATCH] = patch
    names = [name for name in untracked.decode().split("\0") if name.endswith(".py")]
    if names:
        files[FILES] = _zipped((name, home() / name) for name in names)
    return about, files


def _package_files() -> Iterator[tuple[str, Path]]:
    # Not `rglob`: it skips `distrl/launch` where that is a symbolic link, as in a checkout.
    for folder, subfolders, names in os.walk(PACKAGE, followlinks=True):
        subfolders.sort()
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            yield path.relative_to(PACKAGE.parent).as_posix(), path


def _zipped(files: Iterator[tuple[str, Path]]) -> bytes:
    """Returns a zip archive, which is the same for the same files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files:
            entry = zipfile.ZipInfo(name)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _users_modules(folder: Path | None, left_out: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yields the user's modules: those in the experiment's folder by path, others by name."""
    total = 0
    for module in sorted(filter(is_users, list(sys.modules.values())), key=lambda m: m.__name__):
        path = Path(module.__file__ or "").absolute()
        key = _key(module, path, folder)
        try:
            if path.suffix != ".py":
                raise OSError(f"{path.suffix or 'it'} is no Python source")
            data = path.read_bytes()
            total += len(data)
            if total > _MOST_BYTES:
                raise OSError(f"more than {_MOST_BYTES} bytes in all")
        except OSError as error:
            left_out.append(f"{path}: {error}")
            continue
        yield key, data


def _key(module: ModuleType, path: Path, folder: Path | None) -> str:
    if folder is not None and path.is_relative_to(folder):
        return f"{EXPERIMENT}/{path.relative_to(folder).as_posix()}"
    parts = module.__name__.replace(".", "/")
    return f"{MODULES}/{parts}/__init__.py" if path.stem == "__init__" else f"{MODULES}/{parts}.py"
