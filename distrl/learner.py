"""The learner: turns batches from the replay into parameters."""

import collections
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from distrl.agents.agent import PRIORITIES, Agent
from distrl.errors import DeadlineExceeded, Stopped
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.metrics import Report
from distrl.random_keys import derive, root
from distrl.replay.buffer import ReplayReader
from distrl.runtime.patience import Deadline, Unless
from distrl.types import Params, Sample, StepType

_LAST_BATCH_S = 1.0  # between two looks at whether there is a batch more, when acting is over


class TrainingState(NamedTuple):
    """A learner's whole state after an update. Immutable: each update makes a new one."""

    version: int  # number of updates that made the parameters
    params: Params
    agent: Any  # the agent's learner state, e.g. the optimiser's
    env_steps: int  # transitions trained on, without padding
    consumed: int  # unrolls
    waited: float  # seconds spent waiting for batches
    inserted: int = 0  # environment steps of all actors, in unrolls that the table has received
    inserts: int = 0  # the table's own count of these unrolls


class Learner:
    """Consumes a replay's batches; holds the parameters, whose version is the number of updates.

    Attributes:
      recent: the newest versions with their parameters.
      count_acted: returns the environment steps that the actors of this process have taken, which
        the processes of a learner tell each other; 0 unless replaced.
      acted_elsewhere: environment steps of the other processes, as of the last update.
    """

    def __init__(
        self,
        agent: Agent,
        replay: ReplayReader,
        *,
        seed: int,
        timeout: float = 60.0,
        keep: int = 1,
        last: int | None = None,
        max_env_steps: int | None = None,
        devices: Devices | None = None,
        learner_group: LearnerGroup | None = None,
        period: int | None = None,
    ):
        """Args:
        agent: the agent, whose `learner_step` is run.
        replay: where batches come from.
        seed: seed of the initial parameters.
        timeout: seconds to wait for a batch.
        keep: number of the newest parameters in `recent`.
        last: `run` returns at this version. None: no limit.
        max_env_steps: `run` returns when so many transitions are trained on. None: no limit.
        devices: devices that compute updates; None: JAX's default one. Readers get the parameters
          of one device.
        learner_group: all processes of the learner, each with its own replay; an update uses the
          batches of all. None: this process is the whole group. See `share` and `leave`.
        period: environment steps of one unroll that no other has. None: all its transitions.
        """
        self._agent, self._period = agent, period
        self._learner_group = learner_group or SingleProcessGroup()
        self._last = math.inf if last is None else last
        self._max_env_steps = math.inf if max_env_steps is None else max_env_steps
        self._replay = replay
        self._timeout = timeout
        self._devices = devices or Devices(1, count=1)
        self._update = self._devices.jit(agent.learner_step)
        params = jax.jit(agent.initial_params)(derive(root(seed), "params"))
        agent_state = jax.jit(agent.initial_learner_state)(params)
        if self._devices.several:
            params, agent_state = self._devices.replicate((params, agent_state))
        # Replaced as a whole at the end of an update: a reader never sees a version with other
        # parameters, and any thread can take a checkpoint at any time.
        self._state = TrainingState(0, params, agent_state, 0, 0, 0.0)
        self.recent = collections.deque([self.variables], maxlen=keep)
        self._made = threading.Condition()
        self._logs: dict[str, Any] = {}
        self._priorities: tuple[npt.NDArray[Any], jax.Array] | None = (
            None  # with keys, not sent yet
        )
        self._waited = 0.0  # since the last update
        self.count_acted: Callable[[], int] = lambda: 0
        self._acted = 0
        self.acted_elsewhere = 0
        self._lags: list[npt.NDArray[Any]] = []

    @property
    def variables(self) -> tuple[int, Params]:
        """Version and parameters."""
        version, params = self._state[:2]
        return version, self._devices.first_replica(params)

    @property
    def version(self) -> int:
        """Number of updates that made the parameters."""
        return self._state.version

    @property
    def env_steps(self) -> int:
        """Transitions trained on, without padding."""
        return self._state.env_steps

    def state(self) -> TrainingState:
        """Returns the state after the last update. Never blocks the learner; safe in any thread."""
        return self._state

    def restore(self, state: TrainingState) -> None:
        """Resumes from the state of a learner with the same agent. Not during an update.

        It lacks the priorities that the last update before it computed: those unrolls keep their
        previous ones.
        """
        params, agent = self._devices.replicate((state.params, state.agent))
        self._state = state._replace(params=params, agent=agent)
        with self._made:
            self.recent.clear()
            self.recent.append(self.variables)

    def share(self) -> None:
        """Takes process 0's state. All processes call it once, before their first update."""
        group, state = self._learner_group, self._state
        numbers = (state.version, state.env_steps, state.consumed, state.inserted)
        version, env_steps, consumed, inserted = group.agree(
            True, numbers if group.index == 0 else [0] * 4
        ).sums
        params, agent = group.broadcast((state.params, state.agent))
        self.restore(
            TrainingState(
                version, params, agent, env_steps, consumed, state.waited, inserted, state.inserts
            )
        )

    def leave(self) -> None:
        """Ends the updates of all of the learner's processes, unless they have ended already."""
        self._learner_group.leave()

    def get_variables(self, newer_than: int = -1) -> tuple[int, Params] | None:
        """See `VariableSource`. Never blocks the learner; safe in any thread."""
        return self.variables if self._state.version > newer_than else None

    def wait_for_version(self, version: int, timeout: float) -> bool:
        """Waits, in any thread; returns whether this or a newer version came within `timeout` s."""
        with self._made:
            return self._made.wait_for(lambda: self.recent[-1][0] >= version, timeout)

    @functools.cached_property
    def _dataset(self) -> Iterator[Sample]:
        """The replay's batches, each within the learner's timeout."""
        return self._replay.make_dataset(self._timeout)

    def step(self) -> None:
        """Makes one update, on the next batch.

        Raises:
          DeadlineExceeded: no batch came within the timeout.
          Stopped: the program stops, or another process of the learner ends the updates.
          PeerError: another process of the learner has ended.
        """
        began = time.monotonic()
        sample = next(self._dataset)
        self._waited += time.monotonic() - began
        self.update(sample)

    def update(self, sample: Sample) -> None:
        """Makes one update, on the given batch. Raises as `step`."""
        state, trajectory = self._state, sample.trajectory
        real = trajectory.timestep.step_type[:-1] != StepType.LAST
        env_steps, consumed = int(np.count_nonzero(real)), len(sample.key)
        # Below 0 where the table began again, or was restored from an older checkpoint.
        inserted = max(0, sample.inserts - state.inserts) * (self._period or len(real))
        acted = self.count_acted() - self._acted
        agreement = self._learner_group.agree(True, (env_steps, consumed, acted, inserted))
        if not agreement.proceed:
            raise Stopped("another process of the learner has ended the updates")
        env_steps, consumed, acted_by_all, inserted = agreement.sums
        self._acted += acted
        self.acted_elsewhere += acted_by_all - acted
        inserted += state.inserted
        params = self._agent.with_env_steps(state.params, inserted)
        params, agent_state, self._logs = self._update(
            params, state.agent, self._devices.put(trajectory)
        )
        self._state = TrainingState(
            state.version + 1,
            params,
            agent_state,
            state.env_steps + env_steps,
            state.consumed + consumed,
            state.waited + self._waited,
            inserted,
            sample.inserts,
        )
        with self._made:
            self.recent.append(self.variables)
            self._made.notify_all()
        self._waited = 0.0
        # Negative if the version was lost with an earlier life of the learner.
        self._lags.append(np.maximum(state.version - trajectory.version[:-1], 0))
        priorities = self._logs.pop(PRIORITIES, None)
        if priorities is not None and self._replay.is_prioritized:
            self._send_priorities(sample.key, priorities)

    def _send_priorities(self, keys: npt.NDArray[np.uint64], priorities: jax.Array) -> None:
        """Sends the previous update's priorities, which are computed by now: nothing has to wait.

        Those of this update may still be in progress on the device.
        """
        earlier, self._priorities = self._priorities, (keys, priorities)
        if earlier is not None:
            self._replay.update_priorities(earlier[0], self._devices.local_rows(earlier[1]))

    @property
    def is_done(self) -> bool:
        """Whether a limit of updates, or of transitions trained on, is reached."""
        return self.version >= self._last or self.env_steps >= self._max_env_steps

    def run(
        self,
        should_stop: Callable[[], bool],
        report: Callable[[Report], None],
        report_interval: float = 0.1,
        acting_over: Callable[[], bool] | None = None,
    ) -> bool:
        """Makes updates until `should_stop()`, reporting as `Actor.run` does.

        Args:
          should_stop: asked before each update.
          report: see `Actor.run`.
          report_interval: seconds between two reports.
          acting_over: returns whether all that actors will ever make is in the table; must not
            block, and is also called with the replay's lock held. None: they act as long as the
            program runs.

        Returns:
          Whether acting is over and there is no further batch.
        """
        due = time.monotonic()  # the first update is news
        used_up = False
        try:
            while not (self.is_done or used_up or should_stop()):
                if acting_over is None:
                    self.step()
                else:
                    used_up = not self._step_unless_over(acting_over)
                if time.monotonic() >= due:
                    report(self.take_report())
                    due = time.monotonic() + report_interval
        except Stopped:
            pass  # the program stops, which ended the wait for a batch
        report(self.take_report())
        return used_up

    def _step_unless_over(self, acting_over: Callable[[], bool]) -> bool:
        """As `step`, but returns False if acting is over and there is no further batch."""
        began, deadline = time.monotonic(), Deadline(self._timeout)
        while True:
            over = acting_over()  # asked first: nothing is inserted between this and the next line
            if over and not self._replay.has_more():
                return False
            limit = _LAST_BATCH_S if over else Unless(self._timeout, acting_over)
            try:
                sample = self._replay.sample(limit)
            except DeadlineExceeded:
                if deadline.left() <= 0 or not (over or acting_over()):
                    raise
            else:
                self._waited += time.monotonic() - began
                self.update(sample)
                return True

    def counts(self) -> Report:
        """Returns the totals of `take_report`, which cost nothing."""
        return {
            "learner_steps": self._state.version,
            "env_steps": self._state.env_steps,
            "unrolls": self._state.consumed,
            "seconds_waiting": round(self._state.waited + self._waited, 3),
        }

    def take_report(self) -> Report:
        """Returns totals, with the policy lag in learner steps and the logs since the last call.

        The lag of a step is the version that consumes it minus the version that chose its action.
        """
        report = self.counts()
        if self._lags:
            lags = np.concatenate([lag.ravel() for lag in self._lags])
            report["policy_lag_mean"] = float(lags.mean())
            report["policy_lag_p95"] = float(np.percentile(lags, 95))
            report["policy_lag_max"] = float(lags.max())
            self._lags = []
        report.update({name: float(value) for name, value in self._logs.items()})
        return report
