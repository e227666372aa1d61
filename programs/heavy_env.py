"""Heavy environments: every actor infers for itself."""

import launchpad as lp

from distrl.experiment import Experiment
from programs import nodes
from programs.common import add_common_nodes, add_courier_node


def heavy_env(experiment: Experiment, run_dir: str) -> lp.Program:
    """The program: actors, each with an inferencer, a learner, a replay, a monitor."""
    program = lp.Program("distrl")
    common = add_common_nodes(program, experiment, run_dir)
    with program.group("actor"):
        for index in range(experiment.max_actors):
            add_courier_node(
                program,
                nodes.ActorNode,
                experiment,
                index,
                common.table,
                common.replay,
                common.monitor,
                learner=common.learner,
            )
    return program
