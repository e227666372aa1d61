"""The node that compares the members of a population, and makes the worst copy the best."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distrl.experiment import Experiment
from distrl.population import MemberStanding
from distrl.programs.build import print_line
from distrl.programs.groups import POPULATION
from distrl.programs.nodes.time_reports import TimeReports, thread_times
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import Peer, stop_and_tick
from distrl.programs.running.population import make_evolution
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.time_account import IDLE, in_state

_POLL_S = 0.2  # between two looks at the members


def add_population(
    program: ExperimentProgram, learners: Mapping[str, NodeHandle], monitor: NodeHandle
) -> None:
    """Adds the node, if the experiment has a population."""
    if program.experiment.population is None:
        return
    manifests = {task: program.resume_point.of_task(task).manifest() or {} for task in learners}
    program.add_call_node(
        POPULATION,
        PopulationNode,
        program.run_dir,
        dict(learners),
        monitor,
        {task: manifest.get("version", 0) for task, manifest in manifests.items()},
    )


class PopulationNode:
    """Runs an `Evolution` over the learners."""

    def __init__(
        self,
        experiment: Experiment,
        run_dir: str,
        learners: Mapping[str, NodeHandle],
        monitor: NodeHandle,
        versions: Mapping[str, int],
    ):
        """Args: versions: learner steps of the tasks at the start. Others: see `add_population`."""
        self._stop = node_context.stop_event()
        peer = Peer(monitor)
        members = {
            task: RemoteMember(task, Peer(learner), peer) for task, learner in learners.items()
        }
        self._evolution = make_evolution(
            experiment,
            members,
            Path(run_dir),
            print_line,
            None if current_heartbeat().restarted else versions,
        )
        first = next(iter(experiment.tasks))
        self._times = TimeReports(monitor, first, f"{POPULATION.name}/0", thread_times)

    def run(self) -> None:
        """Compares members until the program stops."""
        should_stop = stop_and_tick(self._stop)
        while not should_stop():
            self._evolution.run_once()
            self._times.send_if_due()
            with in_state(IDLE):
                self._stop.wait(_POLL_S)


class RemoteMember:
    """A member whose learner and monitor are nodes."""

    def __init__(self, task: str, learner: Peer, monitor: Peer):
        """Args: task: the member's task. learner, monitor: the task's nodes."""
        self._task, self._learner, self._monitor = task, learner, monitor

    def standing(self) -> MemberStanding:
        """See `PopulationMember`."""
        return MemberStanding(*self._monitor.standing(self._task))

    def skipped_in_row(self) -> int:
        """See `PopulationMember`."""
        return self._learner.skipped_in_row(self._task)

    def copy(self) -> tuple[Any, dict[str, float]]:
        """See `PopulationMember`."""
        state, values = self._learner.copy_member(self._task)
        return state, values

    def adopt(self, state: Any, values: Mapping[str, float]) -> None:
        """See `PopulationMember`."""
        self._learner.adopt_member(state, dict(values), self._task)
        self.forget_episodes()

    def forget_episodes(self) -> None:
        """See `PopulationMember`."""
        self._monitor.forget_episodes(self._task)
