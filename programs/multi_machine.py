"""Several machines: actors on many hosts, the learner and the replay's server on one."""

import dataclasses

import launchpad as lp

from distrl.checkpointing.checkpointer import ResumePoint
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs import nodes
from distrl.programs.common import add_actor, add_common_nodes, add_courier_node
from distrl.programs.light_env import add_light_actors
from distrl.programs.placement import Placement


def multi_machine(
    experiment: Experiment,
    run_dir: str,
    start: ResumePoint | None = None,
    *,
    placement: Placement,
) -> lp.Program:
    """The program of `light_env` where the placement has inferencers, else of `heavy_env`.

    Where actors infer for themselves, each host of theirs has a relay of the learner's parameters.

    Args:
      experiment: what to train, as `over_network` gives it.
      run_dir: where the nodes of the learner's host write.
      start: from which checkpoint it goes on; None: it begins anew.
      placement: of the program's nodes.
    """
    shards = [name for name in placement.nodes if name.startswith("replay/")]
    if any(placement.host_of(name) is not placement.hosts[0] for name in shards):
        # What was saved is on the learner's host; see `placement.place`.
        start = (start or ResumePoint())._replace(with_table=False)
    program = lp.Program("distrl")
    common = add_common_nodes(program, experiment, run_dir, start)
    if "inferencer/0" in placement.nodes:
        add_light_actors(program, experiment, common)
        return program
    relays = {}
    with program.group("relay"):
        for name, host in placement.nodes.items():
            if name.startswith("relay/"):
                handle = add_courier_node(program, nodes.RelayNode, experiment, common.learner)
                relays[host] = name, handle
    with program.group("actor"):
        for index in range(experiment.actors.most):
            host = placement.nodes[f"actor/{index}"]
            name, source = relays.get(host, ("learner/0", common.learner))
            add_actor(program, experiment, index, common, learner=source, variables_from=name)
    return program


def over_network(experiment: Experiment) -> Experiment:
    """The experiment with a replay that other machines reach.

    Raises:
      ConfigError: it asks for one that they do not, or for lockstep.
    """
    if experiment.replay.backend == "shared_memory":
        raise ConfigError(
            "replay.backend=shared_memory: other machines do not reach it; leave it out, or take "
            "replay.backend=reverb"
        )
    if experiment.lockstep:
        raise ConfigError("lockstep: not over several machines; take --topology=heavy_env")
    replay = dataclasses.replace(experiment.replay, backend="reverb")
    return dataclasses.replace(experiment, replay=replay)
