"""Runs an experiment's program, healed and watched as the experiment says."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import launchpad as lp

from distrl.experiment import Experiment
from distrl.launch.local.debugging import Debug
from distrl.launch.local.launch import launch
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.programs.placement import Host, Placement
from distrl.programs.resources import describe_gpus, node_environments

HEALING = ("actor", "evaluator", "inferencer", "relay", "learner", "replay")


def run(
    program: lp.Program,
    experiment: Experiment,
    topology: str,
    run_dir: Path,
    launch_type: str = "local_mp",
    *,
    terminal: str = "current_terminal",
    debug: Debug | bool = False,
    node_setup: Callable[[str], None] | None = None,
) -> Result:
    """As `local.launch.launch`, with the rules, limits and resources of the experiment.

    Args:
      program: that `topology` made of `experiment` for `run_dir`.
      experiment: see `Experiment.supervision`.
      topology: name.
      run_dir: where everything is written.
      launch_type, terminal, debug, node_setup: as of `launch`.

    Raises:
      ConfigError: an argument that cannot work.
    """
    environments = node_environments(experiment, topology)
    gpus = describe_gpus(environments)
    if gpus:
        print(f"distrl: {gpus}", flush=True)
    return launch(
        program,
        launch_type,
        run_dir=run_dir,
        local_resources={
            name: environment
            for name, environment in environments.items()
            if name.partition("/")[0] in program.groups
        },
        terminal=terminal,
        node_setup=node_setup,
        debug=debug,
        **supervision(program, experiment),
    )


def run_on_machines(
    program: lp.Program,
    experiment: Experiment,
    placement: Placement,
    connect: Callable[[Host], Sequence[str]],
    run_dir: Path,
    *,
    terminal: str = "current_terminal",
    **ways: Any,
) -> Result:
    """As `run`, on several machines; for `ways` see `hosts.launch.launch_on_machines`."""
    from distrl.launch.hosts.launch import launch_on_machines

    return launch_on_machines(
        program,
        experiment,
        placement,
        connect,
        run_dir=run_dir,
        terminal=terminal,
        **ways,
        **supervision(program, experiment),
    )


def supervision(program: lp.Program, experiment: Experiment) -> dict[str, Any]:
    """What the experiment says of healing and stopping, as arguments of a launch."""
    config = experiment.supervision
    healing: tuple[str, ...] = HEALING
    if experiment.lockstep:  # what a node has begun, another life of it would not end alike
        healing = ()
    return {
        "restart_policies": {
            group: RestartPolicy(config.restarts) for group in healing if group in program.groups
        },
        "limits": HangLimits(config.idle_limit, config.busy_limit, config.stopped_limit),
        "stop_grace": {"learner": experiment.checkpoint.grace},
        "active": {"actor": experiment.actors.num_actors},
    }
