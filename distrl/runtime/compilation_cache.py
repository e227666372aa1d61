"""Keeps compiled functions on disk, for the next run and for all processes of a run."""

import contextlib
import hashlib
import os
import platform
import stat
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.runtime import home
from distrl.runtime.files import write_private
from distrl.runtime.jax_import import import_jax

VARIABLE = "DISTRL_COMPILATION_CACHE"
"""Environment variable: another folder, or `off`."""
_MAX_BYTES = 1 << 30
_OFF = ("off", "0", "false", "no")
# JAX's settings, unless the user sets them: by default it keeps only what took a second to compile.
_SETTINGS = {
    "persistent_cache_min_compile_time_secs": 0,
    "persistent_cache_min_entry_size_bytes": -1,
}


def use_compilation_cache() -> None:
    """Imports JAX and makes it keep what it compiles in the user's cache folder.

    `JAX_COMPILATION_CACHE_DIR` names another folder, and `DISTRL_COMPILATION_CACHE` too, or `off`.
    Processes may share a folder: entries appear as a whole. Where the folder cannot be used, or
    others may write to it, there is no cache: whoever can write to it can run code here.
    """
    import_jax()
    import jax

    config: Any = jax.config  # its settings are not declared
    _write_entries_as_a_whole()
    if config.jax_compilation_cache_dir is not None:
        return
    folder = _folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        prune(folder, _MAX_BYTES)
    config.update("jax_compilation_cache_dir", str(folder))
    for name, value in _SETTINGS.items():
        if f"JAX_{name.upper()}" not in os.environ:
            config.update(f"jax_{name}", value)


def share_by_threads(count: str) -> None:
    """Makes this process share entries only with those that use as many threads on the CPU.

    XLA divides loops among the threads of the process that compiles them. Elsewhere such an entry
    would be right but slow: in one thread of two, an update of TD3 takes 5 ms instead of 3.

    Args:
      count: threads of JAX's client for the CPU.
    """
    from jax._src import cache_key

    cache_key.custom_hook = lambda: f"{count} threads"


def _folder() -> Path | None:
    """Returns the folder, which exists; None: there is none to use."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in _OFF:
        return None
    try:
        top = Path(home.expanded(chosen, VARIABLE)) if chosen else home.cache_folder() / "jax"
        folder = top.absolute() / _machine()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = folder.stat()
    except (OSError, ConfigError):  # a read-only file system, or no home
        return None
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    return folder if os.access(folder, os.W_OK) else None


def _machine(cpus: Path = Path("/proc/cpuinfo")) -> str:
    """Returns a name for machines that can run each other's code: others may share the home."""
    import jaxlib

    lines = {f"jaxlib {jaxlib.__version__}", platform.machine()}
    with contextlib.suppress(OSError):
        first = cpus.read_text().partition("\n\n")[0].splitlines()
        lines.update(line for line in first if line.startswith(("flags", "Features", "model name")))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def prune(folder: Path, max_bytes: int) -> None:
    """Removes the oldest files of a folder, until it has at most `max_bytes` bytes."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process prunes it too
                if entry.is_file(follow_symlinks=False):
                    info = entry.stat(follow_symlinks=False)
                    files.append((info.st_mtime, info.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        Path(path).unlink(missing_ok=True)
        total -= size


def _write_entries_as_a_whole() -> None:
    """Makes JAX (0.5.3) replace files: it writes them in place, where others may read a part.

    A damaged entry, which JAX warns of and compiles again, is replaced as well.
    """
    from jax._src import lru_cache

    cache: Any = lru_cache.LRUCache
    in_place = cache.put
    if in_place.__module__ == __name__:
        return

    def put_whole(self: Any, key: str, value: bytes) -> None:
        if self.eviction_enabled or "://" in str(self.path):  # it has a lock, or is not local
            in_place(self, key, value)
        else:
            write_private(Path(self.path) / f"{key}-cache", value)

    cache.put = put_whole
