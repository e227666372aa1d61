"""Announces a Reverb server's table, so that it is listed beside the tables in shared memory."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from distrl.shared_memory import segment
from distrl.shared_memory.process import Process


@contextlib.contextmanager
def announced(name: str, about: Mapping[str, Any]) -> Iterator[None]:
    """Announces a table by a file until the context, or this process, ends.

    Args:
      name: the table's name, unique to the program.
      about: what `SharedFile.about` returns; plain data for JSON.

    Raises:
      ConfigError: the name is in use.
    """
    segment.sweep()
    unfinished = segment.new_file(name, Process.this())
    path = unfinished.address_path()
    try:
        unfinished.path.write_text(json.dumps(about))
        unfinished.path.rename(path)
        yield
    finally:
        unfinished.path.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
