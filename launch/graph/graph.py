"""`distrl graph`: the program of an experiment, or of a run, as a picture."""

import collections
import importlib
import os
from pathlib import Path
from typing import Any

from absl import flags

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.cli.auto import without_measuring
from distrl.launch.cli.read_command import read_command
from distrl.launch.graph.drawing import draw, text
from distrl.launch.paths import file_and_name
from distrl.launch.run_dir import config_diff
from distrl.launch.run_dir.folder import CONFIG
from distrl.launch.runs.run import load_run
from distrl.launch.supervision.result import EXIT_FINISHED
from distrl.programs import AUTO, substrate
from distrl.programs.diagram import Diagram, diagram_of, diagram_of_one_process
from distrl.runtime.working_folder import absolute


def graph(arguments: list[str]) -> int:
    """Draws the program that `distrl train` would run. Nothing is started.

    Args:
      arguments: the command; a run folder, or FILE.py[:NAME], or nothing; flags of `distrl train`
        and `--out`.

    Returns:
      The exit status.

    Raises:
      ConfigError, SpecError, flags.Error: bad input.
    """
    graph_flags = flags.FlagValues()
    flags.DEFINE_string(
        "out", None, "File to write.", flag_values=graph_flags, module_name=__name__
    )
    graph_flags.set_gnu_getopt(True)
    words = graph_flags(arguments, known_only=True)[1:]
    run = None
    if words and not words[0].startswith("-"):
        target = words.pop(0)
        if file_and_name(target)[0].endswith(".py"):
            words.insert(0, f"--experiment={target}")
        else:
            run = load_run(absolute(target), command="graph")
            words.insert(0, f"--config_file={run.path / CONFIG}")
    values = flags.FLAGS
    try:
        experiment, topology, _ = read_command([arguments[0], *words], values)
        same = run is None or _is_of_run(experiment, run.config)
    except ConfigError:
        if run is None or _is_named(run.config):
            raise
        same = False
    if not same and run is not None:
        raise ConfigError(
            f"graph: the experiment of {run.path} was made by a program of yours; name it, as in "
            "`distrl graph FILE.py:NAME --topology=...`"
        )
    if topology == AUTO:
        topology = without_measuring(experiment, values)
    diagram = diagram_under(experiment, topology, values)
    if graph_flags.out is None:
        print(text(diagram), end="")
    else:
        draw(diagram, Path(graph_flags.out))
        print(f"{graph_flags.out}: {diagram.title}")
    return EXIT_FINISHED


def diagram_under(experiment: Experiment, topology: str, values: Any) -> Diagram:
    """Returns the diagram of an experiment's program.

    Args:
      experiment: the experiment.
      topology: the topology's name.
      values: the values of the flags, for those of several machines.

    Raises:
      ConfigError: there is no such program.
    """
    if topology == "single_process":
        return diagram_of_one_process(experiment)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    hosts: dict[str, str] = {}
    nodes_of = substrate.resolve(values.substrate)
    options: dict[str, Any] = {"substrate": nodes_of}
    if topology == "multi_machine":
        from distrl.programs.multi_machine import over_network
        from distrl.programs.placement import parse_hosts, place

        if values.hosts is None:
            raise ConfigError("graph: name the machines, the learner's first: --hosts=h1,h2,h3")
        experiment = over_network(experiment, nodes_of)
        placement = place(experiment, parse_hosts(values.hosts), values.light)
        options["placement"] = placement
        hosts = {node: placement.host_of(node).name for node in placement.nodes}
    make_program = getattr(importlib.import_module(f"distrl.programs.{topology}"), topology)
    program = make_program(experiment, "", **options)
    counts = collections.Counter[str]()
    for label, nodes in program.groups.items():
        counts[label] = len(nodes)
    return diagram_of(experiment, topology, _in_order(counts), program.links, hosts)


def _in_order(counts: dict[str, int]) -> dict[str, int]:
    """Returns the groups with the actors first, which is how data flows."""
    return dict(reversed(counts.items()))


def _is_named(config: dict[str, Any]) -> bool:
    """Returns whether a run's command names its environment, or a file with its experiment."""
    words = [str(word).lstrip("-").partition("=")[0] for word in config.get("command", [])]
    return bool({"env", "experiment"} & set(words))


def _is_of_run(experiment: Experiment, config: dict[str, Any]) -> bool:
    """Returns whether an experiment has the environment and the classes of a run's settings."""
    environment = (config.get("experiment") or {}).get("environment") or {}
    same = environment.get("name") == experiment.environment.name
    return same and config.get("classes") == config_diff.describe(experiment)["classes"]
