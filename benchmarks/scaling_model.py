"""What a rate of environment steps asks of each part, from unit costs; see docs/scaling.md.

Pure arithmetic: nothing is measured or started here. Times are seconds of one core like those of
the machine that was measured, sizes are bytes, rates are per second.

Every part is a share of something that does not grow by itself: a process that computes on one core
(Python's lock, or one table's), a host's cores, its network. `loads` says how much of each a rate
takes, `limits` at which rate each of them is full.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RELAY_HZ = 50.0  # questions of a relay to the learner at most; see `distrl.variables`
REPORT_HZ = 10.0  # reports of a node to the monitor
OWN_DESCRIPTORS = 20  # of a tunnel without connections


@dataclasses.dataclass(frozen=True)
class Line:
    """What a call costs: `call`, and `byte` for each byte of it."""

    call: float
    byte: float = 0.0

    def __call__(self, nbytes: float) -> float:
        return self.call + self.byte * nbytes

    def scaled(self, factor: float) -> "Line":
        """Of so many calls."""
        return Line(self.call * factor, self.byte * factor)


@dataclasses.dataclass(frozen=True)
class Workload:
    """An environment with its network, as measured.

    Attributes:
      num_envs: environments of an actor (n): the turn, inference and service are of so many.
      unroll_length: T.
      batch_size: unrolls of an update.
      unrolls_per_item: of the replay.
      unroll_bytes: of one unroll of T steps, uncompressed.
      compression: bytes on the wire for each byte of unrolls.
      param_bytes: of a version of the parameters.
      request_bytes, answer_bytes: to an inference service and back, of one environment.
      env_step: one step of one environment.
      infer: one inference, of n rows.
      turn: the actor's own work of one turn (n steps): cutting unrolls, statistics, the loop.
      write, serve_item, read: an item of the replay, by its bytes: the actor's, the server's (both
        ways) and the learner's part.
      learn: one transition of an update.
      ask, answer: one request of n rows: the actor's part; the service's, inference included.
      report: an actor's report, at the monitor.
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
    turn: float
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
      fetch: a reader's part of a call for parameters, by their bytes, until it can use them.
      hand_out: the part of the learner, or of a relay, in the same call.
      pack: a new version, by its bytes, at the learner.
      tunnel_send, tunnel_receive: of a message, by its bytes, in the tunnel of one host.
    """

    workloads: Mapping[str, Workload]
    fetch: Line
    hand_out: Line
    pack: Line
    tunnel_send: Line
    tunnel_receive: Line

    @classmethod
    def read(cls, path: Path) -> "Costs":
        """From what `scaling.py` wrote: of each figure the median of its rounds."""
        found = json.loads(path.read_text())
        workloads = {name: _built(Workload, each) for name, each in found["workloads"].items()}
        return _built(cls, {**found["shared"], "workloads": workloads})


def _built(kind: Any, found: Mapping[str, Any]) -> Any:
    def value(figure: Any) -> Any:
        if isinstance(figure, list):
            return statistics.median(figure)
        if isinstance(figure, dict) and set(figure) == {"call", "byte"}:
            return Line(value(figure["call"]), value(figure["byte"]))
        return figure

    return kind(**{field.name: value(found[field.name]) for field in dataclasses.fields(kind)})


@dataclasses.dataclass(frozen=True)
class HostKind:
    """A host: cores as fast as the measured one, and gigabits a second each way."""

    name: str
    cores: int
    gbits: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a program is spread. None: as in the workload.

    Attributes:
      host: of all the program's hosts.
      light: inference as a service on the first host, not in the actors.
      learner_speed: of the learner's device, in cores like the measured one.
      num_shards: Reverb servers, on the first host.
      num_inferencers: of a light program.
      sync_turns: turns of an actor between two fetches of parameters; None: one an unroll.
      use: of a host's cores that may be planned for.
      relays: actors' hosts have a relay each; without, every actor asks the learner.
      tunnels: connections between hosts go through `distrl.launch.network.tunnel`.
      descriptors: that a process may have (`ulimit -n`); 1,024 is Linux's usual soft limit.
    """

    host: HostKind
    light: bool = False
    learner_speed: float = 1.0
    num_shards: int = 1
    num_inferencers: int = 1
    unroll_length: int | None = None
    batch_size: int | None = None
    param_bytes: float | None = None
    sync_turns: int | None = None
    use: float = 0.8
    relays: bool = True
    tunnels: bool = True
    descriptors: int = 1024


