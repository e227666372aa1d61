"""Population based training: the learners of an experiment as members of its population."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from distrl import seeds
from distrl.agents.tunable import Tunable, hyperparameters, with_hyperparameters
from distrl.experiment import Experiment
from distrl.learner import Learner
from distrl.metrics.monitor import Monitor
from distrl.metrics.reports import Report
from distrl.population import RECORD, Evolution, MemberStanding, PopulationMember, drop_lost
from distrl.runtime.codec import Codec


def make_evolution(
    experiment: Experiment,
    members: Mapping[str, PopulationMember],
    run_dir: Path | None,
    printer: Callable[[str], None],
    versions: Mapping[str, int] | None,
) -> Evolution:
    """Returns the `Evolution` that compares the members of an experiment's population.

    Args:
      experiment: an experiment with a population.
      members: the members by task, in order.
      run_dir: the run folder, for the record of copies; None: no record.
      printer: takes a line for each copy.
      versions: learner steps from which the members start; None: the program has started before.
    """
    if run_dir is not None and versions is not None:
        drop_lost(run_dir / RECORD, versions)
    assert experiment.population is not None
    first = next(iter(experiment.tasks.values())).agent
    assert isinstance(first, Tunable)
    return Evolution(
        experiment.population,
        first.ranges,
        members,
        seeds.seed(experiment.seed, "population", 0),
        None if run_dir is None else run_dir / RECORD,
        printer,
    )


class LocalMember:
    """A member whose learner and monitor are in this process; its methods run between updates."""

    def __init__(self, learner: Learner, monitor: Monitor):
        """Args: learner, monitor: those of its task."""
        self._learner, self._monitor = learner, monitor
        learner.skip_any_number()

    def standing(self) -> MemberStanding:
        """See `PopulationMember`."""
        _, episodes, mean_return = self._monitor.standing
        return MemberStanding(self._learner.version, episodes, mean_return)

    def skipped_in_row(self) -> int:
        """See `PopulationMember`."""
        return self._learner.skipped_in_row

    def copy(self) -> tuple[Any, dict[str, float]]:
        """See `PopulationMember`."""
        return copy_state(self._learner)

    def adopt(self, state: Any, values: Mapping[str, float]) -> None:
        """See `PopulationMember`."""
        adopt_state(self._learner, state, values)
        self.forget_episodes()

    def forget_episodes(self) -> None:
        """See `PopulationMember`."""
        self._monitor.forget_episodes()


def copy_state(learner: Learner) -> tuple[Any, dict[str, float]]:
    """Returns a learner's parameters and agent's state as host arrays, and its hyperparameters.

    Raises:
      Diverged: they are not finite.
    """
    state = learner.state()
    learner.check(state)
    nest = jax.tree.map(np.asarray, (state.params, state.agent))
    return nest, hyperparameters(state.params)


def adopt_state(learner: Learner, state: Any, values: Mapping[str, float]) -> None:
    """Replaces a learner's parameters and agent's state, between two updates; all counts stay.

    Args:
      learner: the learner.
      state: from `copy_state` of a learner with the same agent.
      values: its new hyperparameters.
    """
    params, agent = state
    params = with_hyperparameters(params, values)
    before = learner.state()
    learner.restore(before._replace(params=params, agent=agent, adopted=before.version))


class MemberService:
    """A learner as a member, for calls from another node in any thread.

    A state that it is to adopt waits for the learner's next report, between two updates. Meanwhile
    other members already see and copy that state.
    """

    def __init__(self, learner: Learner):
        """Args: learner: the learner."""
        self._learner = learner
        learner.skip_any_number()
        state = learner.state()
        self._codec = Codec((state.params, state.agent), "state of a member")
        self._lock = threading.Lock()
        self._pending: tuple[bytes, dict[str, float]] | None = None

    def copy(self) -> tuple[bytes, dict[str, float]]:
        """Returns the state as bytes, and the hyperparameters: those that wait, if any do."""
        with self._lock:
            if self._pending is not None:
                return self._pending
            nest, values = copy_state(self._learner)
        return self._codec.pack(jax.tree.map(lambda leaf: leaf[None], nest), 1), values

    def skipped_in_row(self) -> int:
        """See `PopulationMember`; 0 if a state waits to be adopted."""
        with self._lock:
            return 0 if self._pending is not None else self._learner.skipped_in_row

    def adopt(self, data: bytes, values: Mapping[str, float]) -> None:
        """Takes the state of another member. Args: data: see `copy`. values: hyperparameters."""
        self._codec.check(len(data), 1)
        with self._lock:
            self._pending = data, dict(values)

    def between_updates(self) -> None:
        """Adopts the state that waits, if any; called by the learner's own thread."""
        with self._lock:  # until it is done: a copy made meanwhile would be of the old state
            if self._pending is None:
                return
            data, values = self._pending
            state = jax.tree.map(lambda leaf: leaf[0], self._codec.unpack(data, 1))
            adopt_state(self._learner, state, values)
            self._pending = None


class MemberCalls:
    """The calls of a node whose learners are members; see `MemberService`."""

    _members: dict[str, MemberService]

    def serve_members(self, experiment: Experiment, parts: Mapping[str, Any]) -> None:
        """Serves a node's learners by task, if the experiment has a population.

        Args:
          experiment: what to train.
          parts: each with a `turn`, whose learner is the member; it adopts before its reports.
        """
        self._members = {}
        if experiment.population is None:
            return
        for task, part in parts.items():
            member = self._members[task] = MemberService(part.turn.learner)

            def report(
                report: Report, member: MemberService = member, send: Any = part.turn.report
            ) -> None:
                member.between_updates()
                send(report)

            part.turn = part.turn._replace(report=report)

    def copy_member(self, task: str) -> tuple[bytes, dict[str, float]]:
        """See `MemberService.copy`."""
        return self._members[task].copy()

    def skipped_in_row(self, task: str) -> int:
        """See `MemberService.skipped_in_row`."""
        return self._members[task].skipped_in_row()

    def adopt_member(self, data: bytes, values: dict[str, float], task: str) -> None:
        """See `MemberService.adopt`."""
        self._members[task].adopt(data, values)
