"""What a host runs: hosts of one program must run the same code with the same versions."""

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from distrl.launch.paths import PACKAGE

PACKAGES = (
    "dm-launchpad", "dm-reverb", "jax", "jaxlib", "dm-haiku", "optax", "rlax", "numpy", "envpool",
    "tensorflow-cpu", "tensorflow", "cloudpickle",
)  # fmt: skip


def identity() -> dict[str, str]:
    """Name to version of what must be equal; `code` is a hash of this project's own files."""
    found = {"python": platform.python_version(), "code": _code()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def difference(host: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """One line that says what differs on `host`, or None."""
    for name in sorted({*theirs, *ours}):
        its, own = theirs.get(name, "none"), ours.get(name, "none")
        if its == own:
            continue
        if name == "code":
            return (
                f"host {host} has other code of distrl (hash {its}; here {own}): give all hosts "
                "the same"
            )
        return f"host {host} has {name} {its}; here it is {own}: give all hosts the same versions"
    return None


def _code() -> str:
    digest = hashlib.sha256()
    # Not `rglob`, which passes over `distrl/launch` where that is a link, as in a checkout.
    for folder, subfolders, files in os.walk(PACKAGE, followlinks=True):
        subfolders.sort()
        for path in (Path(folder, name) for name in sorted(files) if name.endswith(".py")):
            digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
