"""The learner: turns batches from the replay into parameters."""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distrl.agents.agent import PRIORITIES, Agent, Logs
from distrl.agents.compiling import update_options
from distrl.errors import Diverged, Stopped
from distrl.gradients.update import SplitUpdate
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
from distrl.learning.agent_logs import scalars
from distrl.learning.compile_ahead import CompileAhead
from distrl.learning.divergence import FAIL, UpdateCheck
from distrl.learning.finite_params import FiniteParams
from distrl.learning.inserted_steps import InsertedSteps
from distrl.learning.late_priorities import LatePriorities
from distrl.learning.learner_loop import LearnerLoop
from distrl.learning.policy_lag import PolicyLags
from distrl.learning.training_state import TrainingState, make_learner_state, make_params
from distrl.metrics.reports import Report
from distrl.replay.age_bound import AgeBound
from distrl.replay.buffer import ReplayReader
from distrl.runtime.time_account import COMPUTE, PUBLISH, TRANSFER, current_account, in_state
from distrl.types import Params, Sample, StepType, Trajectory


class Learner(LearnerLoop):
    """Consumes a replay's batches; holds the parameters, whose version is the number of updates.

    Attributes:
      count_acted: returns the environment steps that the actors of this process have taken, and
        the episodes that have ended, which a learner's processes exchange; 0 unless replaced.
      acted_elsewhere: both counts of the other processes, as of the last update.
      on_update: called after each update with the version, the transitions trained on, the logs and
        the parameters, on one device; None: nothing is called.
      published, waited, drops_when_done: see `LearnerLoop`.
      ahead: the update's compilation, until the first one.
      while_computing: a context that is entered for each update's computation.
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
        max_trained_steps: int | None = None,
        devices: Devices | None = None,
        learner_group: LearnerGroup | None = None,
        period: int | None = None,
        on_nonfinite: str = FAIL,
        max_policy_lag: int | None = None,
        own_actions: bool = True,
        split_update: SplitUpdate | None = None,
        policy: str = "",
    ):
        """Args:
        agent: the agent, whose `learner_step` is run.
        replay: gives the batches.
        seed: seed of the initial parameters.
        timeout: seconds to wait for a batch.
        keep: number of the newest parameters in `published`.
        last: `run` returns at this version. None: no limit.
        max_trained_steps: `run` returns when so many transitions are trained on. None: no limit.
        devices: devices that compute updates; None: JAX's default one. Readers get the parameters
          of one device.
        learner_group: all processes of the learner, each with its own replay; an update uses the
          batches of all. None: this process is the whole group. See `share` and `leave`.
        period: environment steps of an unroll that are in no other. None: all its transitions.
        on_nonfinite, max_policy_lag: see `LearnerConfig`.
        own_actions: whether its own parameters act; otherwise data has no policy lag.
        split_update: makes the updates, with gradients from workers. None: they are computed here.
        policy: the policy's name, for messages. "": there is one policy.
        """
        self._agent, self._period, self._own_actions = agent, period, own_actions
        self._learner_group = learner_group or SingleProcessGroup()
        self._last = math.inf if last is None else last
        self._max_trained_steps = math.inf if max_trained_steps is None else max_trained_steps
        self._age_bound: AgeBound | None = None
        if max_policy_lag is not None:
            replay = self._age_bound = AgeBound(replay, max_policy_lag, lambda: self.version)
        self._replay, self._timeout = replay, timeout
        self._devices = devices or Devices(1, count=1)
        params = make_params(agent, seed)
        agent_state = make_learner_state(agent, params)
        what = f"training of policy {policy!r}" if policy else "training"
        self._check = UpdateCheck(params, agent_state, on_nonfinite, what)
        self._split_update = split_update
        if split_update is None:
            update = self._check.checked(agent.learner_step)
            self._update: Callable[..., Any] = self._devices.jit(update, update_options(agent))
        else:
            self._update = split_update.checked(self._check.checked)
        if self._devices.several:
            params, agent_state = self._devices.replicate((params, agent_state))
        # Replaced as a whole after an update, so that any thread can save it at any time.
        self._state = TrainingState(0, params, agent_state, 0, 0, 0.0)
        self.published = FiniteParams(self._check, keep)
        self._renew_record()
        self._diverged: Diverged | None = None  # set as soon as it is known
        self._left, self.waited = False, 0.0
        self._logs: dict[str, Any] = {}
        self._priorities = LatePriorities(replay, self._devices)
        self.count_acted: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.on_update: Callable[[int, int, Mapping[str, Any], Params], None] | None = None
        self._acted = self.acted_elsewhere = (0, 0)
        self.while_computing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self.ahead: CompileAhead | None = None
        self._lags, self._inserted = PolicyLags(), InsertedSteps()

    def compile_ahead(self, batch: Trajectory) -> None:
        """Begins to compile the update in another thread, for batches of these shapes."""
        if not self._devices.several:  # with several, arrays are placed: other arguments for JAX
            self.ahead = CompileAhead(self._update, *self._arguments(self._state.inserted), batch)

    @property
    def variables(self) -> tuple[int, Params]:
        """Version and parameters: the newest, or the last ones known to be finite."""
        return self.published.current()

    @property
    def version(self) -> int:
        """Number of updates that made the parameters."""
        return self._state.version

    @property
    def trained_steps(self) -> int:
        """Transitions trained on, without padding."""
        return self._state.trained_steps

    def state(self) -> TrainingState:
        """Returns the state after the last update. Never blocks the learner; safe in any thread."""
        return self._state

    def unshared_state(self) -> TrainingState:
        """As `state`, without what tasks that share parameters have changed in them since."""
        return self.state()

    def restore(self, state: TrainingState) -> None:
        """Resumes from the finite state of a learner with the same agent. Not during an update.

        The state lacks the priorities that its last update computed: those unrolls keep their
        previous ones.
        """
        params, agent = self._devices.replicate((state.params, state.agent))
        self._state = state._replace(params=params, agent=agent)
        self._inserted.restart(state.inserted)
        if self._age_bound is not None:
            self._age_bound.dropped = state.too_old
        self._renew_record()

    def _renew_record(self) -> None:
        """Begins a new record of the updates' check at the current state, which is finite."""
        version, params = self._state[:2]
        record = self._devices.replicate(self._check.renewed(self._state.record, version))
        self._state = self._state._replace(record=record)
        self.published.restart(version, *self._devices.first_replica((params, record)))

    def check(self, state: TrainingState) -> None:
        """Raises Diverged if a state from `state` is not finite. Safe in any thread."""
        if self._diverged is not None:
            raise self._diverged
        self._check.check_state(*state[:3])

    @property
    def skipped_in_row(self) -> int:
        """Updates skipped since the last that was not; waits for the newest. Safe in any thread."""
        return self._check.skipped_in_row(self.published.record)

    def skip_any_number(self) -> None:
        """Lets any number of consecutive skipped updates pass: others will change its state."""
        self._check.most_in_row = None

    def share(self) -> None:
        """Takes process 0's state. All processes call it once, before their first update."""
        group, state = self._learner_group, self.unshared_state()
        totals = state.version, state.trained_steps, state.consumed, state.inserted
        sums = group.agree(True, totals if group.index == 0 else [0] * 4).sums
        names = "version", "trained_steps", "consumed", "inserted"
        params, agent, record = group.broadcast((state.params, state.agent, state.record))
        counted = state._replace(**dict(zip(names, sums, strict=True)))
        self.restore(counted._replace(params=params, agent=agent, record=record))

    def leave(self) -> None:
        """Ends the updates of all of the learner's processes, unless they have ended already."""
        self._learner_group.leave()
        self._left = True

    def get_variables(self, newer_than: int = -1) -> tuple[int, Params] | None:
        """See `VariableSource` and `FiniteParams`. Never blocks the learner; safe in any thread."""
        return self.published.get(newer_than)

    def update(self, sample: Sample) -> None:
        """Makes one update on the given batch. Raises what `step` does."""
        params = self._make_update(sample)
        if self.on_update is not None:
            self.on_update(self.version, self.trained_steps, self._last_logs(), params)

    def _make_update(self, sample: Sample) -> Params:
        """Makes one update on the given batch; returns the parameters, on one device."""
        state, trajectory = self._state, sample.trajectory
        real = trajectory.timestep.step_type[:-1] != StepType.LAST
        trained_steps, consumed = int(np.count_nonzero(real)), len(sample.key)
        # Below 0 where the table was restored from an older checkpoint.
        inserted = max(0, sample.inserts - state.inserts) * (self._period or len(real))
        acted = self.count_acted()
        new = [now - before for now, before in zip(acted, self._acted)]
        shown = self._inserted.shown(sample.key, real, self._priorities.wanted)
        counts = (trained_steps, consumed, inserted, int(self._diverged is not None), *shown, *new)
        agreement = self._learner_group.agree(True, counts)
        if not agreement.proceed:
            raise Stopped("another process of the learner has ended the updates")
        trained_steps, consumed, inserted, diverged, rows, steps, *by_all = agreement.sums
        if diverged:  # all processes end here, whichever of them has looked
            self._look()
        self._acted, elsewhere = acted, self.acted_elsewhere
        self.acted_elsewhere = elsewhere[0] + by_all[0] - new[0], elsewhere[1] + by_all[1] - new[1]
        self._inserted.add(inserted, rows, steps)
        before = (account := current_account()).switch(TRANSFER)
        batch = self._batch(sample)
        account.switch(COMPUTE)
        self._await_compilation()
        arguments = self._arguments(self._inserted.total)
        with self.while_computing:
            made = self._update(*arguments, batch)
        params, agent_state, record, self._logs = self._results(made)
        self._state = TrainingState(
            state.version + 1,
            params,
            agent_state,
            state.trained_steps + trained_steps,
            state.consumed + consumed,
            state.waited + self.waited,
            self._inserted.total,
            sample.inserts,
            state.too_old if self._age_bound is None else self._age_bound.dropped,
            record,
            state.adopted,
        )
        account.switch(PUBLISH)
        made = self._devices.first_replica((params, record))
        self.published.append(self._state.version, *made)
        account.switch(before)
        self.waited = 0.0
        if self._own_actions:
            self._lags.add(state.version, trajectory, real)
        self._priorities.update(sample.key, self._logs.pop(PRIORITIES, None))
        return made[0]

    def _arguments(self, env_steps: int) -> tuple[Any, ...]:
        """Returns what the update takes before the batch. Args: env_steps: of all actors so far."""
        params, agent_state = self._state[1:3]
        return self._agent.with_env_steps(params, env_steps), agent_state, self._state.record

    def _batch(self, sample: Sample) -> Any:
        """Returns what the update takes as its batch."""
        return self._devices.put(sample.trajectory)

    def _results(self, made: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns parameters, learner state, record and logs. Args: made: what the update made."""
        return made

    def _last_logs(self) -> Logs:
        """Returns the logs of the last update, without priorities."""
        return self._logs

    def _await_compilation(self) -> None:
        if self.ahead is not None:
            self.ahead.wait("first unrolls")
            self.ahead = None

    def _look(self) -> None:
        """Raises Diverged if the updates up to now end training."""
        self._diverged = self._diverged or self._check.error(self.published.record)
        if self._diverged is not None:
            raise self._diverged

    @property
    def is_done(self) -> bool:
        """Whether a limit of updates, or of transitions trained on, is reached."""
        return self.version >= self._last or self.trained_steps >= self._max_trained_steps

    def counts(self) -> Report:
        """Returns those totals of `take_report` that cost nothing to get."""
        report: Report = {
            "learner_steps": self._state.version,
            "trained_steps": self._state.trained_steps,
            "unrolls": self._state.consumed,
            "seconds_waiting": round(self._state.waited + self.waited, 3),
        }
        if self._age_bound is not None:
            report["unrolls_too_old"] = self._age_bound.dropped
        return report

    def take_report(self) -> Report:
        """Returns totals, with the policy lag in learner steps and the logs since the last call.

        The lag of a step is the version that consumes it minus the version that chose its action.

        Raises:
          Diverged: see `step`; one of several processes raises it at the next update, as all do.
        """
        with in_state(COMPUTE):  # waits for updates that a device has not finished
            record = np.asarray(self.published.record)
        self._diverged = self._check.error(record)
        if self._left or self._learner_group.count == 1:
            self._look()
        report = self.counts() | self._lags.take()
        if self._check.skips:
            report["updates_skipped"] = self._check.skipped(record)
        if self._split_update is not None:
            report.update(self._split_update.report())
        report.update(scalars(self._last_logs(), report))
        return report
