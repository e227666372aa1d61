"""How often each node of a run was started, so that no two of its lives are alike."""

from pathlib import Path
from typing import Any

from distrl.runtime.files import read_json, update_json

_FILE = "lives.json"


def next_life(run_dir: Path | str, node: str, *others: str) -> int:
    """The life that `node` begins now: how often it was started in this run folder before.

    It is counted before it is used, and on the disk: whatever dies, no life is given twice.

    Args:
      run_dir: of the run; is there.
      node: its name, "actor/0".
      others: that begin the same life, which is then new to all of them: one process may have
        the parts of several nodes.
    """

    def count(lives: dict[str, Any]) -> int:
        life = max(lives.get(name, 0) for name in (node, *others))
        lives.update(dict.fromkeys((node, *others), life + 1))
        return life

    return update_json(Path(run_dir) / _FILE, count)


def lives(run_dir: Path | str) -> dict[str, int]:
    """By node, how often it was started so far."""
    return read_json(Path(run_dir) / _FILE) or {}
