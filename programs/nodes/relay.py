"""The relay of a host: passes the learner's parameters on to the host's actors."""

import launchpad as lp

from distrl.experiment import Experiment
from distrl.programs.build import print_line
from distrl.programs.groups import RELAY
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import TaskVariables
from distrl.runtime.heartbeat import current_heartbeat
from distrl.variables import VariableRelay


def add_relay(program: ExperimentProgram, task: str, learner: NodeHandle) -> NodeHandle:
    """Adds a relay of a task's parameters."""
    return program.add_courier_node(RELAY, RelayNode, task, learner)


class RelayNode:
    """Serves `VariableRelay`."""

    def __init__(self, experiment: Experiment, task: str, learner: NodeHandle):
        """Args: experiment: unused. task: its name. learner: where its parameters come from."""
        del experiment
        current_heartbeat().tick()
        self._stop = lp.stop_event()
        self._relay = VariableRelay(TaskVariables(learner, task))

    def get_variables(self, newer_than: int, task: str) -> tuple[int, bytes] | None:
        """See `VariableRelay.get_variables`. Args: task: the relay's; it has one."""
        del task
        return self._relay.get_variables(newer_than)

    def run(self) -> None:
        """Serves until the program stops."""
        current_heartbeat().wait()
        self._stop.wait()
        print_line(f"fetched {self._relay.fetched} versions of {self._relay.size} bytes")
