"""The relay of a host: passes the learner's parameters on to the host's actors."""

import launchpad as lp

from distrl.experiment import Experiment
from distrl.programs.build import print_line
from distrl.programs.groups import RELAY
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import Peer
from distrl.runtime.heartbeat import current_heartbeat
from distrl.variables import VariableRelay


def add_relay(program: ExperimentProgram, learner: NodeHandle) -> NodeHandle:
    """Adds a relay of a learner's parameters."""
    return program.add_courier_node(RELAY, RelayNode, learner)


class RelayNode:
    """Serves `VariableRelay`."""

    def __init__(self, experiment: Experiment, learner: NodeHandle):
        """Args: experiment: unused. learner: where the parameters come from."""
        del experiment
        current_heartbeat().tick()
        self._stop = lp.stop_event()
        self._relay = VariableRelay(Peer(learner))

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """See `VariableRelay.get_variables`."""
        return self._relay.get_variables(newer_than)

    def run(self) -> None:
        """Serves until the program stops."""
        current_heartbeat().wait()
        self._stop.wait()
        print_line(f"fetched {self._relay.fetched} versions of {self._relay.size} bytes")
