"""A run's checkpoints: folders `RUN/checkpoints/000123/`, named by the learner's version.

A checkpoint is a folder of plain files with a `manifest.json`, which has the size and checksum of
each and is written last. The folder gets its final name once everything is on disk: whatever dies
in between, there is either a complete checkpoint or leftovers that the next write removes.

Arrays are NumPy files, which any Python can read.
"""

import json
import math
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distrl.errors import ConfigError
from distrl.runtime.files import sync, write_json

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
FORMAT = 1
# Files of a checkpoint.
PARAMS = "params.npz"
LEARNER = "learner.npz"  # the agent's learner state
TABLE = "replay"  # a folder
Files = Collection[str | tuple[str, ...]]  # see `Checkpoint.read`

_UNFINISHED = ".new-"
_NAME = re.compile(r"(\d{6,})(?:-(\d+))?")
_CHUNK = 1 << 22  # bytes
# What each write asks of every checkpoint, cached by path for the file with that inode, size and
# time: a run may keep thousands.
_GLANCED = ("number", "round", "evaluation_return", "mean_return", "full_window")
_glances: dict[Path, tuple[tuple[int, int, int], dict[str, Any]]] = {}
# Environment variable: seconds to pause after each file, for tests that kill a program while it
# writes a checkpoint.
_REST = "DISTRL_CHECKPOINT_REST"


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def read(cls, path: Path, only: Files | None = None) -> "Checkpoint":
        """Reads the checkpoint in a folder.

        Args:
          path: the folder.
          only: files that must be undamaged; None: all of them. For a tuple of names, the first
            that the checkpoint has.

        Raises:
          ConfigError: the checkpoint is damaged, or the folder has none.
        """
        path = Path(path)
        manifest = cls.read_manifest(path)
        for name in manifest["files"] if only is None else only:
            if isinstance(name, tuple):
                name = next((each for each in name if each in manifest["files"]), name[0])
            written = manifest["files"].get(name)
            if written is None:
                raise ConfigError(f"{path} has no {name}")
            try:
                now = _fingerprint(path / name)
            except OSError as error:
                raise ConfigError(f"{path} is damaged: {name}: {error.strerror}") from error
            if now != written:
                raise ConfigError(
                    f"{path} is damaged: {name} has {now['bytes']} bytes and the checksum "
                    f"{now['crc32']}, but was written with {written['bytes']} and "
                    f"{written['crc32']}"
                )
        return cls(path, manifest)

    @staticmethod
    def read_manifest(path: Path) -> dict[str, Any]:
        """Reads the manifest alone, for files that were checked already. Raises: see `read`."""
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            version, _ = manifest["format"], manifest["files"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{path} is not a complete checkpoint: {MANIFEST}: {error}"
            ) from error
        if version != FORMAT:
            raise ConfigError(
                f"{path} has format {version}, but this program reads {FORMAT}; it was written by "
                f"distrl {manifest.get('programs', {}).get('distrl')}"
            )
        return manifest


