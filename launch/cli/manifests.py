"""`distrl train --launcher=kubernetes`: the file for kubectl, from the flags."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.cli.train_flags import without_flags
from distrl.launch.hosts import kubernetes
from distrl.programs.placement import Placement, write_hosts
from distrl.runtime.working_folder import absolute

# Flags that the pod gets with other values, or does without.
_CHANGED = ("hosts", "tunnel_port", "join_wait")


def write_manifests(
    experiment: Experiment,
    placement: Placement,
    arguments: list[str],
    values: Any,
    say: Callable[[str], None],
) -> None:
    """Writes the file for kubectl.

    Args:
      experiment, placement: what runs, and where.
      arguments: flags of `distrl train` for the launcher in its pod, with those of --config_file.
      values: the flags' values.
      say: called with a line for the user.

    Raises:
      ConfigError: flags that cannot work in a pod.
    """
    from distrl.launch.network.credentials import make_credentials

    for flag in ("image", "name", "storage"):
        if getattr(values, flag) is None:
            raise ConfigError(f"--launcher=kubernetes: give --{flag}; see docs/machines.md")
    run_dir = f"{kubernetes.RUNS}/{values.name}"
    if values.run_dir is not None:
        raise ConfigError(
            f"--run_dir={values.run_dir}: in Kubernetes the run folder is {run_dir}, after --name; "
            "leave --run_dir out (distrl.train always gives one: use `distrl train`)"
        )
    if values.experiment is not None and not Path(values.experiment).is_absolute():
        raise ConfigError(
            f"--experiment={values.experiment}: the launcher's pod has another working folder; "
            "give an absolute path, at which the image has the file too (docs/machines.md)"
        )
    placement = dataclasses.replace(placement, hosts=placement.used)  # no pods without nodes
    tunnel_port = values.tunnel_port or kubernetes.TUNNEL_PORT
    hosts = write_hosts(
        [
            dataclasses.replace(host, address=kubernetes.host_address(values.name, host.name))
            for host in placement.hosts
        ]
    )
    plain = without_flags(arguments, _CHANGED, values)
    join_wait = kubernetes.JOIN_S if values.join_wait is None else values.join_wait
    command = [
        "distrl", "train", *plain, "--keep_daemons",
        f"--hosts={hosts}", "--launcher=join", f"--join_port={values.join_port}",
        f"--tunnel_port={tunnel_port}", f"--credentials={kubernetes.CREDENTIALS}",
        f"--join_wait={join_wait}", f"--run_dir={run_dir}",
    ]  # fmt: skip
    credentials = make_credentials()
    documents = kubernetes.manifests(
        placement,
        command,
        values.image,
        values.name,
        (credentials.certificate, credentials.key),
        storage=values.storage,
        grace=experiment.checkpoint.grace + 30.0,
        tunnel_port=tunnel_port,
        join_port=values.join_port,
    )
    path = f"{values.name}.yaml"
    kubernetes.write(absolute(path), documents)
    say(f"distrl: wrote {path}; run it with: kubectl create -f {path}")
