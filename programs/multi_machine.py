"""Several machines: actors on many hosts, the learner and the replay's server on one."""

import dataclasses

from distrl.checkpointing.resume_point import ResumePoint
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.light_env import light_env
from distrl.programs.nodes.actor import add_actor
from distrl.programs.nodes.evaluator import add_evaluator
from distrl.programs.nodes.gradient_worker import add_gradient_workers
from distrl.programs.nodes.learner import add_learners
from distrl.programs.nodes.monitor import add_monitor
from distrl.programs.nodes.population import add_population
from distrl.programs.nodes.relay import add_relay
from distrl.programs.nodes.replay import add_replay
from distrl.programs.placement import (
    Placement,
    asks_on_one_host,
    relay_hosts,
)
from distrl.programs.program import ExperimentProgram
from distrl.programs.substrate import AUTO, BUILTIN, AnyProgram
from distrl.replay.config import ReplayConfig


def multi_machine(
    experiment: Experiment,
    run_dir: str,
    resume_point: ResumePoint | None = None,
    *,
    placement: Placement,
    substrate: str = AUTO,
) -> AnyProgram:
    """Returns `light_env` if the placement has inferencers, else `heavy_env` with relays.

    Each host with actors that infer for themselves has a relay of the learner's parameters.

    Args:
      experiment: what to train, as `over_network` returns it.
      run_dir: the run folder on the learner's host.
      resume_point: the checkpoint to resume from; None: start from scratch.
      placement: host of each node.
      substrate: what its nodes are made of, see `substrate.resolve`.
    """
    shards = [name for name in placement.nodes if name.startswith("replay/")]
    if any(placement.host_of(name) is not placement.hosts[0] for name in shards):
        # Saved tables are on the learner's host; see `placement.place`.
        resume_point = (resume_point or ResumePoint())._replace(with_table=False)
    if "inferencer/0" in placement.nodes:
        on_one_host = asks_on_one_host(placement)
        return light_env(
            experiment, run_dir, resume_point, on_one_host=on_one_host, substrate=substrate
        )
    program = ExperimentProgram(experiment, run_dir, resume_point, substrate)
    tasks = experiment.tasks
    monitor = add_monitor(program)
    replay = {name: add_replay(program, task, monitor) for name, task in tasks.items()}
    workers = add_gradient_workers(program, monitor)
    hosts = relay_hosts(placement)
    learner = add_learners(program, replay, monitor, workers, with_relays=bool(hosts))
    add_evaluator(program, learner, monitor)
    add_population(program, learner, monitor)
    relay = {
        host: {
            name: add_relay(program, name, learner[name], monitor)
            for name in experiment.acting_tasks
        }
        for host in hosts
    }
    for index in range(experiment.actors.largest_num_actors):
        host = placement.nodes[f"actor/{index}"]
        add_actor(
            program, index, replay, monitor, learner=learner, variables=relay.get(host, learner)
        )
    return program.program


def over_network(experiment: Experiment, substrate: str) -> Experiment:
    """Returns the experiment with a replay that other machines reach.

    Args:
      experiment: the user's experiment.
      substrate: what the program's nodes are made of.

    Raises:
      ConfigError: it asks for one that they can't reach, or for lockstep.
    """
    if experiment.lockstep:
        raise ConfigError("lockstep cannot run over several machines; use --topology=heavy_env")
    if not experiment.policies:
        replay = _on_server("replay", experiment.replay, substrate)
        return dataclasses.replace(experiment, replay=replay)
    policies = dict(experiment.policies)
    for name, policy in experiment.learned.items():
        replay = _on_server(f"policies.{name}.replay", policy.replay, substrate)
        policies[name] = dataclasses.replace(policy, replay=replay)
    return dataclasses.replace(experiment, policies=policies)


def _on_server(name: str, replay: ReplayConfig, substrate: str) -> ReplayConfig:
    """Returns the settings of a table that is on servers. Args: name: the settings' name."""
    default = "served" if substrate == BUILTIN else "reverb"
    if replay.backend == "shared_memory":
        raise ConfigError(
            f"{name}.backend=shared_memory: other machines do not reach it; leave it out, or take "
            f"{name}.backend={default}"
        )
    return dataclasses.replace(replay, backend=default) if replay.backend == "auto" else replay
