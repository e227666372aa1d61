"""Errors that cost records and not the run: the first of several in a row is told."""

import contextlib
from collections.abc import Callable, Iterator

from distrl.runtime.traceback_text import one_line


class ToldOnce:
    """What training does not depend on may fail within `with errors(): ...`, and that is told."""

    def __init__(
        self,
        printer: Callable[[str], None],
        what: object,
        consequence: str,
        errors: tuple[type[Exception], ...] = (OSError,),
    ):
        """Args:
        printer: takes a line about the first error.
        what: fails, such as a file.
        consequence: what follows, such as "rows will be missing".
        errors: the exceptions that are told; others are raised.
        """
        self._printer, self._what, self._errors = printer, what, errors
        self._consequence = consequence
        self._told = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Tells an error of what is done within, unless the one before was told."""
        try:
            yield
        except self._errors as error:
            if not self._told:
                why = getattr(error, "strerror", None) or one_line(error)
                self._printer(f"distrl: {self._what}: {why}: {self._consequence}")
            self._told = True

    def worked(self) -> None:
        """Has the next error be told again."""
        self._told = False
