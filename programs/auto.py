"""The choice of a topology for an experiment on this machine: `--topology=auto`."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from distrl.agents.structs import has_memory
from distrl.annealing import learner_steps_per_env_step
from distrl.envs.multi_agent.environment import SeveralAgents, steps_per_env_step
from distrl.envs.pool import on_cores
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs import substrate
from distrl.programs.resources import visible_gpus
from distrl.programs.topology_rates import (
    CPU,
    GPU,
    HEAVY,
    LIGHT,
    SINGLE,
    Cost,
    Costs,
    DeviceCosts,
    Plan,
    Work,
    choose,
    plan_heavy_env,
    plan_light_env,
    plan_single_process,
)

LEARNER_GPUS, SERVICES_GPUS = "learner.num_gpus", "inference.num_gpus"  # names of settings
_ACTORS_PER_CORE = 4  # at most, for environments that wait


class Candidates(NamedTuple):
    """What can be chosen from.

    Attributes:
      topologies: their names, the simplest first.
      reason: why there is no choice; "": there is a choice, which needs the costs.
    """

    topologies: tuple[str, ...]
    reason: str = ""


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
      topology: its name.
      reason: why, in a line.
      settings: by dotted name, those that the experiment gets.
      by_costs: whether costs decided, of GPUs too.
    """

    topology: str
    reason: str
    settings: Mapping[str, Any]
    by_costs: bool = False


def candidates(experiment: Experiment, cores: int, excluded: Mapping[str, str]) -> Candidates:
    """Returns the topologies that an experiment can have here.

    Args:
      experiment: the experiment.
      cores: number of cores that the program may keep busy.
      excluded: from names of topologies to why they are not wanted.

    Raises:
      ConfigError: there is none.
    """
    reasons = {**_unfit(experiment), **excluded}
    names = tuple(name for name in (SINGLE, HEAVY, LIGHT) if name not in reasons)
    if not names:
        raise ConfigError(
            "topology: none can run this: "
            + "; ".join(f"not {name}: {reason}" for name, reason in reasons.items())
        )
    if len(names) == 1:
        return Candidates(names, "; ".join(dict.fromkeys(reasons.values())))
    if cores == 1:
        return Candidates(names[:1], "there is one core")
    nodes = tuple(name for name in names if name != SINGLE)[:1]
    if len(experiment.tasks) > 1 or experiment.policies:
        return Candidates(nodes, f"several policies, and {cores} cores")
    if isinstance(experiment.environment, SeveralAgents):
        return Candidates(nodes, f"several agents, and {cores} cores")
    return Candidates(names)


def _unfit(experiment: Experiment) -> dict[str, str]:
    """Returns the topologies that do not fit an experiment, with the reason."""
    reasons = {}
    if substrate.missing(substrate.LAUNCHPAD) and substrate.missing(substrate.BUILTIN):
        reasons[HEAVY] = reasons[LIGHT] = "neither Launchpad nor grpcio is installed"
    try:
        experiment.check_single_process()
    except ConfigError as error:
        reasons[SINGLE] = str(error).partition(":")[0]
    actors, inference = experiment.actors, experiment.inference
    if experiment.lockstep:
        reasons[LIGHT] = "lockstep"
    if actors.max_actors is not None:
        reasons[SINGLE] = f"actors.max_actors={actors.max_actors}"
    for task in experiment.tasks.values():
        if task.replay.backend == "reverb":
            reasons[SINGLE] = "replay.backend=reverb"
        if actors.min_actors is not None and has_memory(task.make_agent()):
            reasons[LIGHT] = "actors.min_actors with recurrent state"
    for name, default in (("num_inferencers", 1), ("num_gpus", 0)):
        if getattr(inference, name) != default and LIGHT not in reasons:
            what = f"inference.{name}={getattr(inference, name)}"
            reasons.setdefault(SINGLE, what)
            reasons.setdefault(HEAVY, what)
    return reasons


