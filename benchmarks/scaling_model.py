"""Computes from unit costs what a rate of environment steps needs; see docs/scaling.md.

Pure arithmetic: nothing is measured or started here. Times are seconds of one core like those of
the measured machine, sizes are bytes, rates are per second.

Every part uses a resource of fixed size: a process that computes on one core (because of Python's
lock, or a table's), a host's cores, its network. `needs` computes how much of each a rate uses,
`limits` the rate at which each of them saturates.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RELAY_HZ = 50.0  # the most calls of a relay to the learner; see `distrl.variables.relay`
REPORT_HZ = 10.0  # reports from a node to the monitor
OWN_DESCRIPTORS = 20  # of a tunnel that has no connections


@dataclasses.dataclass(frozen=True)
class Line:
    """The cost of a call: `call`, plus `byte` for each byte."""

    call: float
    byte: float = 0.0

    def __call__(self, nbytes: float) -> float:
        return self.call + self.byte * nbytes

    def scaled(self, factor: float) -> "Line":
        """Returns the cost of `factor` such calls."""
        return Line(self.call * factor, self.byte * factor)


@dataclasses.dataclass(frozen=True)
class Workload:
    """An environment with its network, as measured.

    Attributes:
      num_envs: environments per actor (n).
      unroll_length: T.
      batch_size: unrolls per update.
      unrolls_per_item: unrolls per item of the replay.
      unroll_bytes: size of an uncompressed unroll of T steps.
      compression: bytes sent per byte of unrolls.
      param_bytes: size of the parameters.
      request_bytes, answer_bytes: size of an inference request and its answer, per environment.
      env_step: cost of one step of one environment.
      infer: cost of one inference, n rows.
      overhead: cost of the rest of an actor's step (n environment steps): cutting unrolls,
        statistics, the loop.
      write, serve_item, read: costs of an item of the replay, by its bytes: for the actor, the
        server (in and out) and the learner.
      learn: cost of one transition of an update.
      ask, answer: costs of one inference request of n rows: for the actor; for the service,
        inference included.
      report: cost of an actor's report, for the monitor.
    """

    num_envs: int
    unroll_length: int
    batch_size: int
    unrolls_per_item: int
    unroll_bytes: float
    compression: float
    param_bytes: float
    request_bytes: float
    answer_bytes: float
    env_step: float
    infer: float
    overhead: float
    write: Line
    serve_item: Line
    read: Line
    learn: float
    ask: float
    answer: float
    report: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """Unit costs of the machine that was measured.

    Attributes:
      workloads: by name.
      fetch: cost of a call for parameters, by their bytes, for the reader, until it can use them.
      hand_out: cost of the same call for the learner, or for a relay.
      pack: cost of a new version, by its bytes, for the learner.
      tunnel_send, tunnel_receive: cost of a message, by its bytes, for the tunnel of one host.
    """

    workloads: Mapping[str, Workload]
    fetch: Line
    hand_out: Line
    pack: Line
    tunnel_send: Line
    tunnel_receive: Line

    @classmethod
    def read(cls, path: Path) -> "Costs":
        """Reads the file of `scaling.py`, and takes the median of each figure's rounds."""
        figures = json.loads(path.read_text())
        workloads = {name: _built(Workload, each) for name, each in figures["workloads"].items()}
        return _built(cls, {**figures["shared"], "workloads": workloads})


def _built(kind: Any, figures: Mapping[str, Any]) -> Any:
    def value(figure: Any) -> Any:
        if isinstance(figure, list):
            return statistics.median(figure)
        if isinstance(figure, dict) and set(figure) == {"call", "byte"}:
            return Line(value(figure["call"]), value(figure["byte"]))
        return figure

    return kind(**{field.name: value(figures[field.name]) for field in dataclasses.fields(kind)})


@dataclasses.dataclass(frozen=True)
class HostKind:
    """A host: cores as fast as the measured one, and Gbit/s in each direction."""

    name: str
    cores: int
    gbits: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a program is distributed. None: as in the workload.

    Attributes:
      host: the kind of all hosts.
      light: whether inference is a service on the first host, rather than in the actors.
      learner_speed: speed of the learner's device, in cores like the measured one.
      num_shards: Reverb servers, on the first host.
      num_inferencers: inference services of a light program.
      unroll_length, batch_size, param_bytes: see `Workload`.
      sync_interval: actor steps between two fetches of parameters; None: one unroll.
      use: share of a host's cores to plan for.
      relays: whether each host of actors has a relay; else every actor calls the learner.
      tunnels: whether connections between hosts pass through `distrl.launch.network.tunnel`.
      descriptors: file descriptors of a process (`ulimit -n`); 1,024 is Linux's usual soft limit.
    """

    host: HostKind
    light: bool = False
    learner_speed: float = 1.0
    num_shards: int = 1
    num_inferencers: int = 1
    unroll_length: int | None = None
    batch_size: int | None = None
    param_bytes: float | None = None
    sync_interval: int | None = None
    use: float = 0.8
    relays: bool = True
    tunnels: bool = True
    descriptors: int = 1024


@dataclasses.dataclass(frozen=True)
class Load:
    """The load of a part, and its capacity."""

    used: float
    capacity: float
    unit: str

    @property
    def share(self) -> float:
        """Load over capacity."""
        return self.used / self.capacity


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a rate needs.

    Attributes:
      actors: processes, of one core each.
      hosts: hosts of actors, beside the first.
      connections: connections to servers of the first host.
      loads: the load of each part, by name.
    """

    actors: int
    hosts: int
    connections: int
    loads: Mapping[str, Load]

    @property
    def fullest(self) -> str:
        """The part with the largest share of its capacity."""
        return max(self.loads, key=lambda part: self.loads[part].share)


