"""The monitor: adds up all reports, shows progress, ends the program at its goal."""

import inspect
import json
from pathlib import Path

import launchpad as lp
from launchpad import context

from distrl.checkpointing.checkpointer import ResumePoint, note_resumed
from distrl.experiment import Experiment
from distrl.metrics import Report
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import MONITOR
from distrl.programs.program import ExperimentProgram, NodeHandle


def add_monitor(program: ExperimentProgram) -> NodeHandle:
    """Adds the monitor."""
    return program.add_courier_node(MONITOR, MonitorNode, program.run_dir, program.resume_point)


class MonitorNode:
    """Serves `Monitor`."""

    def __init__(self, experiment: Experiment, run_dir: str, resume_point: ResumePoint):
        self._stop = lp.stop_event()
        stopper = context.get_context().program_stopper

        def on_end(reason: str, reached: bool) -> None:
            print_line(reason)
            if "reason" in inspect.signature(stopper).parameters:
                stopper(reason=reason, finished=reached)
            else:  # Launchpad's own launchers take no reason
                stopper()

        self._monitor = Builder(experiment).make_monitor(on_end, Path(run_dir))
        manifest = resume_point.manifest()
        if manifest is not None:
            self._monitor.restore(manifest["monitor"])
            note_resumed(run_dir, "monitor", self._monitor.state())

    def state(self) -> str:
        """Returns `Monitor.state`, as JSON."""
        return json.dumps(self._monitor.state())

    def report(self, node: str, number: int, reports: list[Report]) -> None:
        """See `Monitor.report`."""
        self._monitor.report(node, number, reports)

    def run(self) -> None:
        """Waits for the program's end."""
        self._stop.wait()
        self._monitor.close()
