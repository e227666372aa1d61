"""Checks whether training has diverged: in every update, on the device.

An update is finite if its loss, its gradients' norm, its priorities and the parameters that it
makes are finite; where updates that are not finite are skipped, also the rest of the learner's
state. The result stays on the device until something else is read from it: logs, or parameters to
be published. Parameters that are not finite stay so, so reading the newest record is enough.
"""

import bisect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from distrl.agents.agent import PRIORITIES, LearnerState, Logs
from distrl.agents.losses.prioritized import check_priorities
from distrl.agents.structs import check_kept, check_raw
from distrl.agents.weak_types import strong
from distrl.errors import Diverged, SpecError
from distrl.param_versions import stored_version
from distrl.types import Array, Params, Trajectory

FAIL, SKIP = "fail", "skip"
MAX_SKIPPED = 100
"""Number of consecutive updates that may be skipped: after more, nothing is learned any more."""

_NAMES = ("params", "learner_state")
_LOGS = ("loss", "gradient_norm", PRIORITIES)
# Elements of a record; what they are multiplied by, and what is added, after a finite update and
# after one that is not.
_VERSION, _FIRST, _SKIPPED, _IN_ROW, _CODE = range(5)
_FINE = np.array([[1, 1, 1, 0, 1], [1, 0, 0, 0, 0]], np.int32)
_FAULT = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 1, 0]], np.int32)
_OF_VERSION, _OF_CODE = np.eye(5, dtype=np.int32)[[_FIRST, _CODE]]
_NONE = np.int32(np.iinfo(np.int32).max)  # the code if all is finite
_FEW = 1 << 12  # elements; fewer are read faster than a product of them is begun
_SMALL = 1 << 16  # elements; smaller leaves, perhaps many, are checked in one operation


