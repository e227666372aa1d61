"""Compiles a function in another thread, while the calling one prepares its first call."""

import threading
from collections.abc import Callable
from typing import Any

from distrl.runtime.start_up import mark

NAME = "compile-ahead"
"""Name of the threads that compile."""


def is_compiling() -> bool:
    """Returns whether a thread compiles ahead: then this process must not run exit handlers."""
    return any(thread.name == NAME for thread in threading.enumerate())


class CompileAhead:
    """Compiles a function from `jax.jit` for arguments of given shapes.

    JAX then finds it compiled when the function is called. What fails here fails again there, where
    it is reported.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        """Args:
        function: a function from `jax.jit`; for any other, this does nothing.
        *arguments: arrays, or their shapes and dtypes.
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
        """Waits until it is done: to compile the same in two threads takes twice the time.

        Args:
          phase: name of the start-up's phase that ends with this call; see
            `distrl.runtime.start_up`.
        """
        if phase:
            mark(phase)
        if self._thread is not None:
            self._thread.join()
