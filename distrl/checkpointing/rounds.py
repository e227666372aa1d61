"""Rounds of saving: which checkpoints of several tasks belong together.

Tasks save at their own pace, each to a folder of its own. The clock numbers rounds, every task
saves once in each, and its checkpoint notes the round. The checkpoints of one round make a
consistent point to resume from; a round that some task has not saved, or whose checkpoint is
damaged, makes none.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from distrl.checkpointing.store import Checkpoint, Checkpoints, round_of
from distrl.errors import ConfigError


class Rounds(Protocol):
    """The numbers of the rounds, as a `Checkpointer` asks for them."""

    def current(self) -> int:
        """Returns the number of the round in which tasks save now. Must not block."""

    def last(self) -> int:
        """Returns the number of the program's last round; `current` never becomes it.

        A task asks once the program stops.
        """


class ClockRounds:
    """Rounds that begin at intervals of time. Thread safe."""

    def __init__(
        self,
        before: int,
        period: float | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Args:
        before: the round before the first one, above all rounds of programs before.
        period: seconds between the starts of two rounds; None: there is only the last one.
        clock: gives the time in seconds.
        """
        self._before = before
        self._period = period
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._last: int | None = None

    def current(self) -> int:
        """See `Rounds`; at the start, the round before the first one."""
        with self._lock:
            number = self._by_the_clock()
            return number if self._last is None else min(number, self._last - 1)

    def last(self) -> int:
        """See `Rounds`."""
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

    With it, the first of several tasks that is saved does not end the process of the others.
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


def last_round(folders: Sequence[Path]) -> int:
    """Returns the largest round in any of the tasks' folders; 0 if there is none."""
    return max(
        (round_of(path) for folder in folders for path in Checkpoints(folder).paths()), default=0
    )


def latest_set(
    folders: Mapping[str, Path], printer: Callable[[str], None] = print
) -> dict[str, Checkpoint]:
    """Returns the newest round's checkpoints by task; empty if no round is complete.

    Args:
      folders: the tasks' folders, by task.
      printer: prints a line for each checkpoint that is skipped: it is damaged, or in no complete
        round.

    Raises:
      ConfigError: in every complete round a checkpoint is damaged.
    """
    by_round: dict[str, dict[int, Path]] = {}
    for task, folder in folders.items():
        by_round[task] = {round_of(path): path for path in Checkpoints(folder).paths()}
    common = set.intersection(*(set(rounds) for rounds in by_round.values()))
    errors: list[ConfigError] = []
    for number in sorted(common, reverse=True):
        try:
            found = {task: Checkpoint.read(rounds[number]) for task, rounds in by_round.items()}
        except ConfigError as error:
            errors.append(error)
            continue
        for rounds in by_round.values():
            for later in sorted(set(rounds) - common):
                if later > number:
                    printer(
                        f"distrl: checkpoint skipped: {rounds[later]} is of round {later}, which "
                        "not all policies have saved"
                    )
        for skipped in errors:
            printer(f"distrl: checkpoint skipped: {skipped}")
        return found
    if not errors:
        return {}
    raise ConfigError(
        f"none of the {len(errors)} rounds of checkpoints can be loaded: "
        + "; ".join(map(str, errors))
    )
