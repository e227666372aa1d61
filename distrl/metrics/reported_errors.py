"""Errors that lose records but do not end the run: reports the first of several in a row."""

import contextlib
from collections.abc import Callable, Iterator

from distrl.runtime.traceback_text import one_line


class ReportedErrors:
    """Errors of something that training does not depend on: they are reported, not raised.

    Of several in a row only the first is reported.
    """

    def __init__(
        self,
        printer: Callable[[str], None],
        what: object,
        consequence: str,
        errors: tuple[type[Exception], ...] = (OSError,),
    ):
        """Args:
        printer: takes a line about the first error.
        what: what fails, such as a file, for the line.
        consequence: what follows, such as "rows will be missing".
        errors: the exceptions that are reported; others are raised.
        """
        self._printer, self._what, self._errors = printer, what, errors
        self._consequence = consequence
        self._reported = False

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Reports an error of the block instead of raising it; only the first until `worked`."""
        try:
            yield
        except self._errors as error:
            if not self._reported:
                why = getattr(error, "strerror", None) or one_line(error)
                self._printer(f"distrl: {self._what}: {why}: {self._consequence}")
            self._reported = True

    def worked(self) -> None:
        """Allows the next error to be reported again."""
        self._reported = False
