"""The monitor: adds up all reports, shows progress, ends the program at its goals."""

import functools
import inspect
import json
from pathlib import Path

import launchpad as lp
from launchpad import context

from distrl.checkpointing.resume_point import ResumePoint, note_resumed
from distrl.experiment import Experiment
from distrl.metrics import Report
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import MONITOR
from distrl.programs.program import ExperimentProgram, NodeHandle


def add_monitor(program: ExperimentProgram) -> NodeHandle:
    """Adds the monitor."""
    return program.add_courier_node(MONITOR, MonitorNode, program.run_dir, program.resume_point)


class MonitorNode:
    """Serves a `Monitor` for each task. The program ends when all tasks have ended."""

    def __init__(self, experiment: Experiment, run_dir: str, resume_point: ResumePoint):
        self._stop = lp.stop_event()
        stopper = context.get_context().program_stopper
        endings: dict[str, tuple[str, bool]] = {}

        def end(task: str, reason: str, reached: bool) -> None:
            print_line(reason)
            endings[task] = reason, reached
            if len(endings) < len(experiment.tasks):
                return
            if "reason" in inspect.signature(stopper).parameters:
                all_reached = all(reached for _, reached in endings.values())
                stopper(reason="; ".join(why for why, _ in endings.values()), finished=all_reached)
            else:  # Launchpad's own launchers take no reason
                stopper()

        self._monitors = {
            task: Builder(experiment, task).make_monitor(
                functools.partial(end, task), experiment.task_dir(Path(run_dir), task)
            )
            for task in experiment.tasks
        }
        manifest = resume_point.manifest()
        if manifest is not None:
            monitor = self._monitors[manifest["task"]]
            monitor.restore(manifest["monitor"])
            note_resumed(run_dir, "monitor", monitor.state())

    def state(self, task: str) -> str:
        """Returns `Monitor.state` of a task, as JSON."""
        return json.dumps(self._monitors[task].state())

    def report(self, task: str, node: str, number: int, reports: list[Report]) -> None:
        """See `Monitor.report`."""
        self._monitors[task].report(node, number, reports)

    def run(self) -> None:
        """Waits for the program's end."""
        self._stop.wait()
        for monitor in self._monitors.values():
            monitor.close()
