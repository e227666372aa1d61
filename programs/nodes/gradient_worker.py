"""A gradient worker: computes shares of the learners' batches."""

import launchpad as lp

from distrl.experiment import Experiment
from distrl.gradients.service import GradientService
from distrl.gradients.shares import ShareGradients
from distrl.programs.build import Builder, print_line
from distrl.programs.groups import GRADIENT_WORKER
from distrl.programs.nodes.process import configure_jax
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import stop_and_tick
from distrl.runtime.heartbeat import current_heartbeat


def add_gradient_workers(program: ExperimentProgram) -> list[NodeHandle]:
    """Adds the workers of all tasks, which are a pool; see `Allocator`."""
    count = sum(task.learner.num_gradient_workers for task in program.experiment.tasks.values())
    return [program.add_courier_node(GRADIENT_WORKER, GradientWorkerNode) for _ in range(count)]


class GradientWorkerNode:
    """Serves a `GradientService`."""

    def __init__(self, experiment: Experiment):
        """Args: experiment: what to train."""
        configure_jax()
        self._stop = lp.stop_event()
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

    def run(self) -> None:
        """Computes until the program stops."""
        self._service.run(stop_and_tick(self._stop), current_heartbeat().wait)
        print_line(f"computed {self._service.computed} shares")
