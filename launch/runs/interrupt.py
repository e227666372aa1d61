"""Ctrl-C for commands that have something to finish first."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed; a second one ends the process."""
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        del number, frame
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