def plans(
    experiment: Experiment,
    costs: Costs,
    cores: int,
    names: Collection[str],
    may_divide: bool,
    given: Collection[str] = (),
) -> list[Plan]:
    """Returns the plans to choose from, with what rate each promises.

    Args:
      experiment: the experiment.
      costs: what its parts cost.
      cores: number of cores that the program may keep busy.
      names: the topologies.
      may_divide: whether its environments may be divided among another number of actors.
      given: by dotted name, settings that the user has given, which stay.
    """
    task, actors = experiment.only_task, experiment.actors
    work = Work(
        actors.num_streams,
        learner_steps_per_env_step(
            task.replay, task.learner, steps_per_env_step(task.environment, task.agents)
        ),
    )
    numbers = [actors.num_actors]
    if may_divide:
        least = max(experiment.inference.num_inferencers, task.replay.num_shards)
        most = max(actors.num_actors, _ACTORS_PER_CORE * cores)
        numbers += [n for n in range(least, most + 1) if actors.num_streams % n == 0]
    learner, inference = task.learner, experiment.inference
    on_cpus = learner.num_gradient_workers or learner.num_devices > 1
    learner_on = _devices(costs, learner.num_gpus, LEARNER_GPUS not in given and not on_cpus)
    services_on = _devices(costs, inference.num_gpus, SERVICES_GPUS not in given)
    made = []
    if SINGLE in names:
        made = [
            plan_single_process(costs, work, actors.num_actors, device) for device in learner_on
        ]
    for number in dict.fromkeys(numbers):
        if HEAVY in names:
            made.append(plan_heavy_env(costs, work, number, cores, learner_on))
        if LIGHT in names:
            for device in services_on:
                services, gpu = inference.num_inferencers, device == GPU
                made.append(plan_light_env(costs, work, number, cores, services, gpu, learner_on))
    return made


def _devices(costs: Costs, num_gpus: int, is_free: bool) -> list[str]:
    """Returns the devices that a part may have.

    Args:
      costs: what was measured.
      num_gpus: what is declared for the part.
      is_free: whether it may have a GPU without that.
    """
    if GPU not in costs.devices or not visible_gpus():  # none that a node could be given
        return [CPU]
    if num_gpus:
        return [GPU]
    return [CPU, GPU] if is_free else [CPU]


def choice(experiment: Experiment, costs: Costs, cores: int, made: list[Plan]) -> Choice:
    """Returns the choice among plans. Args: see `plans`."""
    best = choose(made)
    rates = {
        name: max((p.rate for p in made if p.topology == name), default=None)
        for name in (SINGLE, HEAVY, LIGHT)
    }
    rates[best.topology] = best.rate
    others = ", ".join(
        f"{name} {_number(rate)}"
        for name, rate in rates.items()
        if rate is not None and name != best.topology
    )
    actors, settings = experiment.actors, dict[str, Any]()
    if best.topology != SINGLE:
        if best.num_actors != actors.num_actors:
            settings["actors.num_actors"] = best.num_actors
            settings["actors.num_envs"] = actors.num_streams // best.num_actors
    elif best.one_thread and on_cores(experiment.environment, cores) != experiment.environment:
        settings["environment.num_threads"] = 1
    settings.update(_gpus(experiment, best))
    infers_on_gpu = best.learner_gpu if best.topology == SINGLE else best.inference_gpu
    many = actors.num_streams
    number = "1 actor" if best.num_actors == 1 else f"{best.num_actors} actors"
    count = "" if best.topology == SINGLE else f" with {number}"
    reason = (
        f"{best.topology}{count}: about {_number(best.rate)} environment steps/s on {cores} cores"
        f"{f' ({others})' if others else ''}; {many} environments step in "
        f"{_time(costs.step(many).wall)}, an inference takes "
        f"{_on(costs, infers_on_gpu, lambda device: device.inference(many))}, an update "
        f"{_on(costs, best.learner_gpu, lambda device: device.update)}"
    )
    return Choice(best.topology, reason, settings, by_costs=True)


def _gpus(experiment: Experiment, best: Plan) -> dict[str, Any]:
    """Returns the settings that give a plan its GPUs."""
    settings: dict[str, Any] = {}
    of_learner, inference = experiment.only_task.learner.num_gpus, experiment.inference
    if best.learner_gpu and not of_learner:
        settings[LEARNER_GPUS] = of_learner = 1
    if best.inference_gpu:
        of_services = inference.num_gpus or 1
        if not inference.num_gpus:
            settings[SERVICES_GPUS] = of_services
        if of_learner and 0 < len(visible_gpus()) < of_learner + of_services:
            settings["inference.share_gpus"] = True
    return settings


def _on(costs: Costs, gpu: bool, cost: Callable[[DeviceCosts], Cost]) -> str:
    """Returns what something takes on a plan's device, and names the device if it is a GPU."""
    return f"{_time(cost(costs.devices[GPU if gpu else CPU]).wall)}{' on the GPU' if gpu else ''}"


def with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Returns an experiment with settings by their dotted names."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        part, _, field = name.partition(".")
        parts.setdefault(part, {})[field] = value
    changed = {
        part: dataclasses.replace(getattr(experiment, part), **fields)
        for part, fields in parts.items()
    }
    return dataclasses.replace(experiment, **changed) if changed else experiment


def _number(rate: float | None) -> str:
    assert rate is not None
    return f"{rate / 1000:.0f}k" if rate >= 10_000 else f"{rate:,.0f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
