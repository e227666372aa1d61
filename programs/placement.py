"""The hosts that run the nodes of a program on several machines, checked before anything starts."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.groups import LEARNER, num_gpus_together, num_services
from distrl.runtime.sockets import is_loopback
from distrl.runtime.working_folder import absolute

HOST_SETTINGS = {
    "address": (str, "address for the other hosts, its name unless given"),
    "cores": (int, "CPU cores; 0: unknown, actors are then spread evenly"),
    "gpus": (int, "GPUs that may be used"),
    "memory_gb": (float, "memory in gigabytes; 0: unknown"),
    "replay": (int, "number of the replay's shards on it"),
    "gradient_workers": (int, "number of gradient workers on it"),
    "learners": (int, "number of the learners' processes on it, of several policies"),
}
"""Type and meaning of what `--hosts` says of a host."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_SEPARATOR = re.compile(r":(?![^\[]*\])")  # not the colons of an IPv6 address, in brackets


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
      name: unique in the program; the launcher starts the host's daemon under this name.
      address, cores, gpus, memory_gb, replay, gradient_workers, learners: see `HOST_SETTINGS`.
    """

    name: str
    address: str = ""
    cores: int = 0
    gpus: int = 0
    memory_gb: float = 0.0
    replay: int = 0
    gradient_workers: int = 0
    learners: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"host {self.name!r}: expected a host name, such as h1 or node-3.example"
            )
        names = [name for name in HOST_SETTINGS if name != "address"]
        if not all(0 <= getattr(self, name) < math.inf for name in names):
            raise ConfigError(f"host {self.name}: {', '.join(names)} must be 0 or more, and finite")

    @property
    def reached_at(self) -> str:
        """Its address for the other hosts."""
        return self.address or self.name


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parses `h1,h2:cores=8:gpus=1,h3:address=10.0.0.3`, or `@FILE` with one host per line.

    An IPv6 address is in brackets, `h3:address=[fd00::3]`.

    Raises:
      ConfigError: the text is malformed; the message says where.
    """
    if text.startswith("@"):
        try:
            lines = absolute(text[1:]).read_text().splitlines()
        except OSError as error:
            raise ConfigError(f"--hosts={text}: {error.strerror}") from error
        words = [line.partition("#")[0].strip().replace(" ", ":") for line in lines]
    else:
        words = [word.strip() for word in text.split(",")]
    hosts = tuple(_host(word) for word in words if word)
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"--hosts: {', '.join(twice)} is named twice; name each host once: the nodes of one "
            "host are as many as the settings say, and a single host has the actors, too"
        )
    if not hosts:
        raise ConfigError("--hosts: name the machines, the learner's first: --hosts=h1,h2,h3")
    return hosts


def write_hosts(hosts: Sequence[Host]) -> str:
    """Returns the text from which `parse_hosts` makes these hosts."""

    def word(host: Host) -> str:
        values = {name: getattr(host, name) for name in HOST_SETTINGS}
        if ":" in host.address:  # an IPv6 address
            values["address"] = f"[{host.address}]"
        settings = [f"{name}={value}" for name, value in values.items() if value]
        return ":".join([host.name, *settings])

    return ",".join(map(word, hosts))


