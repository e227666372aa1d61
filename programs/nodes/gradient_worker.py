"""A gradient worker: computes shares of the learners' batches."""

from collections.abc import Callable

from distrl.experiment import Experiment
from distrl.gradients.service import GradientService
from distrl.gradients.shares import ShareGradients
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import GRADIENT_WORKER
from distrl.programs.nodes.process import configure_jax
from distrl.programs.nodes.time_reports import TimeReports, thread_times
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import stop_and_tick
from distrl.programs.substrate import node_context
from distrl.runtime.heartbeat import current_heartbeat


def add_gradient_workers(program: ExperimentProgram, monitor: NodeHandle) -> list[NodeHandle]:
    """Adds the workers of all tasks, which are a pool; see `Allocator`.

    Args:
      program: the program.
      monitor: takes reports of what they spend their time on.
    """
    count = sum(task.learner.num_gradient_workers for task in program.experiment.tasks.values())
    return [
        program.add_call_node(GRADIENT_WORKER, GradientWorkerNode, index, monitor)
        for index in range(count)
    ]


class GradientWorkerNode:
    """Serves a `GradientService`."""

    def __init__(self, experiment: Experiment, index: int, monitor: NodeHandle):
        """Args: experiment: what to train. index: the worker's index. monitor: takes reports."""
        configure_jax()
        self._times = TimeReports(
            monitor, next(iter(experiment.tasks)), f"{GRADIENT_WORKER.name}/{index}", thread_times
        )
        self._stop = node_context.stop_event()
        self._experiment = experiment
        self._service = GradientService(self._make_gradients)

    def _make_gradients(self, task: str) -> ShareGradients:
        return Builder(self._experiment, task).make_share_gradients()

    def prepare(self, request: bytes) -> bytes:
        """See `GradientService.prepare`."""
        return self._service.prepare(request)

    def compute(self, request: bytes) -> bytes:
        """See `GradientService.compute`."""
        return self._service.compute(request)

    def _until(self, stopping: Callable[[], bool]) -> Callable[[], bool]:
        def should_stop() -> bool:
            self._times.send_if_due()
            return stopping()

        return should_stop

    def run(self) -> None:
        """Computes until the program stops."""
        try:
            self._service.run(self._until(stop_and_tick(self._stop)), current_heartbeat().wait)
        finally:
            self._times.close()
        print_line(f"computed {self._service.computed} shares")