class Checkpoints:
    """The checkpoints of a run folder. One process writes at a time."""

    def __init__(self, run_dir: Path | str, keep: int = 3, others: Sequence[Path] = ()):
        """Args:
        run_dir: the run folder, or the folder of one of several tasks; it must exist.
        keep: number of newest checkpoints to keep; with several tasks, also those of as many of
          the newest generations that all tasks have saved, see `generations`.
        others: the folders of the other tasks.
        """
        self.folder = Path(run_dir) / FOLDER
        self._keep = keep
        self._others = [Checkpoints(other) for other in others]

    def paths(self) -> list[Path]:
        """Returns the folders of all finished checkpoints, oldest first; damaged ones too.

        That is not the order of their versions if a run was resumed from an older one.
        """
        if not self.folder.is_dir():
            return []
        paths = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(paths, key=lambda path: (number_of(path), *_version(path)))

    def latest(
        self,
        printer: Callable[[str], None] = print,
        only: Files | None = None,
        counts: Callable[[Path], bool] = lambda path: True,
    ) -> Checkpoint | None:
        """Returns the newest undamaged checkpoint; None if there is no checkpoint at all.

        Args:
          printer: prints a line for each damaged checkpoint that is skipped.
          only: see `Checkpoint.read`.
          counts: whether the checkpoint in a folder counts.

        Raises:
          ConfigError: all checkpoints are damaged; the message has what is wrong with each.
        """
        paths = [path for path in self.paths() if counts(path)]
        unknown = [path for path in paths if not number_of(path)]  # may be the newest
        errors: list[ConfigError] = []
        for path in dict.fromkeys([*unknown, *reversed(paths)]):
            try:
                checkpoint = Checkpoint.read(path, only)
            except ConfigError as error:
                errors.append(error)
                continue
            for skipped in errors:
                printer(f"distrl: checkpoint skipped: {skipped}")
            return checkpoint
        if not errors:
            return None
        raise ConfigError(
            f"none of the {len(errors)} checkpoints in {self.folder} can be loaded: "
            + "; ".join(map(str, errors))
        )

    def best(self, only: Files | None = None) -> Checkpoint | None:
        """Returns the checkpoint with the best score; None if none has a score.

        That is the return of the evaluation before it, if any checkpoint has one; otherwise the
        mean return of the episodes played in training.

        Raises:
          ConfigError: it is damaged.
        """
        path = self._best(self.paths())
        return None if path is None else Checkpoint.read(path, only)

    def write(self, version: int, fill: Callable[[Path], dict[str, Any]]) -> Path:
        """Writes a checkpoint atomically, and removes those that are not kept.

        Args:
          version: version of the learner's parameters.
          fill: writes the files to a given folder; returns entries of the manifest.

        Returns:
          The checkpoint's folder.

        Raises:
          OSError: for example because the disk is full. The unfinished checkpoint is removed.
        """
        self.folder.mkdir(exist_ok=True)
        for leftover in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover)
        paths = self.paths()
        part = self.folder / f"{_UNFINISHED}{version:06d}"
        part.mkdir()
        try:
            manifest = {
                "format": FORMAT,
                "version": version,
                "number": max(map(number_of, paths), default=0) + 1,
                "time": time.time(),
                **fill(part),
            }
            manifest["files"] = _finish(part)
            write_json(part / MANIFEST, manifest)
            path = self._free_name(version, paths)
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        sync(self.folder)
        self._remove_old()
        return path

    def _free_name(self, version: int, paths: Sequence[Path]) -> Path:
        """Returns the version as a name, with a suffix if it has a checkpoint already."""
        same = [_version(path)[1] for path in paths if _version(path)[0] == version]
        suffix = f"-{max(same) + 1}" if same else ""
        return self.folder / f"{version:06d}{suffix}"

    def _remove_old(self) -> None:
        paths = self.paths()
        best = self._best(paths)
        if best is not None:
            evaluated, _, score = _score(best)
            name = "evaluation_return" if evaluated else "mean_return"
            mark = {"checkpoint": best.name, name: score}
            write_json(self.folder / "best.json", mark)
        complete = set.intersection(
            *({generation_of(path) for path in each.paths()} for each in (self, *self._others))
        )
        newest = sorted(complete)[-self._keep :] if self._others else []
        for path in paths[: -self._keep]:
            if path != best and generation_of(path) not in newest:
                # Renamed first: dying in the middle leaves no damaged checkpoint.
                leftover = self.folder / f"{_UNFINISHED}{path.name}"
                path.rename(leftover)
                _glances.pop(path, None)
                shutil.rmtree(leftover)

    @staticmethod
    def _best(paths: list[Path]) -> Path | None:
        """Returns the newest of the checkpoints with the best score."""
        scored = [(_score(path), i) for i, path in enumerate(paths)]
        scored = [(score, i) for score, i in scored if math.isfinite(score[-1])]
        return paths[max(scored)[1]] if scored else None


def _version(path: Path) -> tuple[int, int]:
    """Returns the version in a checkpoint's name, and its number among those of that version."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def _glance(path: Path) -> dict[str, Any]:
    """Returns the manifest's `_GLANCED`, unchecked; empty if damaged, which `latest` reports."""
    file = path / MANIFEST
    try:
        now = file.stat()
        stamp = now.st_ino, now.st_size, now.st_mtime_ns
        before, facts = _glances.get(path, (None, {}))
        if stamp != before:
            manifest = dict(json.loads(file.read_text()))
            facts = {name: manifest[name] for name in _GLANCED if name in manifest}
            _glances[path] = stamp, facts
    except (OSError, ValueError, TypeError):
        return {}
    return facts


def number_of(path: Path) -> int:
    """Returns the checkpoint's number in the order of writing; 0: unknown."""
    return _glance(path).get("number", 0)


def generation_of(path: Path) -> int:
    """Returns the generation in which a checkpoint was saved; 0: unknown, or there were none."""
    return int(_glance(path).get("round", 0))


def _score(path: Path) -> tuple[bool, bool, float]:
    """Returns whether it was evaluated, whether its window of episodes is full, and the return."""
    manifest = _glance(path)
    evaluation = manifest.get("evaluation_return")
    if evaluation is not None and math.isfinite(evaluation):
        return True, True, float(evaluation)
    mean = manifest.get("mean_return")
    if mean is None or math.isnan(mean):
        return False, False, -math.inf
    return False, bool(manifest.get("full_window")), float(mean)


def _fingerprint(path: Path) -> dict[str, Any]:
    checksum = size = 0
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            checksum = zlib.crc32(data, checksum)
            size += len(data)
    return {"bytes": size, "crc32": f"{checksum:08x}"}


def _finish(folder: Path) -> dict[str, Any]:
    """Waits until all files are on disk; returns their fingerprints by name."""
    files = {}
    rest = float(os.environ.get(_REST, "0"))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = _fingerprint(path)
            if rest:  # libfaketime refuses to sleep for no time
                time.sleep(rest)
        sync(path)
    return files
