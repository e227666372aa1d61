"""The objects of one run in Kubernetes, each as a dictionary; see `kubernetes`."""

import base64
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distrl.programs.placement import Host

CREDENTIALS = "/etc/distrl/credentials.pem"  # in every pod: certificate, then key
RUNS = "/runs"  # in every pod; what the launcher and the learner's host write there lasts
LAUNCHER = "launcher"
TUNNEL_PORT, JOIN_PORT = 7420, 7421

Document = dict[str, Any]

_USER = 1000  # the image's
_CONTAINER = "distrl"
_NODE = {"topologyKey": "kubernetes.io/hostname"}
_LAUNCHER_CORES, _LAUNCHER_GB = 1, 4.0
_UNREACHABLE_S = 30  # until the pods of a node that is gone are replaced; five minutes otherwise
_LAUNCHER_RESTARTS, _AGENT_RESTARTS = 10, 100
_FAILED, _BAD_INPUT = 1, 2  # exit statuses; see distrl.launch.supervision.result


def host_address(name: str, host: str) -> str:
    """By which the pods of the run `name` reach the pod of a host, or of the LAUNCHER."""
    return f"{host}.{name}"


@dataclasses.dataclass
class Pods:
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
