"""The Kubernetes objects of a run: their schemas, and errors that only a cluster would report."""

import base64
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distrl.errors import ConfigError
from distrl.launch.hosts import kubernetes

yaml = pytest.importorskip("yaml")

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1035, which is the narrowest
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
COMMAND = ["distrl", "train", "--env=CartPole-v1", f"--run_dir={kubernetes.RUNS}/it's one"]
CREDENTIALS = (b"-----BEGIN CERTIFICATE-----\nC\n", b"-----BEGIN PRIVATE KEY-----\nK\n")


class Host(NamedTuple):
    name: str
    cores: int = 4
    gpus: int = 0
    memory_gb: float = 8.0
    learners: int = 0


class Placement(NamedTuple):
    hosts: tuple[Host, ...]


HOSTS = Placement((Host("h1", 8, 1, 32), Host("h2"), Host("h3", memory_gb=2.5)))


def made(placement: Placement = HOSTS, **options: Any) -> list[dict[str, Any]]:
    settings: dict[str, Any] = {"name": "first-run", "storage": "claim:runs", **options}
    return kubernetes.manifests(
        placement, COMMAND, "registry.example/distrl:1", credentials=CREDENTIALS, **settings
    )


def of_kind(kind: str, **options: Any) -> dict[str, Any]:
    """Objects by name."""
    return {d["metadata"]["name"]: d for d in made(**options) if d["kind"] == kind}


def pods(**options: Any) -> dict[str, Any]:
    """Pods' specifications by host."""
    return {
        name.removeprefix("first-run-"): job["spec"]["template"]["spec"]
        for name, job in of_kind("Job", **options).items()
    }


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, path)
    else:
        yield path, value


def test_a_host_is_a_job_and_the_launcher_one_more():
    jobs = of_kind("Job")
    assert list(jobs) == ["first-run-h1", "first-run-h2", "first-run-h3", "first-run-launcher"]
    assert pods()["launcher"]["containers"][0]["args"] == COMMAND
    assert pods()["h2"]["containers"][0]["args"] == [
        "distrl",
        "host-daemon",
        "--join=launcher.first-run:7421",
        "--credentials=/etc/distrl/credentials.pem",
        "--name=h2",
        "--tunnel_port=7420",
    ]


def test_names_are_valid_and_unique():
    documents = made()
    keys = [(d["kind"], d["metadata"]["name"]) for d in documents]
    assert len(set(keys)) == len(keys)
    for document in documents:
        assert LABEL.fullmatch(document["metadata"]["name"])
        for value in document["metadata"]["labels"].values():
            assert LABEL.fullmatch(value)
    for pod in pods().values():
        names = [volume["name"] for volume in pod["volumes"]]
        assert len(set(names)) == len(names) and all(map(LABEL.fullmatch, names))
        [container] = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == set(names)
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(set(paths)) == len(paths)
        assert all(len(port["name"]) <= 15 for port in container["ports"])  # IANA's limit


def test_a_pod_is_found_by_the_name_that_others_use():
    (service,) = of_kind("Service").values()
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    for host, pod in pods().items():
        labels = of_kind("Job")[f"first-run-{host}"]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert f"{pod['hostname']}.{pod['subdomain']}" == kubernetes.host_address("first-run", host)
        assert pod["subdomain"] == service["metadata"]["name"]


def test_only_the_runs_pods_connect_and_only_to_their_ports():
    policies = of_kind("NetworkPolicy", tunnel_port=7520, join_port=7521)
    reached: dict[str, set[int]] = {}
    for name, job in of_kind("Job").items():
        labels = job["spec"]["template"]["metadata"]["labels"]
        for policy in policies.values():
            assert policy["spec"]["policyTypes"] == ["Ingress"]
            (ingress,) = policy["spec"]["ingress"]
            (source,) = ingress["from"]
            selector = source["podSelector"]["matchLabels"]
            assert selector["app.kubernetes.io/instance"] == "first-run"
            assert selector.items() <= labels.items()
            if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items():
                ports = {port["port"] for port in ingress["ports"]}
                reached[name] = reached.get(name, set()) | ports
    assert reached.pop("first-run-launcher") == {7520, 7521}
    assert reached == {f"first-run-h{i}": {7520} for i in (1, 2, 3)}


def test_resources_are_what_the_hosts_have():
    of = {host: pod["containers"][0]["resources"] for host, pod in pods().items()}
    assert of["h1"] == {
        "requests": {"cpu": "8", "memory": "32000M"},
        "limits": {"memory": "32000M", "nvidia.com/gpu": "1"},
    }
    assert of["h3"] == {"requests": {"cpu": "4", "memory": "2500M"}, "limits": {"memory": "2500M"}}
    for path, value in leaves(list(of.values())):
        assert QUANTITY.fullmatch(value), path