def _host(word: str) -> Host:
    name, *settings = [part for part in _SEPARATOR.split(word) if part]
    values: dict[str, str | int | float] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in HOST_SETTINGS or not equals:
            raise ConfigError(
                f"--hosts: {setting!r} of {name}: expected one of "
                f"{', '.join(f'{each}=' for each in HOST_SETTINGS)}"
            )
        try:
            values[key] = HOST_SETTINGS[key][0](value)
        except ValueError:
            raise ConfigError(f"--hosts: {key} of {name}: {value!r} is not a number") from None
        if key == "address":
            values[key] = value.removeprefix("[").removesuffix("]")
    return Host(name, **values)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Placement:
    """The host of each node.

    Attributes:
      hosts: the learner's host comes first.
      nodes: from a node's name, e.g. "actor/3", to its host's.
    """

    hosts: tuple[Host, ...]
    nodes: Mapping[str, str]

    def host_of(self, node: str) -> Host:
        """Returns the host of a node."""
        return next(host for host in self.hosts if host.name == self.nodes[node])

    @property
    def used(self) -> tuple[Host, ...]:
        """The hosts that have nodes, in their order."""
        return tuple(host for host in self.hosts if host.name in self.nodes.values())

    def on(self, host: str) -> list[str]:
        """Returns the names of a host's nodes."""
        return [node for node, name in self.nodes.items() if name == host]

    def table(self, gpus: Mapping[str, int]) -> str:
        """Returns a table of each node, its host, address and device, and which hosts have none.

        Args:
          gpus: GPUs of each node that has any.
        """
        rows = [("node", "host", "address", "device")]
        for node in self.nodes:
            host = self.host_of(node)
            count = gpus.get(node, 0)
            rows.append((node, host.name, host.reached_at, f"{count} GPU" if count else "cpu"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        idle = [host.name for host in self.hosts if host not in self.used]
        if idle:
            lines.append(f"no nodes on {', '.join(idle)}: raise --config.actors.num_actors")
        return "\n".join(lines)


def place(experiment: Experiment, hosts: Sequence[Host], light: bool) -> Placement:
    """Places actors on all hosts but the first, and the other nodes on the first.

    Actors go where most cores are left for them. Each other host with actors that have their own
    inferencers gets a relay of each task's parameters. The replay's shards, learners and gradient
    workers go to the hosts that declare them, if any. Nodes of several tasks are numbered task
    after task.

    Args:
      experiment: what to train.
      hosts: the learner's first; if it is the only one, it gets the actors too.
      light: whether inferencers serve the actors.

    Raises:
      ConfigError: more is declared than the hosts have.
    """
    hosts = tuple(hosts)
    first, others = hosts[0], hosts[1:] or hosts
    nodes = {**_shards(experiment, hosts), "monitor/0": first.name}
    nodes.update(_learners(experiment, hosts))
    nodes.update(_gradient_workers(experiment, hosts))
    if experiment.evaluator.num_evaluators:
        nodes["evaluator/0"] = first.name
    if experiment.population is not None:
        nodes["population/0"] = first.name
    if light:
        for index in range(num_services(experiment)):
            nodes[f"inferencer/{index}"] = first.name
    wanted = num_gpus_together(experiment, light)
    if wanted > first.gpus:
        raise ConfigError(
            f"learner and inferencers declare {wanted} GPUs, but their host {first.name} has "
            f"{first.gpus}: write --hosts={first.name}:gpus={wanted}"
        )
    taken = dict.fromkeys((host.name for host in others), 0)
    actors = {}
    for index in range(experiment.actors.largest_num_actors):
        host = min(others, key=lambda host: (taken[host.name] + 1) / (host.cores or 1))
        taken[host.name] += 1
        actors[f"actor/{index}"] = host.name
    if not light:
        relayed = [host.name for host in others if taken[host.name] and host is not first]
        relays = [name for name in relayed for _ in experiment.acting_tasks]
        nodes.update({f"relay/{index}": name for index, name in enumerate(relays)})
    placement = Placement(hosts, {**nodes, **actors})
    if light and experiment.inference.transport == "shared_memory":
        away = [name for name in actors if actors[name] != first.name]
        if away:
            raise ConfigError(
                f"inference.transport=shared_memory: {away[0]} is on {actors[away[0]]}, and the "
                f"inferencers are on {first.name}; leave it out, or take "
                "inference.transport=courier"
            )
    return placement


def check_addresses(placement: Placement) -> None:
    """Refuses a host that others would look for on themselves.

    Raises:
      ConfigError: a host whose nodes others call is reached at a loopback address, and not all are.
    """
    away = [host.name for host in placement.used if not is_loopback(host.reached_at)]
    for host in placement.used:
        called = [n for n in placement.on(host.name) if not n.startswith(("actor/", "relay/"))]
        if away and called and is_loopback(host.reached_at):
            raise ConfigError(
                f"--hosts: {away[0]} would look for {host.name} at {host.reached_at}, which is "
                f"{away[0]} itself; give an address that the other hosts reach: "
                f"{host.name}:address=10.0.0.4"
            )


def asks_on_one_host(placement: Placement) -> bool:
    """Returns whether all actors are on the host of the inferencers."""
    asking = [name for name in placement.nodes if name.startswith(("actor/", "inferencer/"))]
    return len({placement.nodes[name] for name in asking}) == 1


def relay_hosts(placement: Placement) -> list[str]:
    """Returns the hosts that have relays, in the relays' order."""
    hosts = [host for node, host in placement.nodes.items() if node.startswith("relay/")]
    return list(dict.fromkeys(hosts))


def _declared(hosts: Sequence[Host], field: str, count: int, wanted: str) -> list[Host]:
    """Returns a host for each of some nodes: those that declare them, or the first one for all.

    Args:
      hosts: the learner's first.
      field: the field of `Host` that says how many of the nodes a host gets.
      count: number of nodes.
      wanted: that number in words, for the message.

    Raises:
      ConfigError: the hosts declare another number.
    """
    numbers = {host: getattr(host, field) for host in hosts}
    declared = [host for host, number in numbers.items() for _ in range(number)]
    if declared and len(declared) != count:
        said = " + ".join(f"{host.name}:{field}={n}" for host, n in numbers.items() if n)
        raise ConfigError(f"--hosts: {said} are {len(declared)}, and {wanted}")
    return declared or [hosts[0]] * count


def _learners(experiment: Experiment, hosts: Sequence[Host]) -> dict[str, str]:
    """Returns the learners' nodes and their hosts."""
    groups, first = experiment.learner_nodes, hosts[0]
    names = ", ".join("+".join(group) for group in groups)
    wanted = f"the program has {len(groups)} learners: {names}"
    learners = _declared(hosts, "learners", len(groups), wanted)
    away = [host.name for host in learners if host is not first]
    if away and len(groups) == 1:
        raise ConfigError(
            f"--hosts: {away[0]}:learners=1 would move the one learner from {first.name}; name its "
            "host first"
        )
    if away and LEARNER.num_gpus(experiment):
        raise ConfigError(
            f"--hosts: learners on {', '.join(dict.fromkeys(away))} have no GPUs: "
            f"those of learner.num_gpus={LEARNER.num_gpus(experiment)} are on {first.name}; leave "
            "all learners there, or set it to 0"
        )
    if away and experiment.checkpoint.replay:
        raise ConfigError(
            f"--hosts: the tables of learners on {', '.join(dict.fromkeys(away))} cannot be saved: "
            f"the tables are on {first.name}; add --config.checkpoint.replay=False, or leave the "
            "learners there"
        )
    return {f"learner/{index}": host.name for index, host in enumerate(learners)}


def _shards(experiment: Experiment, hosts: Sequence[Host]) -> dict[str, str]:
    """Returns the replay's nodes and their hosts."""
    count = sum(task.replay.num_shards for task in experiment.tasks.values())
    first = hosts[0]
    shards = _declared(hosts, "replay", count, f"replay.num_shards={count}")
    away = [host.name for host in shards if host is not first]
    if away and experiment.checkpoint.replay:
        raise ConfigError(
            f"--hosts: the replay's shards on {', '.join(dict.fromkeys(away))} cannot be saved: "
            f"checkpoints are written on {first.name}; add --config.checkpoint.replay=False, or "
            "leave the shards beside the learner"
        )
    return {f"replay/{index}": host.name for index, host in enumerate(shards)}


def _gradient_workers(experiment: Experiment, hosts: Sequence[Host]) -> dict[str, str]:
    """Returns the gradient workers' nodes and their hosts."""
    count = sum(task.learner.num_gradient_workers for task in experiment.tasks.values())
    wanted = f"learner.num_gradient_workers={count}"
    workers = _declared(hosts, "gradient_workers", count, wanted)
    return {f"gradient_worker/{index}": host.name for index, host in enumerate(workers)}
