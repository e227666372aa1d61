"""A learner's newest parameters, given out as nests while the learner has them joined."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl.errors import DeadlineExceeded
from distrl.learning.divergence import UpdateCheck
from distrl.learning.finite_params import FiniteParams
from distrl.runtime.joined import Joined
from distrl.types import Nest, Params

UPDATE_S = 60.0  # how long other threads wait for an update


class UpdateLock:
    """A context for one thread at a time, which may enter it again: an update, or who reads it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Raises DeadlineExceeded if an update takes longer than a minute."""
        if not self._lock.acquire(timeout=UPDATE_S):
            raise DeadlineExceeded(
                f"the learner's state cannot be read: an update has taken more than {UPDATE_S:g} s"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class JoinedParams(FiniteParams):
    """As `FiniteParams`, but `restart` and `append` take a `Joined` of the parameters."""

    def current(self) -> tuple[int, Params]:
        """See `FiniteParams`."""
        self._note_finite()
        finite = self._finite  # read once, as other threads replace it
        if isinstance(finite.params, Joined):
            finite = self._finite = finite._replace(params=self._split(finite.params))
        return finite[:2]

    def current_to_copy(self) -> tuple[int, Params | Joined]:
        """See `FiniteParams`; the arrays are NumPy's, unless they were given to `restart`."""
        self._note_finite()
        version, params, _ = self._finite
        return version, params.map(np.asarray) if isinstance(params, Joined) else params

    @staticmethod
    def _split(params: Joined) -> Params:
        return params.on_host()

    def of_version(self, version: int) -> Params | None:
        """See `FiniteParams`."""
        params = super().of_version(version)
        return params.on_host() if isinstance(params, Joined) else params


class CopiedParams(JoinedParams):
    """As `JoinedParams`; gives out copies, made when asked for them. `of_version` knows none."""

    def __init__(self, check: UpdateCheck, lock: UpdateLock):
        """Args: check: see `FiniteParams`. lock: held while an update overwrites the newest."""
        super().__init__(check, keep=0)
        self._lock = lock

    def restart(self, version: int, params: Params, record: Any) -> None:
        """See `FiniteParams`."""
        super().restart(version, split_copy(params), record)

    def current(self) -> tuple[int, Params]:
        """See `FiniteParams`.

        Raises:
          DeadlineExceeded: an update takes longer than a minute.
        """
        with self._lock:
            return super().current()

    def current_to_copy(self) -> tuple[int, Params | Joined]:
        """See `JoinedParams`. Raises what `current` does."""
        with self._lock:
            self._note_finite()
            finite = self._finite
            if isinstance(finite.params, Joined):
                finite = self._finite = finite._replace(params=finite.params.map(np.array))
        return finite[:2]

    def _note_finite(self) -> None:
        if not is_lost(self._newest.params):
            super()._note_finite()

    @staticmethod
    def _split(params: Joined) -> Params:
        return split_copy(params)


@jax.jit
def join_copy(nest: Nest) -> Joined:
    """Returns a copy of a nest, on JAX's device, for updates that overwrite it."""
    # Not `jax.device_put(x, may_alias=False)`: it copies neither views of JAX's arrays nor NumPy's.
    return Joined.of(jax.tree.map(jnp.copy, nest))


@jax.jit
def split_copy(joined: Joined) -> Nest:
    """Returns a copy that no update overwrites."""
    return jax.tree.map(jnp.copy, joined.split())


def is_lost(nest: Nest) -> bool:
    """Returns whether an update has overwritten arrays, and has not replaced them."""
    return any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(nest))
