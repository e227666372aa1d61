"""EnvPool's C++ thread pools behind the Pool interface."""

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from distrl import specs
from distrl.envs.adapters.conform import not_finite
from distrl.envs.pool import Pool
from distrl.envs.pools.envpool_library import envpool, info_keys, observation_keys
from distrl.errors import ConfigError, EnvironmentFault
from distrl.runtime.host_resources import usable_cores
from distrl.runtime.traceback_text import one_line
from distrl.types import Nest, StepType


class NativePool(Pool):
    """A pool of EnvPool; see `Pool`.

    It reads EnvPool's raw state arrays: EnvPool's dm API reports a time limit as a true end, and
    its gymnasium API costs more than a step of CartPole.

    EnvPool reports an episode that truly ends on the very step of its time limit as truncated.
    Therefore EnvPool gets a limit that is one larger, and the pool itself cuts episodes at the
    limit: there EnvPool's report is right. If the limit is part of the game (no `exact_limit`),
    EnvPool's limit and report are used, and the pool cuts at `cut` only; newer families report both
    in `terminated` and `trunc`.
    """

    def __init__(
        self,
        name: str,
        spec: specs.EnvironmentSpec,
        num_envs: int,
        wait_num: int,
        seed: int,
        *,
        options: dict[str, Any],
        exact_limit: int | None,
        cut: int | None,
        num_threads: int,
        clip_actions: bool,
        clean_rewards: bool,
        check_finite: bool,
    ):
        """Args:
        name: name of the environment in EnvPool.
        spec: spec of one environment.
        num_envs: number of environments.
        wait_num: number of environments that one `recv` returns.
        seed: seed of environment 0; environment i has `seed + i`.
        options: EnvPool's options.
        exact_limit: the time limit at which the pool cuts episodes; None: EnvPool does.
        cut: another one, at which the pool also cuts episodes; EnvPool keeps its own.
        num_threads: EnvPool's threads; 0: one for each usable core.
        clip_actions: clip continuous actions to their bounds.
        clean_rewards: EnvPool gives reward 0 at FIRST.
        check_finite: refuse NaN and infinite observations and rewards.

        Raises:
          ConfigError: EnvPool cannot make the environment.
        """
        super().__init__(name, spec, num_envs, wait_num, clip_actions)
        self.seeds = tuple((seed + i) % 2**31 for i in range(num_envs))  # as EnvPool counts
        self._limit = min((n for n in (exact_limit, cut) if n is not None), default=None)
        self._is_exact = exact_limit is not None
        if exact_limit is not None:
            options = {**options, "max_episode_steps": exact_limit + 1}
        threads = min(num_threads or usable_cores(), num_envs)
        self.one_thread = threads == 1
        self._env = _make(
            name,
            num_envs=num_envs,
            batch_size=wait_num,
            num_threads=threads,
            seed=seed % 2**31,
            **options,
        )
        at = {key: i for i, key in enumerate(self._env.spec._state_keys)}
        self._env_id, self._reward, self._elapsed = (
            at["info:env_id"], at["reward"], at["elapsed_step"]
        )  # fmt: skip
        self._discount, self._step_type, self._trunc = at["discount"], at["step_type"], at["trunc"]
        self._terminated = at.get("terminated")
        self._single = at.get("obs")
        # Parts of the observation: name ("" of the whole), index in the state, dtype to cast to.
        leaves = {"": self.spec.observation} if self._single is not None else self.spec.observation
        raw = self._env.spec.state_array_spec
        self._observations = [
            (name, at[key], _cast(raw[key].dtype, leaves[name].dtype))
            for name, key in observation_keys(at).items()
        ]
        self._infos = [(name, at[key]) for name, key in info_keys(at).items()]
        raw_action = list(self._env.spec.action_array_spec.values())[-1]
        self._action_dtype = np.dtype(raw_action.dtype)
        self._checked = False
        # Environments whose episode the pool has cut: EnvPool may still be in the middle of it.
        self._cut = np.zeros(num_envs, bool)
        self._any_cut = False
        self._steps_to_limit = 0  # until then no environment can be at the limit
        # Atari, classic control, toy text, Box2D and gymnasium's MuJoCo give 0 at FIRST; others
        # (dm_control, Meta-World) give an arbitrary value.
        self._stale_rewards = not clean_rewards
        self._check_finite = check_finite
        self._failure: str | None = None
        self._restarted: tuple[npt.NDArray[Any], list[npt.NDArray[Any]]] | None = None

    def _start(self) -> None:
        self._env.async_reset()

    def _send(self, action: Any, env_ids: npt.NDArray[np.int32]) -> None:
        if not self._checked:  # once: EnvPool reads the memory without checks
            specs.check(action, self.spec.action, (len(env_ids),), f"action of {self.name}")
            self._checked = True
        if not self.is_async and len(env_ids) != self.num_envs:
            raise ValueError(
                f"{self.name}: send() takes all {self.num_envs} environments of a synchronous "
                f"pool at once, got {len(env_ids)}"
            )
        # EnvPool needs writable memory, which JAX's is not.
        action = np.array(action, self._action_dtype, order="C")
        if not self.is_async and env_ids.tobytes() != self._in_order:
            # EnvPool numbers the rows of a synchronous answer by their position in the call.
            action, env_ids = action[np.argsort(env_ids)], self.env_ids
        self._check_choices([action], env_ids)
        if self._any_cut:
            cut = self._cut[env_ids]
            if cut.any():
                self._restart(cut, env_ids)
                env_ids, action = env_ids[~cut], action[~cut]
        if len(env_ids):
            self._env._send([env_ids, env_ids, action])

    def _restart(self, cut: npt.NDArray[Any], env_ids: npt.NDArray[np.int32]) -> None:
        """Starts the next episode of the environments `env_ids[cut]`, whatever their action."""
        ids = env_ids[cut]
        self._cut[ids] = False
        self._any_cut = bool(self._cut.any())
        self._env._reset(ids)
        if not self.is_async and len(ids) < self.num_envs:
            # Rows of the answer are numbered as above: these must be received before the others are
            # sent.
            self._restarted = cut, self._env._recv()

    def _recv(
        self,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Nest, npt.NDArray[Any], Nest]:
        if self._failure is not None:
            raise EnvironmentFault(self._failure)
        state = self._env._recv()
        if self._restarted is not None:
            cut, restarted = self._restarted
            self._restarted = None
            state = [_merge(cut, some, rest) for some, rest in zip(restarted, state)]
        env_id, discount, reward = state[self._env_id], state[self._discount], state[self._reward]
        step_type = state[self._step_type].astype(np.int8)
        if self._limit is not None:
            self._steps_to_limit -= 1
            if self._steps_to_limit <= 0:
                self._cut_at_limit(env_id, state[self._elapsed], step_type)
        if not self._is_exact and np.count_nonzero(cut := state[self._trunc]):
            discount[cut if self._terminated is None else cut & ~state[self._terminated]] = 1.0
        if self._stale_rewards and np.count_nonzero(step_type) != len(step_type):
            reward[step_type == StepType.FIRST] = 0.0
        observation: Any = {
            name: state[i] if dtype is None else state[i].astype(dtype)
            for name, i, dtype in self._observations
        }
        if self._single is not None:
            observation = observation[""]
        if self._check_finite:
            self._check_numbers(reward, observation, env_id, state[self._elapsed])
        env_info: Nest = ()
        if self._infos:
            env_info = {name: state[i] for name, i in self._infos}
            if "success" in env_info:
                env_info["success"] = (env_info["success"] > 0).astype(np.int8)
        return step_type, reward, discount, observation, env_id, env_info

    def _check_numbers(
        self,
        reward: npt.NDArray[Any],
        observation: Any,
        env_ids: npt.NDArray[np.int32],
        elapsed: npt.NDArray[Any],
    ) -> None:
        """Raises EnvironmentFault, with the first of the environments, unless all are finite."""
        arrays = (observation,) if self._single is not None else tuple(observation.values())
        # The sum of squares is cheap, and finite unless one of them is not, or is huge.
        total = 0.0
        for array in (reward, *arrays):
            if array.dtype.kind == "f":
                flat = array.ravel()  # `np.vdot` is a Python function around this
                total += flat.dot(flat)
        if math.isfinite(total):
            return
        names = ["observation"]
        if self._single is None:
            names = [f"observation[{name!r}]" for name in observation]
        for name, array in zip(("reward", *names), (reward, *arrays), strict=True):
            for row, env_id in enumerate(env_ids):
                what = not_finite(name, array[row])
                if what is not None:
                    self._failure = (
                        f"{self.name}: environment {env_id} (seed {self.seeds[env_id]}, step "
                        f"{elapsed[row]} of its episode): {what}"
                    )
                    raise EnvironmentFault(self._failure)

    def _cut_at_limit(
        self, env_ids: npt.NDArray[np.int32], elapsed: npt.NDArray[Any], step_type: npt.NDArray[Any]
    ) -> None:
        """Ends episodes at the limit. Their discount shows whether they truly ended."""
        at_limit = elapsed >= self._limit
        if np.count_nonzero(at_limit):
            step_type[at_limit] = StepType.LAST
            self._cut[env_ids[at_limit]] = True
            self._any_cut = bool(self._cut.any())
        if not self.is_async:  # each recv advances all environments by one step
            assert self._limit is not None
            self._steps_to_limit = self._limit - int(elapsed.max())

    def close(self) -> None:
        """See `Pool`."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()
        self._env = None


def _make(name: str, **options: Any) -> Any:
    """Returns EnvPool's pool. Raises ConfigError: EnvPool cannot make the environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return envpool().make(name, env_type="gymnasium", **options)
        except RuntimeError as error:  # ViZDoom's for some games of several players
            text = one_line(error)
            raise ConfigError(f"environment: EnvPool cannot make {name}: {text}") from error


def _merge(
    mask: npt.NDArray[Any], some: npt.NDArray[Any], rest: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    merged = np.empty((len(mask), *rest.shape[1:]), rest.dtype)
    merged[mask], merged[~mask] = some, rest
    return merged


def _cast(raw: Any, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Returns the dtype of a spec if EnvPool's own differs; None: there is nothing to cast."""
    return None if np.dtype(raw) == dtype else dtype
