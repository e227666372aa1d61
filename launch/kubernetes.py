"""A program over several machines as Kubernetes objects: for `kubectl create -f FILE`.

Each host of the placement is a Job of one pod that runs `distrl agent`; the launcher is one more.
A headless Service gives the pods names, NetworkPolicies close them to all others, and a Secret has
the credentials of this run, which both ends of every connection must show.

A pod that is lost is replaced. So is the launcher's, which then goes on from the last checkpoint;
but not before the cluster knows that the old one has ended, and not where the program failed by
itself (status 1) or cannot work (2). Needs Kubernetes 1.26.
"""

import base64
import dataclasses
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrl.errors import ConfigError

if TYPE_CHECKING:
    from programs.placement import Host, Placement

CREDENTIALS = "/etc/distrl/credentials.pem"  # in every pod: certificate, then key
RUNS = "/runs"  # in every pod; what the launcher and the learner's host write there lasts
LAUNCHER = "launcher"
TUNNEL_PORT, JOIN_PORT = 7420, 7421

Document = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
_DOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_LONGEST = 63  # characters of a label
_USER = 1000  # the image's
_CONTAINER = "distrl"
_NODE = {"topologyKey": "kubernetes.io/hostname"}
_LAUNCHER_CORES, _LAUNCHER_GB = 1, 4.0
_GRACE_S = 30.0  # for a host that has nothing to save
_UNREACHABLE_S = 30  # until the pods of a node that is gone are replaced; five minutes otherwise
_LAUNCHER_RESTARTS, _AGENT_RESTARTS = 10, 100
_FAILED, _BAD_INPUT = 1, 2  # exit statuses; see launch.result


def host_address(name: str, host: str) -> str:
    """By which the pods of the run `name` reach the pod of a host, or of the LAUNCHER."""
    return f"{host}.{name}"


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
    pods = _Pods(image, name, _storage(storage), tunnel_port, join_port)
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


@dataclasses.dataclass
class _Pods:
    """What all pods of a run have in common."""

    image: str
    name: str
    storage: Document
    tunnel_port: int
    join_port: int

    def __post_init__(self) -> None:
        self.labels = {"app.kubernetes.io/name": "distrl", "app.kubernetes.io/instance": self.name}

    def of(self, host: str) -> dict[str, str]:
        """The labels of one pod."""
        return {**self.labels, "distrl/host": host}

    def _object(self, api: str, kind: str, name: str, **rest: Any) -> Document:
        metadata = {"name": name, "labels": self.labels}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}

    def secret(self, credentials: tuple[bytes, bytes]) -> Document:
        pem = b"\n".join(part.strip() for part in credentials) + b"\n"
        data = {Path(CREDENTIALS).name: base64.b64encode(pem).decode()}
        return self._object("v1", "Secret", self.name, type="Opaque", immutable=True, data=data)

    def service(self) -> Document:
        """It has no address of its own: it makes the pods' names."""
        ports = [
            {"name": "tunnel", "port": self.tunnel_port},
            {"name": "join", "port": self.join_port},
        ]
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self.labels,
            "ports": ports,
        }
        return self._object("v1", "Service", self.name, spec=spec)

    def policy(self, name: str, to: dict[str, str], port: int) -> Document:
        """Only the run's pods may connect to those with the labels `to`, and to this port."""
        ingress = {
            "from": [{"podSelector": {"matchLabels": self.labels}}],
            "ports": [{"protocol": "TCP", "port": port}],
        }
        spec = {
            "podSelector": {"matchLabels": to},
            "policyTypes": ["Ingress"],
            "ingress": [ingress],
        }
        return self._object("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)

    def host(self, host: "Host", lasting: bool, grace: float) -> Document:
        """A host's Job. One that is cut off ends by itself, so another may begin before it has."""
        term = {"labelSelector": {"matchLabels": self.labels}, **_NODE}
        preferred = [{"weight": 100, "podAffinityTerm": term}]  # each on a node of its own
        command = [
            "distrl",
            "agent",
            f"--join={host_address(self.name, LAUNCHER)}:{self.join_port}",
            f"--credentials={CREDENTIALS}",
            f"--name={host.name}",
            f"--tunnel_port={self.tunnel_port}",
        ]
        pod = self._pod(host.name, "OnFailure", lasting, grace)
        pod["affinity"] = {
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        }
        pod["containers"] = [
            self._container(
                command,
                _resources(host.cores, host.memory_gb, host.gpus),
                {"name": "tunnel", "containerPort": self.tunnel_port},
            )
        ]
        return self._job(host.name, pod, {"backoffLimit": _AGENT_RESTARTS})

    def launcher(self, command: Sequence[str], first: str, grace: float) -> Document:
        """The launcher's Job: on the node of the host `first`, with which it shares the storage."""
        term = {"labelSelector": {"matchLabels": self.of(first)}, **_NODE}
        pod = self._pod(LAUNCHER, "Never", True, grace)
        pod["affinity"] = {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
        pod["containers"] = [
            self._container(
                list(command),
                _resources(_LAUNCHER_CORES, _LAUNCHER_GB, 0),
                {"name": "join", "containerPort": self.join_port},
            )
        ]
        disrupted = [{"type": "DisruptionTarget", "status": "True"}]
        final = {"containerName": _CONTAINER, "operator": "In", "values": [_FAILED, _BAD_INPUT]}
        rules = [
            {"action": "Ignore", "onPodConditions": disrupted},  # the cluster took it away
            # The schemas before 1.29 want the empty list.
            {"action": "FailJob", "onExitCodes": final, "onPodConditions": []},
        ]
        options = {"backoffLimit": _LAUNCHER_RESTARTS, "podFailurePolicy": {"rules": rules}}
        return self._job(LAUNCHER, pod, options)

    def _job(self, host: str, pod: Document, options: Document) -> Document:
        template = {"metadata": {"labels": self.of(host)}, "spec": pod}
        spec = {**options, "template": template}
        return self._object("batch/v1", "Job", f"{self.name}-{host}", spec=spec)

    def _pod(self, host: str, restart: str, lasting: bool, grace: float) -> Document:
        """All but what it runs and where; RUNS is the storage where `lasting`."""
        gone = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _UNREACHABLE_S}
        return {
            "hostname": host,
            "subdomain": self.name,
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": math.ceil(grace),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [
                {"key": f"node.kubernetes.io/{state}", **gone}
                for state in ("not-ready", "unreachable")
            ],
            "volumes": [
                {"name": "credentials", "secret": {"secretName": self.name, "defaultMode": 0o440}},
                {"name": "runs", **(self.storage if lasting else {"emptyDir": {}})},
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},  # without it there are 64 MB
            ],
        }

    def _container(self, command: list[str], resources: Document, port: Document) -> Document:
        return {
            "name": _CONTAINER,
            "image": self.image,
            "args": command,  # of the image's entry point, which collects what ended
            "env": [{"name": "HOME", "value": "/tmp"}],
            "ports": [port],
            "resources": resources,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {
                    "name": "credentials",
                    "mountPath": str(Path(CREDENTIALS).parent),
                    "readOnly": True,
                },
                {"name": "runs", "mountPath": RUNS},
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }


def _resources(cores: int, memory_gb: float, gpus: int) -> Document:
    """No limit on cores: a node that is not full may give more."""
    memory = f"{math.ceil(memory_gb * 1000)}M"
    limits: Document = {"memory": memory}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    return {"requests": {"cpu": str(cores), "memory": memory}, "limits": limits}


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

    Without references, which labels in many places would become; and what is a string here but might
    be a number or a truth elsewhere (`1e3`, `y`) is quoted.
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
