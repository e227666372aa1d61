"""Steps environments and writes their steps into slots, in a thread or a process."""

import time
import traceback
from typing import Any

from distrl.envs.adapters.conform import NestCheck, RewardCheck, check_first, check_last
from distrl.envs.adapters.stepper import Stepper
from distrl.envs.pools.slots import BUSY, DONE, ENV, STARTED, PoolSlots
from distrl.errors import SpecError
from distrl.types import StepType

_MID = StepType.MID

Outcome = Any
"""The outcome of a step: `(step_type, reward, discount, observation leaves, info leaves)`, checked
against their specs, or the text of a fault."""


class _Running:
    """A built environment."""

    __slots__ = ("ended", "stepper")

    def __init__(self, stepper: Stepper):
        self.stepper = stepper
        self.ended = True


class Worker:
    """Holds environments by id, builds each one on first use, and steps them.

    All code of an environment runs in `advance` and `close`. If it misbehaves there, the outcome is
    the text of a fault, and the environment is closed and dropped, so that the next `advance`
    rebuilds it.
    """

    def __init__(
        self,
        environment: Any,
        slots: PoolSlots,
        index: int = 0,
        catch: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
    ):
        """Args:
        environment: a PythonEnvironment: its name, spec, `make_stepper` and pool settings.
        slots: the pool's slots.
        index: this worker's index, its row in the slots' counters.
        catch: exceptions that count as faults of an environment; others propagate.
        """
        spec, check_finite = environment.spec(), environment.pool.check_finite
        self._environment = environment
        self._slots = slots
        self._catch = catch
        self._num_envs = slots.num_envs
        self._observation = NestCheck("observation", spec.observation, check_finite)
        self._info = NestCheck("env_info", spec.env_info, check_finite)
        self._reward = RewardCheck(spec.reward, check_finite)
        self._single_action = len(slots.action) == 1 and slots.action_nest(["leaf"]) == "leaf"
        # Writing one number to a memory view takes half the time of an array.
        view: Any = memoryview
        self._counters = view(slots.counters[index])
        self._times = view(slots.times[index])
        self._closing = view(slots.closing)
        self._episode_steps = view(slots.episode_steps)
        self._steps = view(slots.steps)
        self.error: BaseException | None = None  # the last one raised by an environment
        self._done, self._busy = 0, 0.0  # not yet added to the slots'
        self._envs: dict[int, _Running] = {}

    def run(self, row: int) -> int:
        """Steps the environment of `row` and writes its step there; see `commit`."""
        return self.commit(row, self.advance(row))

    def advance(self, row: int) -> Outcome:
        """Steps the environment of `row`, or resets it if its episode has ended; writes no row."""
        env_id = row if row < self._num_envs else row - self._num_envs
        began = time.monotonic()
        self._times[STARTED] = began
        self._counters[ENV] = env_id
        env = self._envs.get(env_id)
        try:
            if env is None:
                env = self._build(env_id)
            if env.ended:
                self._episode_steps[env_id] = 0
                step = env.stepper.reset()
            else:
                self._episode_steps[env_id] += 1
                self._steps[env_id] += 1
                step = env.stepper.step(self._action(env_id))
            self._busy += time.monotonic() - began
            self._done += 1
            kind, discount = step.step_type, step.discount
            observation = self._observation(step.observation)
            info = self._info(step.env_info)
            if env.ended:
                check_first(kind)
                env.ended = False
                return kind, 0.0, 1.0, observation, info
            if discount != 1 or kind != _MID:
                check_last(kind, discount)
                env.ended = True
            return kind, self._reward(step.reward), discount, observation, info
        except SpecError as violation:
            return self._fault(env_id, env, str(violation))
        except self._catch as error:
            self.error = error
            trace = error.__traceback__
            frames = trace.tb_next if trace is not None and trace.tb_next is not None else trace
            lines = traceback.format_exception(type(error), error, frames)
            what = "building it" if env is None else "reset()" if env.ended else "step()"
            title = "".join(traceback.format_exception_only(type(error), error)).strip()
            return self._fault(env_id, env, f"{what} raised {title}\n{''.join(lines)}".rstrip())

    def commit(self, row: int, outcome: Outcome) -> int:
        """Writes the outcome of `advance`; runs no code of the environment.

        Returns:
          `row`; or `-1 - row` if it holds no step because of a fault, whose text is in the slots.
        """
        slots = self._slots
        if type(outcome) is str:
            slots.write_fault(row % self._num_envs, outcome)
            return -1 - row
        kind, reward, discount, observation, info = outcome
        for table, array in zip(slots.observation, observation):
            table[row] = array
        for table, array in zip(slots.env_info, info):
            table[row] = array
        slots.reward[row] = reward
        slots.discount[row] = discount
        slots.step_type[row] = kind
        return row

    def idle(self) -> None:
        """Records that no environment's code is running, and the time that it took."""
        self._counters[ENV] = -1
        self._counters[DONE] += self._done
        self._times[BUSY] += self._busy
        self._done, self._busy = 0, 0.0

    @property
    def closing(self) -> bool:
        """Whether the pool is closing, so that no step should start."""
        return self._closing[0] != 0

    def take_environments(self, but: int) -> dict[int, Any]:
        """Removes and returns all environments but one, for another worker's `adopt`."""
        given = {env_id: env for env_id, env in self._envs.items() if env_id != but}
        self._envs = {but: self._envs[but]} if but in self._envs else {}
        return given

    def adopt(self, given: dict[int, Any]) -> None:
        """Takes over the environments from another worker's `take_environments`."""
        self._envs.update(given)

    def close(self) -> list[str]:
        """Closes all environments; returns a text for each exception that was raised."""
        errors = []
        for env_id in list(self._envs):
            try:
                self._envs.pop(env_id).stepper.close()
            except self._catch:
                errors.append(
                    f"{self._slots.where(env_id)}: closing it raised\n{traceback.format_exc()}"
                )
        return errors

    def _build(self, env_id: int) -> _Running:
        self._episode_steps[env_id] = self._steps[env_id] = 0
        env = _Running(self._environment.make_stepper(self._slots.seed(env_id)))
        self._envs[env_id] = env
        return env

    def _action(self, env_id: int) -> Any:
        """Returns a copy of an environment's action, which it may keep while the slot changes."""
        leaves = [leaf[env_id] if leaf.ndim == 1 else leaf[env_id].copy()
                  for leaf in self._slots.action]  # fmt: skip
        return leaves[0] if self._single_action else self._slots.action_nest(leaves)

    def _fault(self, env_id: int, env: _Running | None, what: str) -> str:
        """Returns the message of a fault, after closing and dropping the environment."""
        text = f"{self._slots.where(env_id)}: {what}"
        self._envs.pop(env_id, None)
        if env is not None:
            try:
                env.stepper.close()
            except self._catch:
                text += f"\nClosing it then raised\n{traceback.format_exc()}".rstrip()
        return text
