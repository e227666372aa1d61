"""The code and versions that a host runs, which must be the same on all hosts of a program."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from distrl.launch.paths import PACKAGE
from distrl.runtime.provenance import SUITES, versions


def identity() -> dict[str, str]:
    """Returns the versions that must be equal, by name; `code` is a hash of distrl's own files."""
    installed = versions()
    if older := installed.pop("box2d-py", None):  # another distribution of the same module
        installed["box2d"] = f"box2d-py {older}"
    installed.pop("distrl", None)  # a checkout need not be installed
    return {**installed, "code": _code_hash()}


def difference(host: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Returns one line about the first difference between two hosts' identities, or None.

    A package of environments that one host lacks does not count: who needs it says so there.

    Args:
      host: name of the other host.
      theirs: identity of the other host.
      ours: identity of this host.
    """
    for name in sorted({*theirs, *ours}):
        their_version, our_version = theirs.get(name, "none"), ours.get(name, "none")
        if their_version == our_version:
            continue
        if name in SUITES and "none" in (their_version, our_version):
            continue
        if name == "code":
            return (
                f"host {host} has different code of distrl (hash {their_version}; here "
                f"{our_version}): install the same code on all hosts"
            )
        return (
            f"host {host} has {name} {their_version}; here it is {our_version}: install the same "
            "versions on all hosts"
        )
    return None


def _code_hash() -> str:
    digest = hashlib.sha256()
    # Not `rglob`: it skips `distrl/launch` where that is a symbolic link, as in a checkout.
    for folder, subfolders, files in os.walk(PACKAGE, followlinks=True):
        subfolders.sort()
        for path in (Path(folder, name) for name in sorted(files) if name.endswith(".py")):
            digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
