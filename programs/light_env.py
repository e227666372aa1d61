"""Light environments: inferencers are services that batch the requests of many actors."""

import launchpad as lp

from distrl.checkpointing.checkpointer import ResumePoint
from distrl.experiment import Experiment
from distrl.programs import nodes
from distrl.programs.common import CoreHandles, add_actor, add_common_nodes, add_courier_node

MAX_ENDPOINTS = 8  # servers of one inferencer; see `nodes.InferencerNode`


def light_env(experiment: Experiment, run_dir: str, start: ResumePoint | None = None) -> lp.Program:
    """The program: actors, inferencer services, a learner, a replay, a monitor.

    Args:
      experiment: what to train.
      run_dir: where it writes.
      start: from which checkpoint it goes on; None: it begins anew.
    """
    program = lp.Program("distrl")
    add_light_actors(program, experiment, add_common_nodes(program, experiment, run_dir, start))
    return program


def add_light_actors(program: lp.Program, experiment: Experiment, common: CoreHandles) -> None:
    """Adds inferencers, and actors that ask them."""
    num_actors = experiment.actors.most
    num_inferencers = experiment.inference.num_inferencers
    handles = []  # of each inferencer, one a door
    with program.group("inferencer"):
        for index in range(num_inferencers):
            clients = len(range(index, num_actors, num_inferencers))
            endpoints = [lp.Address("door") for _ in range(min(clients, MAX_ENDPOINTS) - 1)]
            timeout = experiment.inference.timeout
            handle = add_courier_node(
                program,
                nodes.InferencerNode,
                experiment,
                index,
                common.learner,
                endpoints,
                call_timeout=timeout,
                endpoints=endpoints,
            )
            handles.append(
                [
                    handle,
                    *(lp.CourierHandle(endpoint, call_timeout=timeout) for endpoint in endpoints),
                ]
            )
    with program.group("actor"):
        for index in range(num_actors):
            own = handles[index % num_inferencers]
            endpoint = own[index // num_inferencers % len(own)]
            add_actor(program, experiment, index, common, inferencer=endpoint)
