"""Flags of `distrl train --topology=multi_machine`, and which launcher each of them is for."""

from collections.abc import Sequence

from absl import flags

from distrl.errors import ConfigError
from distrl.launch.cli.train_flags import without_flags
from distrl.launch.hosts import kubernetes, slurm
from distrl.programs.placement import HOST_SETTINGS

LAUNCHERS = {
    "ssh": "this command starts them by SSH",
    "slurm": "this command starts them as steps of its Slurm job; outside of a job it submits one",
    "ray": "this command starts them as actors on a Ray cluster of which this machine is a node",
    "join": "this command waits for them to connect",
    "commands": "prints the command lines for you to run, and exits",
    "kubernetes": "writes a file for kubectl, and exits",
}

OF_MACHINES = ("hosts", "slurm", "ray", "launcher")
"""Flags by which `--topology=auto` knows that there are several machines."""

_FOR = {
    "ssh": ("ssh",),
    "slurm": ("slurm",),
    "ray": ("ray",),
    "ray_wait": ("ray",),
    "remote_python": ("ssh", "slurm", "ray"),
    "remote_folder": ("ssh", "slurm", "ray"),
    "join_port": ("join", "commands", "kubernetes"),
    "credentials": ("join", "commands"),
    "keep_daemons": ("join", "commands", "kubernetes"),
    "join_address": ("commands",),
    "image": ("kubernetes",),
    "name": ("kubernetes",),
    "storage": ("kubernetes",),
}
"""Launchers by flag; a flag that is not here is for all of them."""


def _for(name: str, text: str) -> str:
    """Returns the help of a flag: the launchers that it is for, and what it does."""
    return f"--launcher={', '.join(_FOR[name])}: {text}"


flags.DEFINE_string(
    "hosts",
    None,
    "The hosts, the learner's first: h1,h2:cores=8,h3:address=10.0.0.3, or @FILE with one per "
    "line. Settings of a host: "
    + "; ".join(f"{name}: {what}" for name, (_, what) in HOST_SETTINGS.items())
    + ".",
)
flags.DEFINE_bool(
    "light",
    False,
    "Actors call inferencers on the learner's host, as in light_env; otherwise they "
    "run the policy themselves, as in heavy_env.",
)
flags.DEFINE_enum(
    "launcher",
    "ssh",
    list(LAUNCHERS),
    "How the hosts' daemons are started. "
    + "; ".join(f"{name}: {what}" for name, what in LAUNCHERS.items())
    + ".",
)
flags.DEFINE_string(
    "ssh", "", _for("ssh", "additional options of ssh, as in --ssh='-F my_config'.")
)
flags.DEFINE_string(
    "slurm",
    "",
    _for(
        "slurm",
        "outside of a job, options of sbatch, as in --slurm='--nodes=3 --exclusive', "
        "or --slurm='--nodes=1 --gpus=1 --cpus-per-task=8 : --nodes=4 --cpus-per-task=32'.",
    ),
)
flags.DEFINE_string(
    "ray",
    None,
    _for(
        "ray",
        "HOST:PORT of the cluster's head; RAY_ADDRESS, or the cluster on this machine, "
        "unless given.",
    ),
)
flags.DEFINE_float(
    "ray_wait",
    60.0,
    _for("ray_wait", "seconds to wait for room on the cluster; give more if it starts machines."),
    lower_bound=0.0,
)
flags.DEFINE_float(
    "join_wait",
    None,
    "Seconds to wait for all hosts to join before giving up; 120 unless given, and "
    f"{kubernetes.JOIN_S:g} in Kubernetes.",
    lower_bound=0.0,
)
flags.DEFINE_string(
    "remote_python",
    None,
    _for("remote_python", "path of Python on the hosts; the same as here unless given."),
)
flags.DEFINE_string(
    "remote_folder",
    None,
    _for("remote_folder", "the project's folder on the hosts; the same as here unless given."),
)
flags.DEFINE_integer(
    "tunnel_port",
    0,
    "Port on which each host listens for the others; any free one unless given.",
)
flags.DEFINE_integer(
    "join_port",
    kubernetes.JOIN_PORT,
    _for("join_port", "port on which this command waits for the daemons."),
)
flags.DEFINE_string(
    "credentials", None, _for("credentials", "PEM file with the program's credentials.")
)
flags.DEFINE_bool(
    "keep_daemons",
    False,
    _for(
        "keep_daemons",
        "after a signal or the loss of a host, daemons wait for this command to be "
        "started again, as in Kubernetes; otherwise they end with it.",
    ),
)
flags.DEFINE_string(
    "join_address",
    None,
    _for("join_address", "address of the launcher for the hosts; its host name unless given."),
)
flags.DEFINE_string("image", None, _for("image", "the image, made by the project's Dockerfile."))
flags.DEFINE_string("name", None, _for("name", "name of the run, unique in its namespace."))
flags.DEFINE_string(
    "storage",
    None,
    _for(
        "storage", "storage for run folders: claim:NAME, a PersistentVolumeClaim, or path:/FOLDER."
    ),
)


def check_flags(topology: str, values: flags.FlagValues) -> None:
    """Refuses flags that would be ignored.

    Args:
      topology: a key of `TOPOLOGIES`; `multi_machine` where "auto" takes that.
      values: the flags' values.

    Raises:
      ConfigError: a flag is for several machines, or for another launcher.
    """
    for name in given(values):
        reason = _unfit(name, topology, values)
        if reason is not None:
            raise ConfigError(f"--{name} {reason}, or leave it out")


def given(values: flags.FlagValues) -> list[str]:
    """Returns the names of the flags of this file that are given, and not to turn something off."""
    of_file = values.get_flags_for_module(__name__)
    return [flag.name for flag in of_file if flag.present and flag.value is not False]


def drop_unfit(
    names: Sequence[str], words: Sequence[str], topology: str, values: flags.FlagValues
) -> list[str]:
    """Takes back flags of an earlier run that do not fit this one; returns the words without them.

    Args:
      names: names of flags that only the earlier run's words give.
      words: the earlier run's words.
      topology: as in `check_flags`.
      values: the flags' values.
    """
    unfit = [name for name in names if _unfit(name, topology, values) is not None]
    for name in unfit:
        values[name].unparse()
    return without_flags(list(words), unfit, values)


def _unfit(name: str, topology: str, values: flags.FlagValues) -> str | None:
    """Returns why a flag would be ignored, and what would be right; None: it is not."""
    if topology != "multi_machine":
        return (
            f"is for several machines, and would be ignored with --topology={topology}; use "
            "--topology=multi_machine"
        )
    if values.launcher not in _FOR.get(name, LAUNCHERS):
        others = " or ".join(_FOR[name])
        return f"would be ignored with --launcher={values.launcher}; use --launcher={others}"
    if name == "slurm" and values.slurm and slurm.in_job():
        return "would be ignored: this is a Slurm job already; submit from a login node"
    return None


def is_for_machines(values: flags.FlagValues) -> str | None:
    """Returns the flag by which `--topology=auto` takes `multi_machine`; None: it does not."""
    return next((name for name in OF_MACHINES if values[name].present), None)
