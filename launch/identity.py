"""What a host runs: hosts of one program must run the same code with the same versions."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

PACKAGES = (
    "dm-launchpad", "dm-reverb", "jax", "jaxlib", "dm-haiku", "optax", "rlax", "numpy", "envpool",
    "tensorflow-cpu", "tensorflow", "cloudpickle",
)  # fmt: skip
_CODE = ("distrl", "programs", "launch")


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
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for package in _CODE:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