@dataclasses.dataclass(frozen=True)
class Load:
    """What a part does, and what it can."""

    used: float
    capacity: float
    unit: str

    @property
    def share(self) -> float:
        """1 is full."""
        return self.used / self.capacity


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a rate takes.

    Attributes:
      actors: processes, of one core each.
      hosts: of actors, beside the first.
      connections: to servers of the first host.
      loads: of each part, by name.
    """

    actors: int
    hosts: int
    connections: int
    loads: Mapping[str, Load]

    @property
    def fullest(self) -> str:
        """The part that is nearest to its capacity, or farthest above it."""
        return max(self.loads, key=lambda part: self.loads[part].share)


def actor_step(costs: Costs, work: Workload, plan: Plan) -> float:
    """Core seconds of an environment step in an actor, all that the actor does for it."""
    length = plan.unroll_length or work.unroll_length
    item = _item_bytes(work, length)
    steps_of_item = length * work.unrolls_per_item
    own = work.env_step + work.turn / work.num_envs + work.write(item) / steps_of_item
    if plan.light:
        return own + work.ask / work.num_envs
    params = work.param_bytes if plan.param_bytes is None else plan.param_bytes
    fetches = 1 / ((plan.sync_turns or length) * work.num_envs)  # a step
    return own + work.infer / work.num_envs + fetches * costs.fetch(params)


def needs(costs: Costs, work: Workload, plan: Plan, rate: float) -> Needs:
    """What `rate` environment steps a second, acted and trained on once, take of each part."""
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
    turns = rate / work.num_envs
    fetches = 0.0 if plan.light else turns / (plan.sync_turns or length)  # of all actors
    reports = REPORT_HZ * actors

    # An actors' host: its actors, its relay, its tunnel.
    relayed = fetches * costs.hand_out(params) if plan.relays else 0.0
    carried = items * tunnel_send(wire) + reports * tunnel_send(0)
    if plan.light:
        carried += turns * (
            tunnel_send(work.request_bytes * work.num_envs)
            + tunnel_receive(work.answer_bytes * work.num_envs)
        )
    hosts = max(1, math.ceil((rate * each + relayed + carried) / (plan.use * plan.host.cores)))

    # What each host takes from the learner, a second.
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
            min(versions, taken or turns / length) * costs.pack(params)
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
        tunnel += turns * (
            tunnel_receive(work.request_bytes * work.num_envs)
            + tunnel_send(work.answer_bytes * work.num_envs)
        )
        loads["inferencers"] = Load(turns * work.answer, float(plan.num_inferencers), "cores")
    elif plan.relays:
        loads["relay of an actors' host"] = Load(relayed / hosts, 1.0, "cores")
    loads["tunnel of the first host"] = Load(tunnel, 1.0, "cores")
    loads["tunnel of an actors' host"] = Load(
        (carried + taken * tunnel_receive(params)) / hosts, 1.0, "cores"
    )
    on_first = sum(load.used for part, load in loads.items() if "actors' host" not in part)
    if plan.learner_speed != 1.0:  # of another device: its process waits for it on one core
        updates = loads["learner: updates"].used
        on_first += min(1.0, updates / plan.learner_speed) - updates
    loads["cores of the first host"] = Load(on_first, plan.use * plan.host.cores, "cores")
    loads["network into the first host"] = Load(bytes_in * 8e-9, plan.host.gbits, "Gbit/s")
    loads["network out of the first host"] = Load(bytes_out * 8e-9, plan.host.gbits, "Gbit/s")
    # Each actor has the replay's, the monitor's, and the learner's or inferencer's.
    per_actor = 2 if plan.relays and not plan.light else 3
    connections = actors * per_actor + (hosts if per_actor == 2 else 0)
    # Of the first host's tunnel, each connection has two.
    loads["connections of the first host"] = Load(
        OWN_DESCRIPTORS + 2 * connections, plan.descriptors, "descriptors"
    )
    return Needs(actors, hosts, connections, loads)


def limits(costs: Costs, work: Workload, plan: Plan) -> dict[str, float]:
    """The rate at which each part is full, the least first; a million million: never."""
    found = {}
    for part in needs(costs, work, plan, 1.0).loads:
        low, high = 1.0, 1e12
        while high > 1.001 * low:
            middle = math.sqrt(low * high)
            if needs(costs, work, plan, middle).loads[part].share < 1:
                low = middle
            else:
                high = middle
        found[part] = low
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _item_bytes(work: Workload, length: int) -> float:
    """Of an item: rows are T + 1."""
    row = work.unroll_bytes / (work.unroll_length + 1)
    return row * (length + 1) * work.unrolls_per_item