def test_what_is_restarted():
    for name, job in of_kind("Job", grace=90.5).items():
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        if name != "first-run-launcher":
            # A Job that may replace a pod before it has ended has no rules of failure.
            assert pod["restartPolicy"] == "OnFailure" and "podFailurePolicy" not in spec
            continue
        # Rules of failure are for pods that are not restarted in place.
        assert pod["restartPolicy"] == "Never" and spec["backoffLimit"] > 0
        ignored, final = spec["podFailurePolicy"]["rules"]
        assert ignored["action"] == "Ignore"
        assert final["action"] == "FailJob" and not final["onPodConditions"]
        assert final["onExitCodes"]["values"] == [1, 2]
        assert final["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    grace = {host: pod["terminationGracePeriodSeconds"] for host, pod in pods(grace=90.5).items()}
    assert grace == {"h1": 91, "h2": 30, "h3": 30, "launcher": 91}


@pytest.mark.parametrize(
    ("storage", "volume"),
    [
        ("claim:runs", {"persistentVolumeClaim": {"claimName": "runs"}}),
        ("path:/srv/runs", {"hostPath": {"path": "/srv/runs", "type": "Directory"}}),
    ],
)
def test_runs_are_persistent_where_the_learner_is(storage: str, volume: dict[str, Any]):
    h1, h2, h3 = HOSTS.hosts
    for hosts, saving in (
        ((h1, h2, h3), {"h1", "launcher"}),
        ((h1, h2, h3._replace(learners=1)), {"h1", "h3", "launcher"}),
    ):
        for host, pod in pods(placement=Placement(hosts), storage=storage, grace=90.0).items():
            runs = next(each for each in pod["volumes"] if each["name"] == "runs")
            assert runs == {"name": "runs", **(volume if host in saving else {"emptyDir": {}})}
            assert pod["terminationGracePeriodSeconds"] == (90 if host in saving else 30)
    # A volume that one node may have at a time, or a folder of it: both pods are on that node.
    (term,) = pods()["launcher"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    template = of_kind("Job")["first-run-h1"]["spec"]["template"]
    assert term["labelSelector"]["matchLabels"] == template["metadata"]["labels"]


def test_pods_meet_the_restricted_security_standard():
    for pod in pods().values():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] > 0 and context["fsGroup"] > 0
        assert context["seccompProfile"]["type"] == "RuntimeDefault"
        assert not pod["automountServiceAccountToken"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_credentials_are_in_the_secret_only(tmp_path: Path):
    (secret,) = of_kind("Secret").values()
    pem = base64.b64decode(secret["data"]["credentials.pem"])
    assert pem == b"".join(CREDENTIALS)
    for path, value in leaves([d for d in made() if d["kind"] != "Secret"]):
        assert "PRIVATE" not in str(value) and secret["data"]["credentials.pem"] != value, path
    for pod in pods().values():
        volume = next(each for each in pod["volumes"] if each["name"] == "credentials")
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
        assert volume["secret"]["defaultMode"] == 0o440


def test_the_file_is_read_back_and_private(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("an older one")
    path.chmod(0o644)
    old = os.umask(0)
    try:
        kubernetes.write(path, made())
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(yaml.safe_load_all(path.read_text())) == made()
    assert "&id" not in path.read_text() and os.listdir(tmp_path) == ["run.yaml"]


def test_names_that_look_like_numbers_stay_names(tmp_path: Path):
    # Go's YAML takes more for numbers and truths than Python's does.
    hosts = tuple(map(Host, ("1e3", "0o7", "y", "no", "12")))
    kubernetes.write(tmp_path / "run.yaml", made(Placement(hosts)))
    names = re.findall(r"^ *hostname: (.*)$", (tmp_path / "run.yaml").read_text(), re.MULTILINE)
    assert [name.strip("'\"") for name in names] == [*(host.name for host in hosts), "launcher"]
    assert all(name[0] in "'\"" for name in names[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "First_run"}, "name 'First_run'.*lower-case"),
        ({"name": "1st"}, "letter first"),
        ({"name": "r" * 61}, "name and host '.*': .*at most 63"),
        ({"name": "-a"}, "first and last"),
        ({"placement": Placement((Host("node.example"),))}, "host 'node.example'"),
        ({"placement": Placement((Host("launcher"),))}, "choose another one"),
        ({"placement": Placement((Host("h1", cores=0),))}, r"--hosts=h1:cores=8:memory_gb=16"),
        ({"placement": Placement((Host("h1", memory_gb=0),))}, r"cores=8:memory_gb=16"),
        ({"storage": "runs"}, "expected claim:NAME"),
        ({"storage": "path:runs"}, "expected claim:NAME"),
        ({"storage": "claim:My Claim"}, "not a valid name of a claim"),
    ],
)
def test_what_kubernetes_does_not_accept_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        made(**options)
    assert "\n" not in str(caught.value)


def test_the_schemas_of_many_versions_accept_it():
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    versions = set(validate.utils.all_versions()) - {"1.25.0"}
    assert len(versions) > 3
    for version in versions:
        for storage in ("claim:runs", "path:/srv/runs"):
            for document in made(storage=storage):
                validate.validate(document, version, strict=True)
