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
from distrl.programs.groups import group_of
from distrl.programs.placement import Host, Placement
from distrl.programs.resources import describe_gpus, node_environments


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
    restartable = [
        label
        for label in program.groups
        # In lockstep, another life of a node would not end what the one before has begun alike.
        if group_of(label).restartable and not experiment.lockstep
    ]
    return {
        "restart_policies": {label: RestartPolicy(config.restarts) for label in restartable},
        "limits": HangLimits(config.idle_limit, config.busy_limit, config.stopped_limit),
        "stop_grace": {
            label: experiment.checkpoint.grace for label in program.groups if group_of(label).saves
        },
        "active": {"actor": experiment.actors.num_actors},
    }
