"""Light environments: inferencers are services that batch the requests of many actors."""

import launchpad as lp

from distrl.checkpointing.checkpointer import Start
from distrl.experiment import Experiment
from distrl.programs import nodes
from distrl.programs.common import Common, add_actor, add_common_nodes, add_courier_node

MAX_DOORS = 8  # servers of one inferencer; see `nodes.InferencerNode`


def light_env(experiment: Experiment, run_dir: str, start: Start | None = None) -> lp.Program:
    """The program: actors, inferencer services, a learner, a replay, a monitor.

    Args:
      experiment: what to train.
      run_dir: where it writes.
      start: from which checkpoint it goes on; None: it begins anew.
    """
    program = lp.Program("distrl")
    add_light_actors(program, experiment, add_common_nodes(program, experiment, run_dir, start))
    return program


def add_light_actors(program: lp.Program, experiment: Experiment, common: Common) -> None:
    """Adds inferencers, and actors that ask them."""
    num_actors = experiment.max_actors
    num_inferencers = experiment.inference.num_inferencers
    handles = []  # of each inferencer, one a door
    with program.group("inferencer"):
        for index in range(num_inferencers):
            clients = len(range(index, num_actors, num_inferencers))
            doors = [lp.Address("door") for _ in range(min(clients, MAX_DOORS) - 1)]
            timeout = experiment.inference.timeout
            handle = add_courier_node(
                program,
                nodes.InferencerNode,
                experiment,
                index,
                common.learner,
                doors,
                call_timeout=timeout,
                doors=doors,
            )
            handles.append(
                [handle, *(lp.CourierHandle(door, call_timeout=timeout) for door in doors)]
            )
    with program.group("actor"):
        for index in range(num_actors):
            own = handles[index % num_inferencers]
            door = own[index // num_inferencers % len(own)]
            add_actor(program, experiment, index, common, inferencer=door)
