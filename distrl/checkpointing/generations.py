"""Checkpoint generations: which checkpoints of several tasks belong together.

Tasks save at their own pace, each to a folder of its own. The clock numbers generations, every task
saves once in each, and its checkpoint notes the number, as "round" in its manifest; a learner that
is restarted saves from the next generation on. The checkpoints of one generation make a consistent
point to resume from; a generation that some task has not saved, or whose checkpoint is damaged,
makes none.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from distrl.checkpointing.store import MANIFEST, Checkpoint, Checkpoints, generation_of
from distrl.errors import ConfigError
from distrl.runtime.files import read_dict


class Generations(Protocol):
    """Numbers the checkpoint generations, for a `Checkpointer`."""

    def current(self) -> int:
        """Returns the number of the generation in which tasks save now. Must not block."""

    def last(self) -> int:
        """Returns the number of the program's last generation; `current` never becomes it.

        A task calls this when the program stops.
        """


class ClockGenerations:
    """Generations that begin at intervals of time. Thread safe."""

    def __init__(
        self,
        before: int,
        period: float | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Args:
        before: the generation before the first one, above all generations of programs before.
        period: seconds between the starts of two generations; None: only the last one exists.
        clock: gives the time in seconds.
        """
        self._before = before
        self._period = period
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._last: int | None = None

    def current(self) -> int:
        """See `Generations`; at the start, the generation before the first one."""
        with self._lock:
            number = self._by_the_clock()
            return number if self._last is None else min(number, self._last - 1)

    def last(self) -> int:
        """See `Generations`."""
        with self._lock:
            if self._last is None:
                self._last = self._by_the_clock() + 1
            return self._last

    def _by_the_clock(self) -> int:
        if self._period is None:
            return self._before
        return self._before + int((self._clock() - self._began) / self._period)


def when_all(count: int, call: Callable[[], None]) -> Callable[[], None]:
    """Returns a function whose call number `count` is passed on to `call`, in that thread.

    So the first of several tasks to be saved does not end the process that saves the others.
    """
    lock = threading.Lock()
    calls = 0

    def counted() -> None:
        nonlocal calls
        with lock:
            calls += 1
            complete = calls == count
        if complete:
            call()

    return counted


def last_generation(folder: Path) -> int:
    """Returns the largest generation in a task's folder; 0 if there is none."""
    return max(map(generation_of, Checkpoints(folder).paths()), default=0)


def latest_set(
    folders: Mapping[str, Path], printer: Callable[[str], None] = print
) -> dict[str, Checkpoint]:
    """Returns the newest generation's checkpoints by task; empty if no generation is complete.

    Args:
      folders: the tasks' folders, by task.
      printer: prints a line for each checkpoint that is skipped: it is damaged, or in no complete
        generation.

    Raises:
      ConfigError: in every complete generation a checkpoint is damaged.
    """
    by_generation = {task: _by_generation(folder) for task, folder in folders.items()}
    common = set.intersection(*(set(generations) for generations in by_generation.values()))
    errors: list[ConfigError] = []
    for number in sorted(common, reverse=True):
        try:
            checkpoints = {
                task: Checkpoint.read(generations[number])
                for task, generations in by_generation.items()
            }
        except ConfigError as error:
            errors.append(error)
            continue
        for generations in by_generation.values():
            for later in sorted(set(generations) - common):
                if later > number:
                    printer(
                        f"distrl: checkpoint skipped: {generations[later]} is of generation "
                        f"{later}, which not all policies have saved"
                    )
        for skipped in errors:
            printer(f"distrl: checkpoint skipped: {skipped}")
        return checkpoints
    if not errors:
        return {}
    raise ConfigError(
        f"none of the {len(errors)} generations of checkpoints can be loaded: "
        + "; ".join(map(str, errors))
    )


def _by_generation(folder: Path) -> dict[int, Path]:
    """Returns a task's checkpoint of each generation.

    The last save of a program may be repeated, and then the repetition counts. In older versions,
    restarted learners saved again, too, long after the other tasks: that does not count.
    """
    chosen: dict[int, Path] = {}
    for path in Checkpoints(folder).paths():
        number = generation_of(path)
        if number not in chosen or _lives(path) == _lives(chosen[number]):
            chosen[number] = path
    return chosen


def _lives(path: Path) -> Any:
    """Returns the lives of the program's nodes when a checkpoint was written; None: unknown."""
    return (read_dict(path / MANIFEST) or {}).get("lives")
