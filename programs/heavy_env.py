"""Heavy environments: every actor infers for itself."""

import launchpad as lp

from distrl.checkpointing.checkpointer import ResumePoint
from distrl.experiment import Experiment
from distrl.programs.common import add_actor, add_common_nodes


def heavy_env(experiment: Experiment, run_dir: str, start: ResumePoint | None = None) -> lp.Program:
    """The program: actors, each with an inferencer, a learner, a replay, a monitor.

    Args:
      experiment: what to train.
      run_dir: where it writes.
      start: from which checkpoint it goes on; None: it begins anew.
    """
    program = lp.Program("distrl")
    common = add_common_nodes(program, experiment, run_dir, start)
    with program.group("actor"):
        for index in range(experiment.actors.most):
            add_actor(program, experiment, index, common, learner=common.learner)
    return program
