"""Launches an experiment's program with the experiment's settings of supervision."""

import math
from collections.abc import Callable
from pathlib import Path

from distrl.config import SupervisionConfig
from distrl.experiment import Experiment
from distrl.launch.launch_types import LOCAL_MP
from distrl.launch.local.debugging import Debug
from distrl.launch.local.launch import NodeOptions, launch_locally
from distrl.launch.supervision.launch_options import LaunchOptions
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.stop_sequence import STOP_S
from distrl.programs.groups import ACTOR, REPLAY, group_of
from distrl.programs.resources import describe_gpus, node_environments
from distrl.programs.substrate import AnyProgram

_FREE_S_PER_GB = 2.0  # for the kernel to free a table: it clears 1 to 4 GB a second
_AFTER_STEP_S = 30.0  # for a pool to report a step that took too long, before the watchdog does


def launch_experiment(
    program: AnyProgram,
    experiment: Experiment,
    topology: str,
    run_dir: Path,
    launch_type: str = LOCAL_MP,
    *,
    terminal: str = "current_terminal",
    debug: Debug | bool = False,
    node_setup: Callable[[str], None] | None = None,
) -> Result:
    """Runs a program on this machine; see `local.launch.launch`.

    Args:
      program: the program of `experiment` under `topology`.
      experiment: the experiment, with restarts and limits in its `supervision`.
      topology: the topology's name.
      run_dir: the run folder.
      launch_type, terminal, debug, node_setup: see `launch`.

    Returns:
      How the program ended.

    Raises:
      ConfigError: an argument is invalid.
    """
    environments = node_environments(experiment, topology)
    gpus = describe_gpus(environments)
    if gpus:
        print(f"distrl: {gpus}", flush=True)
    local_resources = {
        name: environment
        for name, environment in environments.items()
        if name.partition("/")[0] in program.groups
    }
    return launch_locally(
        program,
        launch_type,
        launch_options(program, experiment, run_dir, terminal, saves=True),
        NodeOptions(local_resources, node_setup, debug),
    )


def launch_options(
    program: AnyProgram, experiment: Experiment, run_dir: Path, terminal: str, saves: bool
) -> LaunchOptions:
    """Returns the options of a launch with the experiment's settings of supervision.

    Args:
      program: a program of `experiment`.
      experiment: the experiment.
      run_dir, terminal, saves: see `LaunchOptions`.
    """
    config = experiment.supervision
    log_limit = math.inf if config.log_limit_mb is None else config.log_limit_mb * 1e6
    restartable = [
        label
        for label in program.groups
        # In lockstep a new life would not repeat what the life before would have done.
        if group_of(label).restartable and not experiment.lockstep
    ]
    return LaunchOptions(
        run_dir,
        terminal,
        stop_grace=_stop_grace(program, experiment),
        restart_policies={label: RestartPolicy(config.restarts) for label in restartable},
        limits=_hang_limits(experiment),
        active={ACTOR.name: experiment.actors.num_actors} if ACTOR.name in program.groups else {},
        log_limit=None if math.isinf(log_limit) else int(log_limit),
        saves=saves,
    )


def _stop_grace(program: AnyProgram, experiment: Experiment) -> dict[str, float]:
    """Returns, by group, the seconds that nodes have to stop: to save, or to free a large table."""
    grace = {
        label: experiment.checkpoint.grace for label in program.groups if group_of(label).saves
    }
    if REPLAY.name in program.groups:
        tables = sum(task.table_bytes for task in experiment.tasks.values())
        grace[REPLAY.name] = STOP_S + _FREE_S_PER_GB * tables / 1e9
    return grace


def _hang_limits(experiment: Experiment) -> HangLimits:
    """Returns the limits of `supervision`; those left at their defaults allow any allowed step."""
    config = experiment.supervision
    step_timeout = _step_timeout(experiment)

    def raised(limit: float | None, default: float | None) -> float | None:
        if limit is None or limit != default or limit >= step_timeout:
            return limit
        return None if math.isinf(step_timeout) else step_timeout + _AFTER_STEP_S

    return HangLimits(
        raised(config.idle_limit, SupervisionConfig.idle_limit),
        raised(config.busy_limit, SupervisionConfig.busy_limit),
        config.stopped_limit,
    )


def _step_timeout(experiment: Experiment) -> float:
    """Returns the longest that a step of an environment may take, in seconds; 0: it is unknown."""
    environments = [experiment.environment, experiment.evaluation_environment]
    environments += [getattr(each, "environment", None) for each in environments]  # in copies
    pools = [getattr(each, "pool", None) for each in environments]
    return max(getattr(pool, "step_timeout", 0.0) for pool in pools)
