"""The lives of a run's nodes: each start of a node is a new life, numbered from 0.

Seeds and stream ids depend on the life, so no two lives of a node make the same experience.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.runtime.files import TASKS, read_dict, update_json

_FILE = "lives.json"
_LOST = "lives.json.lost-{}"  # the remains, for each time that it was damaged or missing
# Each manifest has the lives at its time.
_MANIFESTS = ("checkpoints/*/manifest.json", f"{TASKS}/*/checkpoints/*/manifest.json")
_OTHERS = "*"  # key in the file: lives of every node without an entry
# Lives that are skipped after a loss. Actors' streams have a life's lowest 16 bits: those of the
# first lives after a loss are far from 0, and from those after another loss.
_SKIPPED = (1 << 20) + 40_503


def next_life(
    run_dir: Path | str, node: str, *others: str, say: Callable[[str], None] = print
) -> int:
    """Returns the life that a node begins: how often it was started in this run folder before.

    It is written to disk before it is returned: whatever dies, no life is used twice. If the file
    is damaged, or missing in a run that has checkpoints, the number of lives is no longer known,
    and a million are skipped.

    Args:
      run_dir: the run folder, which must exist.
      node: the node's name, e.g. "actor/0".
      others: more nodes that begin the same life, which is then new to all of them: one process
        may have the parts of several nodes.
      say: prints a line.

    Raises:
      OSError: the file cannot be read or written; no life has begun.
    """
    path = Path(run_dir) / _FILE

    def count(lives: dict[str, Any]) -> int:
        before = lives.get(_OTHERS, 0)
        life = max(lives.get(name, before) for name in (node, *others))
        lives.update(dict.fromkeys((node, *others), life + 1))
        return life

    return update_json(path, count, lambda: _begin(path, say), _is_intact)


def lives(run_dir: Path | str) -> dict[str, int]:
    """Returns how often each node was started so far, by name; {} if that is not known."""
    known = read_dict(Path(run_dir) / _FILE, _is_intact) or {}
    return {name: life for name, life in known.items() if name != _OTHERS}


def _is_intact(lives: dict[str, Any]) -> bool:
    return all(type(life) is int and life >= 0 for life in lives.values())


def _begin(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Returns the lives of a run whose file is missing or damaged; with the file locked."""
    manifests = [manifest for pattern in _MANIFESTS for manifest in path.parent.glob(pattern)]
    saved = [read_dict(manifest) or {} for manifest in manifests]
    known = [max(manifest["lives"].values()) for manifest in saved if manifest.get("lives")]
    losses = 1
    while (lost := path.with_name(_LOST.format(losses))).exists():
        losses += 1
    damaged = path.exists()
    if not damaged and not known and losses == 1:
        return {}  # a new run
    if damaged:
        os.replace(path, lost)
        state = f"is damaged and is now {lost.name}"
    else:
        lost.touch()
        state = "is missing"
    first = (losses + max(known, default=0) // _SKIPPED) * _SKIPPED
    say(f"{path} {state}: the lives of nodes continue at {first}, above all earlier ones")
    return {_OTHERS: first}
