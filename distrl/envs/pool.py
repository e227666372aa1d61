"""The interface of batched environments, synchronous and asynchronous."""

import abc
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import jax
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs

from distrl import specs
from distrl.envs.clipping import ActionClip
from distrl.errors import SpecError
from distrl.types import Nest, StepType, TimeStep

_RECEIVED = ("step_type", "reward", "discount", "observation", "env_id", "env_info")


class Environment(Protocol):
    """An experiment's environment: hashable settings, no resources."""

    @property
    def name(self) -> str:
        """Name for messages and run folders."""

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec of one environment. Raises ConfigError if the settings cannot work."""

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> "Pool":
        """Starts `num_envs` environments, `seeds[i]` for number i; `recv` waits for `wait_num`."""


def on_cores(environment: Environment, cores: int) -> Environment:
    """Returns an environment whose pools keep at most `cores` cores busy, if it has a choice.

    Args:
      environment: with or without a method `on_cores`, which returns it with that many threads
        unless the user has set their number.
      cores: number of cores that each of its pools may keep busy.
    """
    chosen = getattr(environment, "on_cores", None)
    return environment if chosen is None else chosen(cores)


class Pool(abc.ABC):
    """Several environments stepped together.

    Synchronous if `wait_num == num_envs`: `reset()` and `step(action)` return all of them, in
    order. Asynchronous otherwise: after `start()`, `recv()` returns the first `wait_num` that are
    ready, and `send(action, env_ids)` steps those. Synchronous pools have `start`, `recv` and
    `send` as well, so that one loop serves both.

    Every pool has exactly the boundaries of `TimeStep`'s table, whatever its library does: an
    action sent to an environment at LAST is ignored and gives the FIRST of its next episode, with
    reward 0, discount 1 and a zero `prev_action`.

    Policies sample continuous actions beyond their bounds. Environments get them clipped, unless
    `clip_actions` is False; `prev_action`, like what is learned from, is as it was sent.

    Attributes:
      restarts: number of environments rebuilt so far, because they or their worker misbehaved.
      one_thread: whether one thread other than the caller's steps all environments, so that the
        two only ever wait for each other.
    """

    restarts: int = 0
    one_thread: bool = False

    def __init__(
        self,
        name: str,
        spec: specs.EnvironmentSpec,
        num_envs: int,
        wait_num: int,
        clip_actions: bool = True,
    ):
        """Args:
        name: name of the environment, for messages.
        spec: spec of one environment.
        num_envs: number of environments.
        wait_num: number of environments that one `recv` returns.
        clip_actions: clip floats to the bounds of the action's spec before `_send`.
        """
        if not 1 <= wait_num <= num_envs:
            raise ValueError(f"wait_num must lie in [1, num_envs={num_envs}], got {wait_num}")
        self.name = name
        self.spec = spec
        self.num_envs = num_envs
        self.wait_num = wait_num
        self.is_async = wait_num != num_envs
        self.env_ids = np.arange(num_envs, dtype=np.int32)
        self._in_order = None if self.is_async else self.env_ids.tobytes()
        self._in_flight = 0
        self._unchecked = 2  # number of the next calls of `recv` whose arrays are checked
        self._first: list[tuple[str, Any, bytes]] = []
        self._prev_action = specs.zeros(spec.action, num_envs)
        leaves = jax.tree_util.tree_leaves_with_path(spec.action, is_leaf=specs.is_spec)
        starts = jax.tree.leaves(spec.action_start) or [0] * len(leaves)
        # By leaf of integers: index, name, spec, start, unsigned dtype, number of choices.
        self._integers = [
            (
                i,
                jax.tree_util.keystr(path),
                leaf,
                start,
                np.dtype(f"u{leaf.dtype.itemsize}"),
                int(leaf.num_values) if isinstance(leaf, dm_specs.DiscreteArray) else 0,
            )
            for i, ((path, leaf), start) in enumerate(zip(leaves, starts, strict=True))
            if isinstance(leaf, dm_specs.BoundedArray) and leaf.dtype.kind in "iu"
        ]
        self._single_action = not isinstance(self._prev_action, (dict, list, tuple))
        clip = ActionClip(spec.action)
        self._clip = clip if clip_actions and clip.has_effect else None

    def reset(self) -> TimeStep:
        """Starts every environment and returns their first steps, `[num_envs]`, in order."""
        self._require_sync("reset")
        self.start()
        return self.recv()

    def step(self, action: Nest) -> TimeStep:
        """Steps every environment; `action` is a nest `[num_envs, ...]`."""
        self._require_sync("step")
        self.send(action, self.env_ids)
        return self.recv()

    def start(self) -> None:
        """Starts to reset every environment; `recv` returns their first steps. Call it once."""
        if self._in_flight:
            raise RuntimeError(f"{self.name}: start() with {self._in_flight} steps in flight")
        self._start()
        self._in_flight = self.num_envs

    def send(self, action: Nest, env_ids: npt.NDArray[np.int32]) -> None:
        """Starts to step the environments `env_ids`.

        Args:
          action: nest `[len(env_ids), ...]`. The pool does not change it; the caller must not
            before the answering `recv`.
          env_ids: int32, each at most once, none in flight.

        Raises:
          SpecError: the action violates the spec; nothing was sent.
        """
        clip = self._clip
        self._send(action if clip is None else clip(action, len(env_ids)), env_ids)
        self._in_flight += len(env_ids)
        if self._single_action:
            if env_ids.tobytes() == self._in_order:
                self._prev_action = action
            else:
                if not self.is_async:  # the last step, or the caller, may share the array
                    self._prev_action = np.array(self._prev_action)
                self._prev_action[env_ids] = action
        else:
            for table, leaf in zip(
                jax.tree.leaves(self._prev_action), jax.tree.leaves(action), strict=True
            ):
                table[env_ids] = leaf

    def recv(self) -> TimeStep:
        """Returns the first `wait_num` environments that are ready, `[wait_num]`, by `env_id`.

        Its arrays do not change afterwards.

        Raises:
          SpecError: the first steps are not what the spec says, or their arrays have changed.
          RuntimeError: fewer than `wait_num` are in flight; it would wait forever.
          EnvironmentFault: an environment misbehaved, and the policy was to fail.
        """
        if self._in_flight < self.wait_num:
            raise RuntimeError(
                f"{self.name}: recv() waits for {self.wait_num} environments and only "
                f"{self._in_flight} are in flight; send() actions first"
            )
        received = self._recv()
        if self._unchecked:
            self._check_received(received)
        step_type, reward, discount, observation, env_id, env_info = received
        self._in_flight -= self.wait_num
        any_first = StepType.FIRST in step_type.tobytes()  # faster than in a small array
        if self._single_action and not self.is_async:
            prev = self._prev_action
            if any_first and prev.dtype.kind == "i" and prev.ndim == 1:
                prev = prev * (step_type != StepType.FIRST)  # half the time of a mask
            elif any_first:
                prev = np.array(prev)
                prev[step_type == StepType.FIRST] = 0
        else:
            prev = jax.tree.map(lambda table: table[env_id], self._prev_action)
            if any_first:
                for leaf in jax.tree.leaves(prev):
                    leaf[step_type == StepType.FIRST] = 0
        return TimeStep(step_type, reward, discount, observation, prev, env_id, env_info)

    def _check_received(self, received: tuple[Any, ...]) -> None:
        """Checks the first `recv`'s arrays, and at the second `recv` that they stayed the same."""
        self._unchecked -= 1
        if self._unchecked:
            self._first = check_received(self, received)
            for row, step in enumerate(zip(*received[:3], strict=True)):
                kind, reward, discount = step
                if kind != StepType.FIRST or np.any(reward) or discount != 1:
                    raise SpecError(
                        f"{self.name}: the first step of an environment must be FIRST (0), with "
                        f"reward 0 and discount 1; environment {received[4][row]} begins with step "
                        f"type {kind}, reward {reward} and discount {discount}"
                    )
        else:
            check_unchanged(self.name, self._first)
            self._first = []

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the environments. The pool cannot be used afterwards."""

    def _require_sync(self, method: str) -> None:
        if self.is_async:
            raise RuntimeError(
                f"{self.name}: {method}() needs a synchronous pool; this one waits for "
                f"{self.wait_num} of {self.num_envs}: use start(), recv() and send()"
            )

    def _check_choices(
        self, leaves: list[npt.NDArray[Any]], env_ids: npt.NDArray[np.int32]
    ) -> None:
        """Raises SpecError for integers beyond the bounds of the action's spec.

        Args:
          leaves: leaves of an action whose shapes and dtypes have been checked.
          env_ids: the environments that it is for.
        """
        for i, path, leaf, start, unsigned, num_choices in self._integers:
            given = leaves[i]
            if not len(given):
                continue
            if num_choices:
                # `argmax` has no Python wrapper; as unsigned numbers, negative ones are large, so
                # that it finds them as well.
                numbers = given.view(unsigned)
                row = numbers.argmax()
                is_wrong = numbers.item(row) >= num_choices
            else:
                outside = (given < leaf.minimum) | (given > leaf.maximum)
                row = outside.reshape(len(outside), -1).any(axis=1).argmax()
                is_wrong = outside[row].any()
            if is_wrong:
                where = f"action{path} of {self.name}: environment {env_ids[row]}"
                specs.check_integers(given[row], leaf, start, where)

    @abc.abstractmethod
    def _start(self) -> None:
        """Starts to reset every environment."""

    @abc.abstractmethod
    def _send(self, action: Nest, env_ids: npt.NDArray[np.int32]) -> None:
        """Starts to step the environments `env_ids`; see `send`. Floats are within their bounds."""

    @abc.abstractmethod
    def _recv(
        self,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Nest, npt.NDArray[Any], Nest]:
        """Returns `(step_type, reward, discount, observation, env_id, env_info)`.

        int8 `[wait_num]`, float32 `[wait_num, *reward.shape]`, float32 `[wait_num]`, the spec's
        nest `[wait_num, ...]`, int32 `[wait_num]`, and the spec's dict `[wait_num, ...]` or (); in
        the order of the environments if the pool is synchronous.

        The arrays are the caller's, and must never change: an actor sends the next actions before
        it stores the step that they answer, and may hold several steps. A pool that writes its
        steps into buffers returns copies.
        """


def check_received(pool: Pool, received: tuple[Any, ...]) -> list[tuple[str, Any, bytes]]:
    """Checks the structure, shapes and dtypes of what a pool's `_recv` returned, and the ids.

    Returns:
      The arrays for `check_unchanged`.

    Raises:
      SpecError: they are not what `_recv` should return.
    """
    if not isinstance(received, tuple) or len(received) != len(_RECEIVED):
        got = f"a tuple of {len(received)}" if isinstance(received, tuple) else f"{type(received)}"
        raise SpecError(
            f"{pool.name}: _recv must return a tuple ({', '.join(_RECEIVED)}), got {got}"
        )
    parts = dict(zip(_RECEIVED, received, strict=True))
    scalar = {
        name: jax.ShapeDtypeStruct((), dtype)
        for name, dtype in (("step_type", np.int8), ("discount", np.float32), ("env_id", np.int32))
    }
    spec = pool.spec
    wanted = {**scalar, "reward": spec.reward, "observation": spec.observation}
    if spec.env_info:
        wanted["env_info"] = spec.env_info
    for name, each in wanted.items():
        specs.check(parts[name], each, (pool.wait_num,), f"{name} of {pool.name}")
    ids = np.asarray(parts["env_id"])
    known = len(np.unique(ids)) == len(ids) and np.isin(ids, pool.env_ids).all()
    if not (known if pool.is_async else np.array_equal(ids, pool.env_ids)):
        expected = "different numbers" if pool.is_async else "the numbers in order"
        raise SpecError(
            f"env_id of {pool.name}: expected {expected} from 0 to {pool.num_envs - 1}, got {ids}"
        )
    return [
        (name, leaf, np.asarray(leaf).tobytes())
        for name, part in parts.items()
        for leaf in jax.tree.leaves(part)
    ]


def check_unchanged(pool_name: str, arrays: Iterable[tuple[str, Any, bytes]]) -> None:
    """Raises SpecError if arrays are no longer what they were when a pool returned them.

    Args:
      pool_name: name of the pool, for the message.
      arrays: name, array and former content, from `check_received`.
    """
    for name, array, content in arrays:
        if np.asarray(array).tobytes() != content:
            raise SpecError(
                f"{name} of {pool_name}: the array that recv returned changed when the next step "
                "was taken, before it was stored: _recv must return new arrays, or copies"
            )
