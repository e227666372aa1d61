"""What a program asks of a Ray cluster: a bundle of resources per host. Does not import Ray."""

from collections.abc import Mapping, Sequence
from typing import Any

from distrl.errors import ConfigError
from distrl.programs.placement import Host

Bundle = dict[str, float]
Node = Mapping[str, Any]
"""A node as `ray.nodes()` describes it, with what is free of its resources in "Available"."""

_PINNED = 0.001  # amount of the resource that is named after a node, of which the node has 1
_NAMES = {"CPU": "CPU", "GPU": "GPU", "memory": "bytes of memory"}


def bundle(host: Host) -> Bundle:
    """Returns a host's resources: its cores (one if unknown), GPUs and memory.

    A host with an address is placed on the cluster's node of that address.
    """
    wanted: Bundle = {"CPU": float(host.cores or 1)}
    if host.gpus:
        wanted["GPU"] = float(host.gpus)
    if host.memory_gb:
        wanted["memory"] = float(int(host.memory_gb * 1e9))
    if host.address:
        wanted[_node_resource(host.address)] = _PINNED
    return wanted


def hosts_of(nodes: Sequence[Node]) -> tuple[Host, ...]:
    """Returns a host for each node that lives and has a CPU; one with most GPUs comes first.

    Each is bound to its node by its address, so that its name is that of the node it runs on.

    Raises:
      ConfigError: there is none.
    """
    hosts = [
        Host(
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            cores=int(node["Resources"]["CPU"]),
            gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in nodes
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    ]
    if not hosts:
        raise ConfigError("Ray: no node of the cluster has a CPU")
    if len({host.name for host in hosts}) < len(hosts):  # several nodes on one machine
        raise ConfigError(
            "Ray: several nodes of the cluster have the same host name: name the hosts, as in "
            f"--hosts=a:cores=4:address={hosts[0].address},b:cores=4"
        )
    return tuple(sorted(hosts, key=lambda host: (-host.gpus, host.name)))


def why_unplaced(hosts: Sequence[Host], nodes: Sequence[Node]) -> str:
    """Returns one line that says why the hosts have no place on the cluster.

    Args:
      hosts: those that were asked for, each on a separate node.
      nodes: the cluster's nodes.
    """
    living = [node for node in nodes if node["Alive"]]
    if len(hosts) > len(living):
        return f"{len(hosts)} hosts need nodes of their own, and the cluster has {len(living)}"
    for host in hosts:
        wanted = bundle(host)
        if host.address and not any(n["NodeManagerAddress"] == host.address for n in living):
            addresses = ", ".join(sorted(node["NodeManagerAddress"] for node in living))
            return (
                f"host {host.name}: no node has the address {host.address}; there are {addresses}"
            )
        if not any(_has(node["Resources"], wanted) for node in living):
            return f"host {host.name} needs {_text(wanted)}: no node has that; {_list(living)}"
    free = _list(living, "Available")
    asked = "; ".join(f"{host.name} {_text(bundle(host))}" for host in hosts)
    return f"not enough is free on separate nodes: asked for {asked}; free: {free}"


def _node_resource(address: str) -> str:
    return f"node:{address}"


def _has(resources: Mapping[str, float], wanted: Bundle) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in wanted.items())


def _list(nodes: Sequence[Node], which: str = "Resources") -> str:
    return "; ".join(f"{node['NodeManagerHostname']} {_text(node[which])}" for node in nodes)


def _text(resources: Mapping[str, float]) -> str:
    """Returns "4 CPU, 1 GPU" of a node's or a bundle's resources."""
    shown = [name for name in _NAMES if name == "CPU" or resources.get(name)]
    return ", ".join(f"{resources.get(name, 0):.12g} {_NAMES[name]}" for name in shown)
