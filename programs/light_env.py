"""Light environments: inferencers are services that batch the requests of many actors."""

import launchpad as lp

from distrl.experiment import Experiment
from programs import nodes
from programs.common import add_common_nodes, add_courier_node


def light_env(experiment: Experiment, run_dir: str) -> lp.Program:
    """The program: actors, inferencer services, a learner, a Reverb server, a monitor."""
    program = lp.Program("distrl")
    common = add_common_nodes(program, experiment, run_dir)
    num_actors = experiment.actors.num_actors
    num_inferencers = experiment.inference.num_inferencers
    with program.group("inferencer"):
        inferencers = [
            add_courier_node(
                program,
                nodes.InferencerNode,
                experiment,
                index,
                common.learner,
                call_timeout=experiment.inference.timeout,
                threads=len(range(index, num_actors, num_inferencers)) + 1,
            )
            for index in range(num_inferencers)
        ]
    with program.group("actor"):
        for index in range(num_actors):
            add_courier_node(
                program,
                nodes.ActorNode,
                experiment,
                index,
                common.table,
                common.replay,
                common.monitor,
                inferencer=inferencers[index % num_inferencers],
            )
    return program
