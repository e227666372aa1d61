"""The relay of a host: passes the learner's parameters on to the host's actors."""

import functools
import threading

from distrl.experiment import Experiment
from distrl.programs.build import print_line
from distrl.programs.groups import RELAY
from distrl.programs.nodes.process import owner_of_files
from distrl.programs.nodes.time_reports import TimeReports, account_of_process
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import TaskVariables
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import current_heartbeat
from distrl.shared_memory.board import Board
from distrl.shared_memory.published import PublishedVersions
from distrl.variables.frames import FrameVariableClient
from distrl.variables.packed import Packed
from distrl.variables.relay import RELAY_S, VariableRelay


def add_relay(
    program: ExperimentProgram, task: str, learner: NodeHandle, monitor: NodeHandle
) -> NodeHandle:
    """Adds a relay of a task's parameters, which reports what it spends its time on."""
    index = len(program.program.groups.get(RELAY.name, ()))
    return program.add_call_node(
        RELAY, RelayNode, index, task, program.unique_name, learner, monitor
    )


def _with_frames(learner: NodeHandle, stop: threading.Event) -> NodeHandle:
    """Returns a learner that is asked by frames, if it serves them."""
    if learner.served is None:
        return learner
    assert learner.timeout is not None
    address = learner.served.address.resolve()
    client = FrameVariableClient(address, learner.served.key, learner.timeout, stop)
    node_context.manager().on_close(client.close)
    return learner._replace(client=client)


class RelayNode:
    """Serves `VariableRelay`."""

    def __init__(
        self,
        experiment: Experiment,
        index: int,
        task: str,
        unique_name: str,
        learner: NodeHandle,
        monitor: NodeHandle,
    ):
        """Args:
        experiment: unused.
        index: index of the relay.
        task: name of the task.
        unique_name: the program's unique name.
        learner: where its parameters come from.
        monitor: takes reports.
        """
        del experiment
        current_heartbeat().tick()
        self._stop = node_context.stop_event()
        name = f"{RELAY.name}/{index}"
        files = f"{task}-{unique_name}-relay-{index}", owner_of_files()
        self._relay = VariableRelay(
            TaskVariables(_with_frames(learner, self._stop), task),
            files=PublishedVersions(*files),
            make_board=functools.partial(Board.create, *files),
        )
        self._times = TimeReports(monitor, task, name, account_of_process())

    def get_variables(
        self, newer_than: int, task: str, reader_domain: str = ""
    ) -> tuple[int, Packed] | None:
        """See `VariableRelay.get_variables`. Args: task: the relay's; it has one."""
        del task
        return self._relay.get_variables(newer_than, reader_domain)

    def run(self) -> None:
        """Serves until the program stops."""
        current_heartbeat().wait()
        try:
            while not self._stop.wait(RELAY_S):
                self._relay.refresh()
                self._times.send_if_due()
        finally:
            self._relay.close()
        print_line(f"fetched {self._relay.fetched} versions of {self._relay.size} bytes")
