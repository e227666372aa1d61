"""Environment steps per second of an experiment under each topology, from what its parts cost.

Acting and learning in one process follow one another: their times add up. In a program of nodes
they overlap: the rate is that of its slowest part, or what the machine's cores allow (the bounds of
a closed queueing network; see `distrl.metrics.bottleneck`).

Pure arithmetic: `distrl.programs.costs` measures.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

SINGLE, HEAVY, LIGHT = "single_process", "heavy_env", "light_env"
CPU, GPU = "cpu", "gpu"

# What the measured parts leave out, in seconds of one core: estimates for a core of 2 GHz, which
# matter only where a step of all environments takes less than a millisecond.
STEP_S = 60e-6  # for an actor's step: statistics, cutting unrolls
ROW_S = 0.4e-6  # for each environment of it
UPDATE_S = 200e-6  # for an update: a batch from the table, counts
NODE_UPDATE_S = 300e-6  # in addition where the learner is a node: parameters for others, reports
ASK_S = 60e-6  # for a request for inference, in the actor
SERVE_S = 100e-6  # for a request for inference, in the service
SAME = 0.97  # rates this close count as the same: the simpler topology is taken
SAME_ACTORS = 0.85  # the same for numbers of actors, whose effect is less certain


class Cost(NamedTuple):
    """Seconds of a call, and seconds of cores that it keeps busy: fewer if it waits."""

    wall: float
    cpu: float


class CostLine(NamedTuple):
    """The cost of a call by its rows: `call`, and `row` for each."""

    call: Cost
    row: Cost

    @classmethod
    def through(cls, few: int, cost: Cost, many: int, more: Cost) -> "CostLine":
        """Returns the line through two measured costs, of `few` and of `many` rows.

        Costs do not fall with the rows, nor below 0; with one measurement they are proportional.
        """
        if few == many:
            return cls(Cost(0.0, 0.0), Cost(more.wall / many, more.cpu / many))
        rows = [max(0.0, (b - a) / (many - few)) for a, b in zip(cost, more, strict=True)]
        calls = [max(0.0, b - many * row) for b, row in zip(more, rows, strict=True)]
        return cls(Cost(*calls), Cost(*rows))

    def __call__(self, rows: float) -> Cost:
        return Cost(*(a + rows * b for a, b in zip(self.call, self.row, strict=True)))


class DeviceCosts(NamedTuple):
    """The costs on a device, with all the threads that XLA takes.

    Attributes:
      inference: cost of the inference of a batch, by its rows.
      update: cost of one update.
    """

    inference: CostLine
    update: Cost


class Costs(NamedTuple):
    """What was measured.

    Attributes:
      step: cost of a step of a pool of environments, by their number, in one thread where that is
        the pool's choice.
      threaded: cost of a step of all environments in one pool with a thread for each core; None: it
        has no choice.
      devices: costs by device, "cpu" and perhaps "gpu".
      shares_core: whether whoever acts can share a core with the pool's one thread. Then the core
        seconds of steps and inferences are what they take there.
    """

    step: CostLine
    threaded: Cost | None
    devices: Mapping[str, DeviceCosts]
    shares_core: bool = False


class Work(NamedTuple):
    """What is done.

    Attributes:
      streams: environments of all actors.
      updates: updates per environment step; None: the learner makes as many as it can.
    """

    streams: int
    updates: float | None


class Plan(NamedTuple):
    """A way to run an experiment.

    Attributes:
      topology: its name.
      num_actors: actors, among which the environments are divided.
      rate: environment steps per second.
      one_thread: whether the pools have one thread, rather than share the cores.
      learner_gpu: whether the learner has a GPU; in one process, whether all is computed there.
      inference_gpu: whether the services have one.
    """

    topology: str
    num_actors: int
    rate: float
    one_thread: bool = False
    learner_gpu: bool = False
    inference_gpu: bool = False


def plan_single_process(costs: Costs, work: Work, num_actors: int, name: str = CPU) -> Plan:
    """Returns the plan of one process, whose actors form one pool.

    Args:
      costs, work, num_actors: see `plan_heavy_env`.
      name: name of the device that computes.
    """
    device = costs.devices[name]
    step, inference = costs.step(work.streams), device.inference(work.streams)
    act, one_thread = step.wall + inference.wall, False
    if costs.shares_core:
        act = min(act, step.cpu + inference.cpu)
    if costs.threaded is not None:
        threaded = costs.threaded.wall + inference.wall
        one_thread = act <= threaded
        act = min(act, threaded)
    act += _overhead(work.streams)
    # Without a ratio there is an update after each step.
    updates = 1.0 if work.updates is None else work.updates * work.streams
    seconds = act + updates * (device.update.wall + UPDATE_S)
    return Plan(SINGLE, num_actors, work.streams / seconds, one_thread, name == GPU)


def plan_heavy_env(
    costs: Costs, work: Work, num_actors: int, cores: int, learner_on: Collection[str] = (CPU, GPU)
) -> Plan:
    """Returns the plan of actors with their own inferencers, each with one XLA thread.

    Args:
      costs: what the parts cost.
      work: what is done.
      num_actors: number of actors, among which the environments are divided.
      cores: number of the machine's cores.
      learner_on: the devices that the learner may have.
    """
    rows = work.streams / num_actors
    step, acting = costs.step(rows), costs.devices[CPU].inference(rows).cpu + _overhead(rows)
    wall = step.wall / _speed_up(costs, work, max(1, cores // num_actors)) + acting
    gpu, learner = _learner(costs, learner_on)
    busy = (step.cpu + acting) / rows
    return _program(
        HEAVY, num_actors, work, cores, learner, gpu, busy, work.streams / wall, float("inf")
    )


def plan_light_env(
    costs: Costs,
    work: Work,
    num_actors: int,
    cores: int,
    services: int = 1,
    gpu: bool = False,
    learner_on: Collection[str] = (CPU, GPU),
) -> Plan:
    """Returns the plan of actors that ask services, each with one XLA thread.

    Args:
      costs, work, num_actors, cores, learner_on: see `plan_heavy_env`.
      services: number of services.
      gpu: whether they have GPUs.
    """
    rows = work.streams / num_actors
    requests = max(1.0, num_actors / (2 * services))  # those that come while a batch runs
    gpu = gpu and GPU in costs.devices
    if gpu:
        batch = Cost(costs.devices[GPU].inference(rows * requests).wall, 0.0)
    else:
        cpu = costs.devices[CPU].inference(rows * requests).cpu
        batch = Cost(cpu, cpu)
    serve = batch.wall + SERVE_S * requests
    step, asking = costs.step(rows), _overhead(rows) + ASK_S
    wall = step.wall / _speed_up(costs, work, max(1, cores // num_actors)) + asking + serve
    busy = (step.cpu + asking) / rows + (batch.cpu + SERVE_S * requests) / (rows * requests)
    with_gpu, learner = _learner(costs, learner_on)
    served = services * requests * rows / serve
    return _program(
        LIGHT, num_actors, work, cores, learner, with_gpu, busy, work.streams / wall, served
    )._replace(inference_gpu=gpu)


def choose(plans: Sequence[Plan]) -> Plan:
    """Returns the fastest plan; of those that are about as fast, the simplest topology's first.

    One process is simpler than nodes, and actors with their inferencers are simpler than services.

    Args:
      plans: where they differ in the number of actors, the one to keep if others are hardly faster
        comes first.
    """
    fastest = max(plan.rate for plan in plans)
    near = {plan.topology for plan in plans if plan.rate >= SAME * fastest}
    topology = min(near, key=(SINGLE, HEAVY, LIGHT).index)
    same = [plan for plan in plans if plan.topology == topology]
    most = max(plan.rate for plan in same)
    return next(plan for plan in same if plan.rate >= SAME_ACTORS * most)


def _program(
    topology: str,
    num_actors: int,
    work: Work,
    cores: int,
    learner: Cost,
    gpu: bool,
    busy: float,
    *rates: float,
) -> Plan:
    """Returns the plan of nodes. Args: busy: core seconds of acting, per environment step."""
    bounds = list(rates)
    if work.updates is None:  # the learner takes the core that the actors leave
        bounds.append(max(1, cores - 1) / busy)
    else:
        each = work.updates * (learner.wall + UPDATE_S + NODE_UPDATE_S)
        bounds.append(1 / max(each, 1e-12))
        bounds.append(cores / (busy + work.updates * (learner.cpu + UPDATE_S + NODE_UPDATE_S)))
    return Plan(topology, num_actors, min(bounds), False, gpu)


def _learner(costs: Costs, names: Collection[str]) -> tuple[bool, Cost]:
    """Returns whether a learner's node has a GPU, as is faster, and what its updates cost."""
    updates = {name: costs.devices[name].update for name in (CPU, GPU) if name in costs.devices}
    name = min([n for n in updates if n in names] or [CPU], key=lambda n: updates[n].wall)
    return name == GPU, updates[name]


def _overhead(rows: float) -> float:
    return STEP_S + ROW_S * rows


def _speed_up(costs: Costs, work: Work, threads: int) -> float:
    """Returns by how much a pool is faster with its share of the cores than with one thread."""
    if costs.threaded is None or threads == 1:
        return 1.0
    return max(1.0, costs.step(work.streams).wall / costs.threaded.wall)
