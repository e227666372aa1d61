"""A run's checkpoints: folders `RUN/checkpoints/000123/`, named by the learner's version.

A checkpoint is a folder of plain files with a `manifest.json`, which has the size and a checksum of
each of them, and is written last. The folder gets its name when all of it is on the disk: whatever
dies meanwhile, there is a whole checkpoint, or rubbish that the next write removes.

Arrays are NumPy's own files, so that any Python can read them.
"""

import json
import math
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from distrl.errors import ConfigError
from distrl.runtime.files import sync, write_json

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
FORMAT = 1
_UNFINISHED = ".new-"
_NAME = re.compile(r"(\d{6,})(?:-(\d+))?")
_CHUNK = 1 << 22  # bytes
# Seconds of rest after each file: for tests, that end programs in the middle of a checkpoint.
_REST = "DISTRL_CHECKPOINT_REST"


class Checkpoint(NamedTuple):
    """A whole checkpoint."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def read(cls, path: Path, only: Collection[str] | None = None) -> "Checkpoint":
        """The checkpoint in this folder.

        Args:
          path: of the folder.
          only: the files that must be whole; None: all of them.

        Raises:
          ConfigError: it is damaged, or none; the message says what is wrong.
        """
        path = Path(path)
        manifest = cls.read_manifest(path)
        for name in manifest["files"] if only is None else only:
            told = manifest["files"].get(name)
            if told is None:
                raise ConfigError(f"{path} has no {name}")
            try:
                found = _fingerprint(path / name)
            except OSError as error:
                raise ConfigError(f"{path} is damaged: {name}: {error.strerror}") from error
            if found != told:
                raise ConfigError(
                    f"{path} is damaged: {name} has {found['bytes']} bytes and the checksum "
                    f"{found['crc32']}, and was written with {told['bytes']} and {told['crc32']}"
                )
        return cls(path, manifest)

    @staticmethod
    def read_manifest(path: Path) -> dict[str, Any]:
        """The manifest alone, where the files were checked before. Raises as `read`."""
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            form, _ = manifest["format"], manifest["files"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{path} is no whole checkpoint: {MANIFEST}: {error}") from error
        if form != FORMAT:
            raise ConfigError(
                f"{path} has the format {form}; this program reads {FORMAT}: it was written by "
                f"distrl {manifest.get('programs', {}).get('distrl')}"
            )
        return manifest


class Checkpoints:
    """The checkpoints of a run folder. One process writes at a time."""

    def __init__(self, run_dir: Path | str, keep: int = 3):
        """Args:
        run_dir: of the run; is there.
        keep: the newest so many stay.
        """
        self.folder = Path(run_dir) / FOLDER
        self._keep = keep

    def paths(self) -> list[Path]:
        """Of all that are finished, in the order in which they were written; damaged ones too.

        That is not the order of their versions where a run went on from an older one.
        """
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: (_number(path), *_version(path)))

    def latest(
        self, say: Callable[[str], None] = print, only: Collection[str] | None = None
    ) -> Checkpoint | None:
        """The newest one that is whole; None: there is none.

        Args:
          say: takes a line for each that is damaged, and is passed over.
          only: as of `Checkpoint.read`.
        """
        paths = self.paths()
        unknown = [path for path in paths if not _number(path)]  # may be the newest
        for path in dict.fromkeys([*unknown, *reversed(paths)]):
            try:
                return Checkpoint.read(path, only)
            except ConfigError as error:
                say(f"distrl: checkpoint passed over: {error}")
        return None

    def best(self, only: Collection[str] | None = None) -> Checkpoint | None:
        """The one with the best mean return; None: no episode had ended in any of them.

        Raises:
          ConfigError: it is damaged.
        """
        path = self._best(self.paths())
        return None if path is None else Checkpoint.read(path, only)

    def write(self, version: int, fill: Callable[[Path], dict[str, Any]]) -> Path:
        """Writes a checkpoint, whole or not at all, and removes what is not kept.

        Args:
          version: of the learner's parameters.
          fill: writes its files to the folder given; returns what the manifest says of them.

        Returns:
          Its folder.

        Raises:
          OSError: the disk is full, say. What was written is removed.
        """
        self.folder.mkdir(exist_ok=True)
        for rubbish in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(rubbish)
        part = self.folder / f"{_UNFINISHED}{version:06d}"
        part.mkdir()
        try:
            manifest = {
                "format": FORMAT,
                "version": version,
                "number": max(map(_number, self.paths()), default=0) + 1,
                "time": time.time(),
                **fill(part),
            }
            manifest["files"] = _finish(part)
            write_json(part / MANIFEST, manifest)
            path = self._free_name(version)
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        sync(self.folder)
        self._remove_old()
        return path

    def _free_name(self, version: int) -> Path:
        """The version; with a number behind it where there is one of that version already."""
        same = [_version(path)[1] for path in self.paths() if _version(path)[0] == version]
        suffix = f"-{max(same) + 1}" if same else ""
        return self.folder / f"{version:06d}{suffix}"

    def _remove_old(self) -> None:
        paths = self.paths()
        best = self._best(paths)
        if best is not None:
            mark = {"checkpoint": best.name, "mean_return": _score(best)[1]}
            write_json(self.folder / "best.json", mark)
        for path in paths[: -self._keep]:
            if path != best:
                # Under another name first: a death in the middle leaves rubbish, and no damage.
                rubbish = self.folder / f"{_UNFINISHED}{path.name}"
                path.rename(rubbish)
                shutil.rmtree(rubbish)

    @staticmethod
    def _best(paths: list[Path]) -> Path | None:
        """The newest of those with the best score."""
        scored = [(_score(path), i) for i, path in enumerate(paths)]
        scored = [(score, i) for score, i in scored if math.isfinite(score[1])]
        return paths[max(scored)[1]] if scored else None


def _version(path: Path) -> tuple[int, int]:
    """The version that its name tells, and which one of that version it is."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def _glance(path: Path) -> dict[str, Any]:
    """The manifest, unchecked; empty where it is damaged, of which `latest` tells."""
    try:
        return dict(json.loads((path / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _number(path: Path) -> int:
    """Of how many the run has written; 0: not known."""
    return _glance(path).get("number", 0)


def _score(path: Path) -> tuple[bool, float]:
    """Whether the mean return is over the whole window of episodes, and the mean return."""
    manifest = _glance(path)
    mean = manifest.get("mean_return")
    if mean is None or math.isnan(mean):
        return False, -math.inf
    return bool(manifest.get("full_window")), float(mean)


def _fingerprint(path: Path) -> dict[str, Any]:
    checksum = size = 0
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            checksum = zlib.crc32(data, checksum)
            size += len(data)
    return {"bytes": size, "crc32": f"{checksum:08x}"}


def _finish(folder: Path) -> dict[str, Any]:
    """Brings all files to the disk; gives their fingerprints by name."""
    files = {}
    rest = float(os.environ.get(_REST, "0"))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = _fingerprint(path)
            time.sleep(rest)
        sync(path)
    return files
