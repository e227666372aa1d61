"""The lives of a run's nodes: each start of a node is a new life, numbered from 0.

Seeds and stream ids depend on the life, so no two lives of a node make the same experience.
"""

from pathlib import Path
from typing import Any

from distrl.runtime.files import read_json, update_json

_FILE = "lives.json"


def next_life(run_dir: Path | str, node: str, *others: str) -> int:
    """Returns the life that a node begins: how often it was started in this run folder before.

    It is written to disk before it is returned: whatever dies, no life is given twice.

    Args:
      run_dir: the run folder, which must exist.
      node: the node's name, e.g. "actor/0".
      others: more nodes that begin the same life, which is then new to all of them: one process
        may have the parts of several nodes.
    """

    def count(lives: dict[str, Any]) -> int:
        life = max(lives.get(name, 0) for name in (node, *others))
        lives.update(dict.fromkeys((node, *others), life + 1))
        return life

    return update_json(Path(run_dir) / _FILE, count)


def lives(run_dir: Path | str) -> dict[str, int]:
    """Returns how often each node was started so far, by name."""
    return read_json(Path(run_dir) / _FILE) or {}
