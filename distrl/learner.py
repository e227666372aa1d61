"""The learner: replay -> parameters."""

import collections
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from distrl.agents.agent import PRIORITIES, Agent
from distrl.errors import Stopped
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.metrics import Report
from distrl.replay.buffer import ReplayReader
from distrl.types import Params, Sample, StepType


class LearnerState(NamedTuple):
    """All that a learner is after an update. Never changed: another one takes its place."""

    version: int  # of the parameters: how many updates made them
    params: Params
    agent: Any  # the agent's learner state: of its optimiser and the like
    env_steps: int  # real transitions trained on
    consumed: int  # unrolls
    waited: float  # seconds, for samples


class Learner:
    """Consumes a replay's samples; holds the parameters, whose version is its count of steps."""

    def __init__(
        self,
        agent: Agent,
        replay: ReplayReader,
        *,
        seed: int,
        timeout: float = 60.0,
        keep: int = 1,
        last: int | None = None,
        devices: Devices | None = None,
        learner_group: LearnerGroup | None = None,
    ):
        """Args:
        agent: whose `learner_step` is run.
        replay: where samples come from.
        seed: of the initial parameters.
        timeout: seconds to wait for a sample.
        keep: so many of the newest parameters are in `recent`.
        last: the version after which `run` makes no more; None: it goes on.
        devices: that updates are computed on; None: JAX's default one.
        learner_group: all processes of the learner, each with its own replay; an update is made of
          the samples of all. None: this process is the whole group. See `share` and `leave`.

        Readers get the parameters of one device.
        """
        self._learner_group = learner_group or SingleProcessGroup()
        self._last = last
        self._replay = replay
        self._timeout = timeout
        self._devices = devices or Devices(1, count=1)
        self._update = self._devices.jit(agent.learner_step)
        params = jax.jit(agent.initial_params)(jax.random.PRNGKey(seed))
        agent_state = jax.jit(agent.initial_learner_state)(params)
        if self._devices.several:
            params, agent_state = self._devices.replicate((params, agent_state))
        # Replaced at once, at the end of an update: a reader never sees the version of other
        # parameters, and a checkpoint can be taken in any thread at any moment.
        self._state = LearnerState(0, params, agent_state, 0, 0, 0.0)
        self.recent = collections.deque([self.variables], maxlen=keep)
        self._made = threading.Condition()
        self._logs: dict[str, Any] = {}
        self._priorities: tuple[np.ndarray, jax.Array] | None = None  # not sent yet, with keys
        self._waited = 0.0  # since the last update
        self._lags: list[np.ndarray] = []

    @property
    def variables(self) -> tuple[int, Params]:
        """The version and the parameters."""
        version, params = self._state[:2]
        return version, self._devices.one(params)

    @property
    def version(self) -> int:
        """Of the parameters: how many updates made them."""
        return self._state.version

    @property
    def env_steps(self) -> int:
        """Real transitions trained on."""
        return self._state.env_steps

    def state(self) -> LearnerState:
        """As it is after the last update. Never blocks the learner; safe in any thread."""
        return self._state

    def restore(self, state: LearnerState) -> None:
        """Goes on from `state`, of a learner with the same agent. Not during an update.

        The priorities that the last update before it found are not part of it: those unrolls keep
        the ones that they had.
        """
        params, agent = self._devices.replicate((state.params, state.agent))
        self._state = state._replace(params=params, agent=agent)
        with self._made:
            self.recent.clear()
            self.recent.append(self.variables)

    def share(self) -> None:
        """Takes process 0's state. All processes call it once, before their first update."""
        group, state = self._learner_group, self._state
        numbers = (state.version, state.env_steps, state.consumed)
        version, env_steps, consumed = group.agree(
            True, numbers if group.index == 0 else [0] * 3
        ).sums
        params, agent = group.broadcast((state.params, state.agent))
        self.restore(LearnerState(version, params, agent, env_steps, consumed, state.waited))

    def leave(self) -> None:
        """Ends the updates of all of the learner's processes, unless they have ended already."""
        self._learner_group.leave()

    def get_variables(self, newer_than: int = -1) -> tuple[int, Params] | None:
        """See `VariableSource`. Never blocks the learner; safe in any thread."""
        return self.variables if self._state.version > newer_than else None

    def wait_for_version(self, version: int, timeout: float) -> bool:
        """True as soon as there are parameters of this version, or newer ones; in any thread."""
        with self._made:
            return self._made.wait_for(lambda: self.recent[-1][0] >= version, timeout)

    @functools.cached_property
    def _dataset(self) -> Iterator[Sample]:
        """The replay's batches, each with the learner's timeout."""
        return self._replay.make_dataset(self._timeout)

    def step(self) -> None:
        """One update, on one sample.

        Raises:
          DeadlineExceeded: no sample within the timeout.
          Stopped: the program stops, or another process of the learner ends the updates.
          PeerError: another process of the learner has ended.
        """
        began = time.monotonic()
        sample = next(self._dataset)
        self._waited += time.monotonic() - began
        self.update(sample)

    def update(self, sample: Sample) -> None:
        """One update, on the sample given. Raises as `step`."""
        state, trajectory = self._state, sample.trajectory
        real = trajectory.timestep.step_type[:-1] != StepType.LAST
        env_steps, consumed = int(np.count_nonzero(real)), len(sample.key)
        agreement = self._learner_group.agree(True, (env_steps, consumed))
        if not agreement.proceed:
            raise Stopped("another process of the learner has ended the updates")
        env_steps, consumed = agreement.sums
        params, agent_state, self._logs = self._update(
            state.params, state.agent, self._devices.put(trajectory)
        )
        self._state = LearnerState(
            state.version + 1,
            params,
            agent_state,
            state.env_steps + env_steps,
            state.consumed + consumed,
            state.waited + self._waited,
        )
        with self._made:
            self.recent.append(self.variables)
            self._made.notify_all()
        self._waited = 0.0
        # Below 0: chosen by updates that were lost with an earlier life of the learner.
        self._lags.append(np.maximum(state.version - trajectory.version[:-1], 0))
        priorities = self._logs.pop(PRIORITIES, None)
        if priorities is not None and self._replay.is_prioritized:
            self._send_priorities(sample.key, priorities)

    def _send_priorities(self, keys: np.ndarray, priorities: jax.Array) -> None:
        """Sends those of the update before: they are computed by now, and nothing waits for them.

        Those of this one may still be on their way through the device.
        """
        earlier, self._priorities = self._priorities, (keys, priorities)
        if earlier is not None:
            self._replay.update_priorities(earlier[0], self._devices.own(earlier[1]))

    def run(
        self,
        should_stop: Callable[[], bool],
        report: Callable[[Report], None],
        report_interval: float = 0.1,
    ) -> None:
        """Updates until `should_stop()`, reporting as `Actor.run` does."""
        due = time.monotonic()  # the first update is news
        try:
            while self.version != self._last and not should_stop():
                self.step()
                if time.monotonic() >= due:
                    report(self.take_report())
                    due = time.monotonic() + report_interval
        except Stopped:
            pass  # the wait for a sample ended because the program stops: that is the end of run
        report(self.take_report())

    def take_report(self) -> Report:
        """Totals, and the policy lag (in learner steps) and logs of what came since the last call.

        The lag of a step is the version that consumes it less the version that chose its action.
        """
        report: Report = {
            "learner_steps": self._state.version,
            "env_steps": self._state.env_steps,
            "unrolls": self._state.consumed,
            "seconds_waiting": round(self._state.waited + self._waited, 3),
        }
        if self._lags:
            lags = np.concatenate([lag.ravel() for lag in self._lags])
            report["policy_lag_mean"] = float(lags.mean())
            report["policy_lag_p95"] = float(np.percentile(lags, 95))
            report["policy_lag_max"] = float(lags.max())
            self._lags = []
        report.update({name: float(value) for name, value in self._logs.items()})
        return report
