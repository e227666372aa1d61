"""A program on several machines as Kubernetes objects, for `kubectl create -f FILE`.

Each host of the placement is a Job of one pod that runs `distrl host-daemon`; the launcher is one
more Job. A headless Service gives the pods names, NetworkPolicies close them to all other pods, and
a Secret holds the run's credentials, which both ends of every connection must show.

A lost pod is replaced. The launcher's is too, and then resumes from the last checkpoint; but not
before the cluster knows that the old one has ended, and not after the program has failed (exit
status 1) or had bad input (2). Needs Kubernetes 1.26.
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
    JOIN_S,
    LAUNCHER,
    RUNS,
    TUNNEL_PORT,
    Document,
    RunObjects,
    host_address,
)
from distrl.runtime.files import write_private

if TYPE_CHECKING:
    from distrl.programs.placement import Host, Placement

__all__ = [
    "CREDENTIALS",
    "JOIN_PORT",
    "JOIN_S",
    "LAUNCHER",
    "RUNS",
    "TUNNEL_PORT",
    "host_address",
    "manifests",
    "write",
]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
_DOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_LABEL_LENGTH = 63
_GRACE_S = 30.0  # for a host without checkpoints to save


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
    """Returns the Kubernetes objects of one run.

    Args:
      placement: the program's hosts, each with its cores and memory.
      command: the launcher's command in its pod. It must write to a folder in RUNS, read
        CREDENTIALS and listen on `join_port`.
      image: an image that the repository's Dockerfile makes, or one with `distrl` on its path.
      name: name of the run, unique in its namespace; all objects' names begin with it.
      credentials: certificate and private key (PEM).
      storage: what is mounted at RUNS in the pods that save, those of the launcher and of hosts
        with learners: `claim:NAME`, an existing PersistentVolumeClaim, or `path:/FOLDER`, a folder
        of the cluster node that runs them.
      grace: seconds that the program needs to stop, including its last checkpoint.
      tunnel_port: port on which each host listens for the others.
      join_port: port on which the launcher listens for the hosts.

    Raises:
      ConfigError: a name that Kubernetes does not accept; a host without cores or memory.
    """
    _check_label(name, "name")
    if not name[0].isalpha():
        raise ConfigError(f"name {name!r}: Kubernetes requires a letter first")
    for host in placement.hosts:
        _check_host(host, name)
    objects = RunObjects(image, name, _storage(storage), tunnel_port, join_port)
    first = placement.hosts[0].name
    jobs = []
    for host in placement.hosts:
        saves = host.name == first or host.learners > 0
        jobs.append(objects.host(host, persistent=saves, grace=grace if saves else _GRACE_S))
    return [
        objects.secret(credentials),
        objects.service(),
        objects.policy(name, objects.labels, tunnel_port),
        objects.policy(f"{name}-{LAUNCHER}", objects.pod_labels(LAUNCHER), join_port),
        *jobs,
        objects.launcher(command, first, grace),
    ]


def write(path: str | os.PathLike[str], documents: Sequence[Document]) -> None:
    """Writes a file for kubectl, readable by this user alone: it has the run's private key."""
    import yaml

    text = yaml.dump_all(documents, None, _plain_dumper(), sort_keys=False)
    write_private(Path(path), text.encode())


def _storage(storage: str) -> Document:
    kind, _, where = storage.partition(":")
    if kind == "claim":
        if not _DOMAIN.fullmatch(where) or len(where) > 253:
            raise ConfigError(f"storage {storage!r}: not a valid name of a claim in Kubernetes")
        return {"persistentVolumeClaim": {"claimName": where}}
    if kind == "path" and where.startswith("/"):
        return {"hostPath": {"path": where, "type": "Directory"}}
    raise ConfigError(
        f"storage {storage!r}: expected claim:NAME, a PersistentVolumeClaim, or path:/FOLDER, a "
        "folder of the learner's node"
    )


def _check_host(host: "Host", name: str) -> None:
    if host.name == LAUNCHER:
        raise ConfigError(f"host {LAUNCHER}: the launcher's pod has this name; choose another one")
    _check_label(host.name, "host")
    _check_label(f"{name}-{host.name}", "name and host")
    if not host.cores or not host.memory_gb:
        raise ConfigError(
            f"host {host.name}: Kubernetes needs to know its cores and memory: "
            f"--hosts={host.name}:cores=8:memory_gb=16"
        )


def _check_label(text: str, what: str) -> None:
    if not _LABEL.fullmatch(text) or len(text) > _LABEL_LENGTH:
        raise ConfigError(
            f"{what} {text!r}: Kubernetes allows lower-case letters, digits and -, at most "
            f"{_LABEL_LENGTH} of them, with a letter or digit first and last"
        )


def _plain_dumper() -> Any:
    """Returns a dumper of YAML that all parsers read alike.

    It writes no references, which repeated labels would become, and quotes strings that some
    parsers take for a number or a boolean (`1e3`, `y`).
    """
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def string(dumper: Plain, text: str) -> Any:
        ambiguous = len(text) < 2 or text[0] in "0123456789+-."
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if ambiguous else None)

    Plain.add_representer(str, string)
    return Plain