class UpdateCheck:
    """Checks a learner's updates. A record, int32 [5], is passed from update to update.

    Its code numbers the large leaves, then each element of the small leaves, then the logs.

    Attributes:
      most_in_row: updates in a row that may be skipped before `error` returns one; None: any.
    """

    most_in_row: int | None = MAX_SKIPPED

    def __init__(
        self,
        params: Params,
        learner_state: LearnerState,
        on_nonfinite: str = FAIL,
        what: str = "training",
    ):
        """Args:
        params, learner_state: the initial ones. Leaves that are not finite here are not checked.
        on_nonfinite: what to do about an update that is not finite: FAIL or SKIP.
        what: what would have diverged, for messages.

        Raises:
          SpecError: a leaf is a typed key.
        """
        self._what = what
        self.skips = on_nonfinite == SKIP
        self._struct = jax.eval_shape(lambda: (params, learner_state))
        leaves = _named(params, learner_state)
        for name, leaf in leaves:
            check_raw(name, leaf)
        self._checked = [_is_finite(leaf) for _, leaf in leaves]
        count = len(leaves) if self.skips else len(jax.tree.leaves(params))
        self._large: list[int] = []
        self._small: dict[str, list[int]] = {"float32": []}
        for index, (_, leaf) in enumerate(leaves[:count]):
            if not self._checked[index] or not jnp.issubdtype(leaf.dtype, jnp.inexact):
                continue
            if leaf.size > _SMALL:
                self._large.append(index)
            else:
                self._small.setdefault(str(leaf.dtype), []).append(index)
        self._small["float32"] = self._small.pop("float32")  # last, since the logs follow
        small = list(itertools.chain(*self._small.values()))
        sizes = [1 for _ in self._large] + [leaves[index][1].size for index in small]
        self._codes = [0, *itertools.accumulate(sizes)]
        self._names = [leaves[index][0] for index in self._large + small]

    @staticmethod
    def new_record(version: int, skipped: int = 0) -> npt.NDArray[np.int32]:
        """Returns the record before the next update.

        Args:
          version: version of the parameters.
          skipped: updates skipped so far; consecutive ones are counted from 0.
        """
        return np.array([stored_version(version), 0, skipped, 0, _NONE], np.int32)

    def checked(self, learner_step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `Agent.learner_step` with the check.

        It also takes and returns the record, after the learner state. Where updates are skipped,
        one that is not finite returns the old parameters and learner state. While it is traced, and
        so before anything is published or saved, it raises SpecError if parameters or learner state
        do not keep their structure, shapes and dtypes, or priorities are not [B].
        """

        def step(
            params: Params, learner_state: LearnerState, record: Array, batch: Trajectory
        ) -> tuple[Params, LearnerState, Array, Logs]:
            after, after_state, logs = learner_step(params, learner_state, batch)
            for name, old, new in zip(_NAMES, self._struct, (after, after_state), strict=True):
                check_kept(old, new, name, "the update (learner_step)")
            if isinstance(batch, Trajectory):  # not for gradients of shares, each checked by itself
                check_priorities(logs, PRIORITIES, len(batch.stream_id))
            after, after_state = strong((after, after_state))  # else the next update recompiles
            leaves = jax.tree.leaves((after, after_state))
            code = jax.lax.cond(
                self._all_finite(leaves, logs),
                lambda: _NONE,
                lambda: self._first_code(leaves, logs),
            )
            fault = code != _NONE
            if self.skips:
                after, after_state = jax.tree.map(
                    lambda new, old: jnp.where(fault, old, new),
                    (after, after_state),
                    (params, learner_state),
                )
            # The code is the first fault's; where updates are skipped, the last one's. One kernel
            # does it all.
            new = fault if self.skips else fault & (record[_FIRST] == 0)
            first = record * _FAULT[0] + _FAULT[1] + record[_VERSION] * _OF_VERSION
            record = jnp.where(new, first + code * _OF_CODE, record * _FINE[0] + _FINE[1])
            return after, after_state, record, logs

        return step

    def _all_finite(self, leaves: list[jax.Array], logs: Logs) -> jax.Array:
        """Returns whether everything is finite, at a third of the cost of `_first_code`."""
        checked = [leaves[index] for index in itertools.chain(self._large, *self._small.values())]
        checked += [jnp.asarray(logs[name]) for name in _LOGS if name in logs]
        if not checked:  # an agent without parameters, such as one that acts by a rule
            return jnp.asarray(True)
        return jnp.all(jnp.stack([_are_finite(leaf) for leaf in checked]))

    def _first_code(self, leaves: list[jax.Array], logs: Logs) -> jax.Array:
        """Returns the least code of what is not finite, or `_NONE`."""
        first, start = jnp.asarray(_NONE), len(self._large)
        for code, index in enumerate(self._large):
            finite = jnp.all(jnp.isfinite(leaves[index]))
            first = jnp.minimum(first, jnp.where(finite, _NONE, code))
        for dtype, group in self._small.items():
            parts = [leaves[index].reshape(-1) for index in group]
            if dtype == "float32":
                parts += [_flat(logs.get(name, 0.0)) for name in _LOGS]
            joined = jnp.concatenate(parts)
            codes = start + jnp.arange(joined.size, dtype=jnp.int32)
            first = jnp.minimum(first, jnp.min(jnp.where(jnp.isfinite(joined), _NONE, codes)))
            start += joined.size
        return first

    def is_finite(self, record: Array) -> bool:
        """Returns whether the parameters that come with a record are finite."""
        return self.skips or int(np.asarray(record)[_FIRST]) == 0

    @classmethod
    def renewed(cls, record: Array | None, version: int) -> npt.NDArray[np.int32]:
        """Returns the record that follows one, for parameters that were replaced by finite ones."""
        return cls.new_record(version, cls.skipped(record))

    @staticmethod
    def skipped(record: Array | None) -> int:
        """Returns the number of updates that were skipped. Args: record: None: no update yet."""
        return 0 if record is None else int(np.asarray(record)[_SKIPPED])

    @staticmethod
    def skipped_in_row(record: Array) -> int:
        """Returns the number of updates that were skipped since the last that was not."""
        return int(np.asarray(record)[_IN_ROW])

    def error(self, record: Array) -> Diverged | None:
        """Returns the error that ends training; None if nothing does."""
        numbers = np.asarray(record)
        log = int(numbers[_CODE]) - self._codes[-1]
        if log < 0:
            what = self._names[bisect.bisect_right(self._codes, int(numbers[_CODE])) - 1]
        else:
            what = _LOGS[min(log, len(_LOGS) - 1)]
        step = f"learner step {int(numbers[_FIRST]) % 2**32}: {what} is not finite"
        advice = "lower the learning rate or agent.max_gradient_norm"
        if not self.skips and numbers[_FIRST]:
            return Diverged(
                f"{self._what} has diverged at {step}; {advice}, or leave out such updates with "
                "learner.on_nonfinite=skip"
            )
        most = self.most_in_row
        if self.skips and most is not None and numbers[_IN_ROW] >= most:
            return Diverged(
                f"{self._what} has diverged: {numbers[_IN_ROW]} updates in a row were skipped, the "
                f"last at {step}; {advice}"
            )
        return None

    def check_state(self, version: int, params: Params, learner_state: LearnerState) -> None:
        """Checks the whole state of a learner on the host, e.g. before it is saved.

        Raises:
          Diverged: a leaf is not finite.
        """
        for (name, leaf), checked in zip(_named(params, learner_state), self._checked, strict=True):
            if checked and not _is_finite(leaf):
                raise Diverged(
                    f"{self._what} has diverged: {name} is not finite after learner step {version}"
                )


def _are_finite(x: jax.Array) -> jax.Array:
    """Returns whether an array is finite, a bool scalar."""
    if x.ndim < 2 or x.size < _FEW:
        return _by_reductions(x)
    return jax.lax.platform_dependent(x, cpu=_by_product, default=_by_reductions)


def _by_reductions(x: jax.Array) -> jax.Array:
    finite = jnp.isfinite(x)
    # Axis by axis: XLA's CPU compiler vectorizes all reductions but the last.
    while finite.ndim > 1:
        finite = jnp.all(finite, axis=0)
    return jnp.all(finite)


def _by_product(x: jax.Array) -> jax.Array:
    """By a product with zeros, which is NaN where x is not finite: libraries multiply fast."""
    zeros = jax.lax.optimization_barrier(jnp.zeros(x.shape[-1], x.dtype))  # else it is left out
    return jnp.all(jnp.isfinite(x.reshape(-1, x.shape[-1]) @ zeros))


def _flat(x: Any) -> jax.Array:
    return jnp.ravel(jnp.asarray(x, jnp.float32))


def check_saved(where: str, params: Params, initial: Params) -> None:
    """Raises SpecError if a checkpoint's parameters are not finite: older versions saved such.

    Args:
      where: the checkpoint.
      params: its parameters.
      initial: the agent's initial ones. Leaves that are not finite here are not checked.
    """
    begun = jax.tree.map(_is_finite, initial)
    for (name, leaf), (_, checked) in zip(_named(params, ()), _named(begun, ()), strict=True):
        if checked and not _is_finite(leaf):
            raise SpecError(
                f"{where}: {name} is not finite: training had diverged before it was saved; move "
                "it away to resume from the checkpoint before it"
            )


def _named(params: Params, learner_state: LearnerState) -> list[tuple[str, Any]]:
    """Returns all leaves with names such as params['mlp']['w'], in the order of the two."""
    named = []
    for what, nest in zip(_NAMES, (params, learner_state), strict=True):
        leaves, _ = jax.tree_util.tree_flatten_with_path(nest)
        named += [(what + jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
    return named


def _is_finite(leaf: Any) -> bool:
    """Returns whether an array is finite, on the host."""
    array = np.asarray(leaf)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return True
    return bool(np.isfinite(array).all())