def actor_step(costs: Costs, work: Workload, plan: Plan) -> float:
    """Returns the core seconds that an actor spends on an environment step."""
    length = plan.unroll_length or work.unroll_length
    item = _item_bytes(work, length)
    steps_of_item = length * work.unrolls_per_item
    acting = work.env_step + work.overhead / work.num_envs + work.write(item) / steps_of_item
    if plan.light:
        return acting + work.ask / work.num_envs
    params = work.param_bytes if plan.param_bytes is None else plan.param_bytes
    fetches = 1 / ((plan.sync_interval or length) * work.num_envs)  # per environment step
    return acting + work.infer / work.num_envs + fetches * costs.fetch(params)


def needs(costs: Costs, work: Workload, plan: Plan, rate: float) -> Needs:
    """Returns what `rate` environment steps per second, each trained on once, need."""
    length = plan.unroll_length or work.unroll_length
    batch = plan.batch_size or work.batch_size
    params = work.param_bytes if plan.param_bytes is None else plan.param_bytes
    tunnel_send = costs.tunnel_send if plan.tunnels else Line(0.0)
    tunnel_receive = costs.tunnel_receive if plan.tunnels else Line(0.0)
    each = actor_step(costs, work, plan)
    actors = max(1, math.ceil(rate * each))
    item = _item_bytes(work, length)
    items = rate / (length * work.unrolls_per_item)
    wire = item * work.compression
    versions = rate / (length * batch)
    actor_steps = rate / work.num_envs
    fetches = 0.0 if plan.light else actor_steps / (plan.sync_interval or length)  # of all actors
    reports = REPORT_HZ * actors

    # A host of actors: its actors, its relay, its tunnel.
    relayed = fetches * costs.hand_out(params) if plan.relays else 0.0
    carried = items * tunnel_send(wire) + reports * tunnel_send(0)
    if plan.light:
        carried += actor_steps * (
            tunnel_send(work.request_bytes * work.num_envs)
            + tunnel_receive(work.answer_bytes * work.num_envs)
        )
    hosts = max(1, math.ceil((rate * each + relayed + carried) / (plan.use * plan.host.cores)))

    # Calls for parameters per second at the learner.
    taken = fetches
    if plan.relays and fetches:
        taken = min(versions, RELAY_HZ, fetches / hosts) * hosts
    bytes_in = items * wire
    bytes_out = taken * params
    tunnel = items * tunnel_receive(wire) + taken * tunnel_send(params)
    tunnel += reports * tunnel_receive(0)
    loads = {
        "learner: updates": Load(rate * work.learn, plan.learner_speed, "cores"),
        "learner: reading batches": Load(items * work.read(item), 1.0, "cores"),
        "learner: handing out parameters": Load(
            min(versions, taken or actor_steps / length) * costs.pack(params)
            + taken * costs.hand_out(params),
            1.0,
            "cores",
        ),
        "replay": Load(items * work.serve_item(item), float(plan.num_shards), "cores"),
        "monitor": Load(reports * work.report, 1.0, "cores"),
    }
    if plan.light:
        bytes_in += rate * work.request_bytes
        bytes_out += rate * work.answer_bytes
        tunnel += actor_steps * (
            tunnel_receive(work.request_bytes * work.num_envs)
            + tunnel_send(work.answer_bytes * work.num_envs)
        )
        loads["inferencers"] = Load(actor_steps * work.answer, float(plan.num_inferencers), "cores")
    elif plan.relays:
        loads["relay of an actors' host"] = Load(relayed / hosts, 1.0, "cores")
    loads["tunnel of the first host"] = Load(tunnel, 1.0, "cores")
    loads["tunnel of an actors' host"] = Load(
        (carried + taken * tunnel_receive(params)) / hosts, 1.0, "cores"
    )
    on_first = sum(load.used for part, load in loads.items() if "actors' host" not in part)
    if plan.learner_speed != 1.0:  # another device: its process waits for it on one core
        updates = loads["learner: updates"].used
        on_first += min(1.0, updates / plan.learner_speed) - updates
    loads["cores of the first host"] = Load(on_first, plan.use * plan.host.cores, "cores")
    loads["network into the first host"] = Load(bytes_in * 8e-9, plan.host.gbits, "Gbit/s")
    loads["network out of the first host"] = Load(bytes_out * 8e-9, plan.host.gbits, "Gbit/s")
    # An actor connects to the replay, the monitor, and the learner or inferencer.
    per_actor = 2 if plan.relays and not plan.light else 3
    connections = actors * per_actor + (hosts if per_actor == 2 else 0)
    # The first host's tunnel has two for each connection.
    loads["connections of the first host"] = Load(
        OWN_DESCRIPTORS + 2 * connections, plan.descriptors, "descriptors"
    )
    return Needs(actors, hosts, connections, loads)


def limits(costs: Costs, work: Workload, plan: Plan) -> dict[str, float]:
    """Returns the rate at which each part saturates, ascending; 1e12: never."""
    rates = {}
    for part in needs(costs, work, plan, 1.0).loads:
        low, high = 1.0, 1e12
        while high > 1.001 * low:
            middle = math.sqrt(low * high)
            if needs(costs, work, plan, middle).loads[part].share < 1:
                low = middle
            else:
                high = middle
        rates[part] = low
    return dict(sorted(rates.items(), key=lambda pair: pair[1]))


def _item_bytes(work: Workload, length: int) -> float:
    """Returns the size of an item; an unroll has T + 1 rows."""
    row = work.unroll_bytes / (work.unroll_length + 1)
    return row * (length + 1) * work.unrolls_per_item
