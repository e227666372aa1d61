"""Compilation in another thread, while the calling one does what comes before the first call."""

import threading
from collections.abc import Callable
from typing import Any

from distrl.runtime.start_up import mark

NAME = "compile-ahead"
"""Of the threads that compile."""


def is_compiling() -> bool:
    """Returns whether something is compiled ahead: this process must not run exit handlers then."""
    return any(thread.name == NAME for thread in threading.enumerate())


class CompileAhead:
    """Compiles a function of `jax.jit` for arguments of given shapes.

    JAX then finds it compiled when the function is called. What fails here fails again there, where
    it is reported.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        """Args:
        function: a function of `jax.jit`; another one is left alone.
        *arguments: arrays, or shapes and dtypes in their place.
        """
        self._thread: threading.Thread | None = None
        if hasattr(function, "lower"):
            self._function, self._arguments = function, arguments
            self._thread = threading.Thread(target=self._compile, name=NAME, daemon=True)
            self._thread.start()

    def _compile(self) -> None:
        try:
            self._function.lower(*self._arguments).compile()
        except Exception as error:
            print(f"not compiled ahead: {type(error).__name__}: {error}"[:300], flush=True)

    def wait(self, phase: str = "") -> None:
        """Waits until it is done: two threads that compile the same take twice the time.

        Args:
          phase: of the start-up, which ends with this call; see `distrl.runtime.start_up`.
        """
        if phase:
            mark(phase)
        if self._thread is not None:
            self._thread.join()
