"""The Kubernetes objects of one run, each as a dictionary; see `kubernetes`."""

import base64
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrl.launch.supervision.result import EXIT_FINISHED, FINAL

if TYPE_CHECKING:
    from distrl.programs.placement import Host

CREDENTIALS = "/etc/distrl/credentials.pem"  # in every pod: certificate, then key
RUNS = "/runs"  # in every pod; persistent for the launcher and hosts with learners
LAUNCHER = "launcher"
TUNNEL_PORT, JOIN_PORT = 7420, 7421
JOIN_S = 3600.0  # for all pods to start: an image is pulled, a node is added, a queue moves

Document = dict[str, Any]

_USER = 1000  # the image's user
_CONTAINER = "distrl"
_NODE = {"topologyKey": "kubernetes.io/hostname"}
_LAUNCHER_CORES, _LAUNCHER_GB = 1, 4.0
_UNREACHABLE_S = 30  # until the pods of a lost cluster node are replaced; default: five minutes
_LAUNCHER_RESTARTS = 10
# Each loss of its node counts; and so many times a pod that comes too late waits for the launcher.
_DAEMON_RESTARTS = 20


def host_address(name: str, host: str) -> str:
    """Returns the DNS name of a host's pod, for the other pods of its run.

    Args:
      name: name of the run.
      host: name of a host, or LAUNCHER.
    """
    return f"{host}.{name}"


@dataclasses.dataclass
class RunObjects:
    """Makes the objects of a run.

    Attributes:
      image: the image of all pods.
      name: name of the run.
      storage: the volume that is mounted at RUNS.
      tunnel_port: port on which each host listens for the others.
      join_port: port on which the launcher listens for the hosts.
    """

    image: str
    name: str
    storage: Document
    tunnel_port: int
    join_port: int

    def __post_init__(self) -> None:
        self.labels = {"app.kubernetes.io/name": "distrl", "app.kubernetes.io/instance": self.name}

    def pod_labels(self, host: str) -> dict[str, str]:
        """Returns the labels of one pod."""
        return {**self.labels, "distrl/host": host}

    def _object(self, api: str, kind: str, name: str, **rest: Any) -> Document:
        metadata = {"name": name, "labels": self.labels}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}

    def secret(self, credentials: tuple[bytes, bytes]) -> Document:
        """Returns the secret with the certificate and the private key."""
        pem = b"\n".join(part.strip() for part in credentials) + b"\n"
        data = {Path(CREDENTIALS).name: base64.b64encode(pem).decode()}
        return self._object("v1", "Secret", self.name, type="Opaque", immutable=True, data=data)

    def service(self) -> Document:
        """Returns a headless service, which gives the pods their DNS names."""
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
        """Returns a policy that lets only the run's pods connect, and only to one port.

        Args:
          name: name of the policy.
          to: labels of the pods that the policy protects.
          port: the port.
        """
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

    def host(self, host: "Host", persistent: bool, grace: float) -> Document:
        """Returns a host's Job.

        A pod that is cut off ends by itself, so another one may start before it has ended.

        Args:
          host: the host.
          persistent: whether RUNS is the persistent storage.
          grace: seconds that it needs to stop.
        """
        term = {"labelSelector": {"matchLabels": self.labels}, **_NODE}
        preferred = [{"weight": 100, "podAffinityTerm": term}]  # spread over the cluster's nodes
        command = [
            "distrl",
            "host-daemon",
            f"--join={host_address(self.name, LAUNCHER)}:{self.join_port}",
            f"--credentials={CREDENTIALS}",
            f"--name={host.name}",
            f"--tunnel_port={self.tunnel_port}",
        ]
        pod = self._pod(host.name, "OnFailure", persistent, grace)
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
        return self._job(host.name, pod, {"backoffLimit": _DAEMON_RESTARTS})

    def launcher(self, command: Sequence[str], first: str, grace: float) -> Document:
        """Returns the launcher's Job.

        Args:
          command: the launcher's command.
          first: the learner's host; the launcher runs beside it and shares its storage.
          grace: seconds that it needs to stop.
        """
        term = {"labelSelector": {"matchLabels": self.pod_labels(first)}, **_NODE}
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
        final = {
            "containerName": _CONTAINER,
            "operator": "In",
            "values": [code for code in FINAL if code != EXIT_FINISHED],
        }
        rules = [
            {"action": "Ignore", "onPodConditions": disrupted},  # the cluster evicted it
            # Schemas before 1.29 require the empty list.
            {"action": "FailJob", "onExitCodes": final, "onPodConditions": []},
        ]
        options = {"backoffLimit": _LAUNCHER_RESTARTS, "podFailurePolicy": {"rules": rules}}
        return self._job(LAUNCHER, pod, options)

    def _job(self, host: str, pod: Document, options: Document) -> Document:
        template = {"metadata": {"labels": self.pod_labels(host)}, "spec": pod}
        spec = {**options, "template": template}
        return self._object("batch/v1", "Job", f"{self.name}-{host}", spec=spec)

    def _pod(self, host: str, restart: str, persistent: bool, grace: float) -> Document:
        """Returns a pod without its containers and its affinity."""
        unreachable = {
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _UNREACHABLE_S,
        }
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
                {"key": f"node.kubernetes.io/{state}", **unreachable}
                for state in ("not-ready", "unreachable")
            ],
            "volumes": [
                {"name": "credentials", "secret": {"secretName": self.name, "defaultMode": 0o440}},
                {"name": "runs", **(self.storage if persistent else {"emptyDir": {}})},
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},  # the default has 64 MB
            ],
        }

    def _container(self, command: list[str], resources: Document, port: Document) -> Document:
        return {
            "name": _CONTAINER,
            "image": self.image,
            "args": command,  # arguments of the image's entry point, which reaps orphans
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
    """Returns requests and limits; cores have no limit, so that a pod may use idle ones."""
    memory = f"{math.ceil(memory_gb * 1000)}M"
    limits: Document = {"memory": memory}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    return {"requests": {"cpu": str(cores), "memory": memory}, "limits": limits}
