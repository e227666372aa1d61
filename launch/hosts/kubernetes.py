"""A program over several machines as Kubernetes objects: for `kubectl create -f FILE`.

Each host of the placement is a Job of one pod that runs `distrl agent`; the launcher is one more.
A headless Service gives the pods names, NetworkPolicies close them to all others, and a Secret has
the credentials of this run, which both ends of every connection must show.

A pod that is lost is replaced. So is the launcher's, which then goes on from the last checkpoint;
but not before the cluster knows that the old one has ended, and not where the program failed by
itself (status 1) or cannot work (2). Needs Kubernetes 1.26.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrl.errors import ConfigError
from distrl.launch.hosts.kubernetes_objects import (
    CREDENTIALS,
    JOIN_PORT,
    LAUNCHER,
    RUNS,
    TUNNEL_PORT,
    Document,
    Pods,
    host_address,
)

if TYPE_CHECKING:
    from distrl.programs.placement import Host, Placement

__all__ = [
    "CREDENTIALS",
    "JOIN_PORT",
    "LAUNCHER",
    "RUNS",
    "TUNNEL_PORT",
    "host_address",
    "manifests",
    "write",
]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
_DOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_LONGEST = 63  # characters of a label
_GRACE_S = 30.0  # for a host that has nothing to save


def manifests(
    placement: "Placement",
    command: Sequence[str],
    image: str,
    name: str,
    credentials: tuple[bytes, bytes],
    *,
    storage: str,
    grace: float = 60.0,
    tunnel_port: int = TUNNEL_PORT,
    join_port: int = JOIN_PORT,
) -> list[Document]:
    """The objects of one run.

    Args:
      placement: its hosts; each says its cores and memory.
      command: of the launcher, in its pod: it writes below RUNS, takes CREDENTIALS and listens on
        `join_port`.
      image: that the repository's Dockerfile makes, or one that has `distrl` on its path.
      name: of the run, unique in its namespace; every object's name begins with it.
      credentials: certificate and private key (PEM).
      storage: of RUNS: `claim:NAME`, a PersistentVolumeClaim that is there, or `path:/FOLDER`, a
        folder of the node that the learner's host is on.
      grace: seconds that the program needs to stop, its last checkpoint included.
      tunnel_port: on which every host listens for the others.
      join_port: on which the launcher listens for the hosts.

    Raises:
      ConfigError: a name that Kubernetes does not take; a host without cores or memory.
    """
    _check_label(name, "name")
    if not name[0].isalpha():
        raise ConfigError(f"name {name!r}: Kubernetes wants a letter first")
    for host in placement.hosts:
        _check_host(host, name)
    pods = Pods(image, name, _storage(storage), tunnel_port, join_port)
    first = placement.hosts[0].name
    jobs = [
        pods.host(host, lasting=host.name == first, grace=grace if host.name == first else _GRACE_S)
        for host in placement.hosts
    ]
    return [
        pods.secret(credentials),
        pods.service(),
        pods.policy(name, pods.labels, tunnel_port),
        pods.policy(f"{name}-{LAUNCHER}", pods.of(LAUNCHER), join_port),
        *jobs,
        pods.launcher(command, first, grace),
    ]


def write(path: str | os.PathLike[str], documents: Sequence[Document]) -> None:
    """Writes a file for kubectl. It holds the run's private key: nobody else may read it."""
    import yaml

    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        yaml.dump_all(documents, file, _plain_dumper(), sort_keys=False)
    os.replace(part, path)


def _storage(storage: str) -> Document:
    kind, _, where = storage.partition(":")
    if kind == "claim":
        if not _DOMAIN.fullmatch(where) or len(where) > 253:
            raise ConfigError(f"storage {storage!r}: Kubernetes has no claim of such a name")
        return {"persistentVolumeClaim": {"claimName": where}}
    if kind == "path" and where.startswith("/"):
        return {"hostPath": {"path": where, "type": "Directory"}}
    raise ConfigError(
        f"storage {storage!r}: expected claim:NAME, a PersistentVolumeClaim, or path:/FOLDER, a "
        "folder of the learner's node"
    )


def _check_host(host: "Host", name: str) -> None:
    if host.name == LAUNCHER:
        raise ConfigError(f"host {LAUNCHER}: the launcher's pod has that name; take another one")
    _check_label(host.name, "host")
    _check_label(f"{name}-{host.name}", "name and host")
    if not host.cores or not host.memory_gb:
        raise ConfigError(
            f"host {host.name}: Kubernetes is told what a pod needs: "
            f"--hosts={host.name}:cores=8:memory_gb=16"
        )


def _check_label(text: str, what: str) -> None:
    if not _LABEL.fullmatch(text) or len(text) > _LONGEST:
        raise ConfigError(
            f"{what} {text!r}: Kubernetes takes lower-case letters, digits and -, at most "
            f"{_LONGEST} of them, a letter or digit first and last"
        )


def _plain_dumper() -> Any:
    """Of YAML that every reader takes for the same.

    Without references, which labels in many places would become; and what is a string here but
    might be a number or a truth elsewhere (`1e3`, `y`) is quoted.
    """
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def string(dumper: Plain, text: str) -> Any:
        doubtful = len(text) < 2 or text[0] in "0123456789+-."
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if doubtful else None)

    Plain.add_representer(str, string)
    return Plain
