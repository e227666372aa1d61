"""Checks whether a run can begin, or resume, with the current settings and its saved tables."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distrl.agents.agent import Agent
from distrl.agents.modules.images import has_channels_last
from distrl.agents.modules.inputs import has_mask
from distrl.agents.modules.torsos import has_scaled_integers
from distrl.agents.settings import algorithm, is_own
from distrl.checkpointing.resume_point import check_agent, check_params
from distrl.checkpointing.store import TABLE, Checkpoint, Checkpoints
from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment
from distrl.launch.run_dir import config_diff
from distrl.replay.columns import Columns
from distrl.replay.table.files import read_facts
from distrl.runtime.files import TASKS
from distrl.runtime.working_folder import shown
from distrl.saved_policy import PastPolicies
from distrl.task import AgentConfig
from distrl.types import Nest


def check_tasks(path: Path, experiment: Experiment) -> None:
    """Raises ConfigError if the folder has checkpoints of other tasks than the experiment's."""
    tasks = {""} if len(experiment.tasks) == 1 else set(experiment.tasks)
    folders = [path, *(path / TASKS).glob("*")]
    saved = {
        folder.name if folder != path else "" for folder in folders if Checkpoints(folder).paths()
    }
    if saved - tasks:
        names = ", ".join(sorted(saved)) or "a single one"
        raise ConfigError(
            f"--run_dir: {shown(path)} belongs to another run: the policies that it has learned "
            f"are {names}, and those of this experiment are {', '.join(experiment.tasks)}; name a "
            "new folder"
        )


def check_past_policies(path: Path, experiment: Experiment) -> None:
    """Raises ConfigError for opponents from the run's own checkpoints that could not be loaded.

    This includes a folder that will never have any, whether it is this run's or another one's: the
    actions would be random forever.
    """
    several = len(experiment.tasks) > 1
    tasks = {
        (path / TASKS / name if several else path).resolve(): task
        for name, task in experiment.tasks.items()
    }
    run = path.resolve()
    for name, policy in experiment.fixed.items():
        if not isinstance(policy, PastPolicies):
            continue
        folder = Path(policy.path).resolve()
        if folder in tasks:
            policy.check_own(tasks[folder], experiment.env_spec_of(name), name)
            continue
        known: list[Path] = []
        if folder == run or folder.parent == run / TASKS:
            known = [*tasks]
        elif (folder / TASKS).is_dir() and not Checkpoints(folder).paths():
            known = sorted((folder / TASKS).iterdir())
        if known:
            raise ConfigError(
                f"policy {name!r}: PastPolicies({policy.path!r}) will never find a checkpoint; "
                f"that run has them in {' or '.join(shown(each) for each in known)}"
            )


def check_settings(
    checkpoints: Mapping[str, Checkpoint], settings: dict[str, Any], experiment: Experiment
) -> list[str]:
    """Returns lines about changed settings; raises ConfigError if one must not change."""
    first = next(iter(checkpoints.values()))  # all have the settings
    paths = {name: checkpoint.path for name, checkpoint in checkpoints.items()}
    return _check(first.path, first.manifest, settings, experiment, paths, check_agent)


def check_finished(
    path: Path, old_settings: dict[str, Any], settings: dict[str, Any], experiment: Experiment
) -> list[str]:
    """As `check_settings`, for a run that has finished: its checkpoints may be gone by now.

    Args:
      path: the run folder, which has the final parameters of all tasks.
      old_settings: those of the run.
      settings: the current ones.
      experiment: has the latter.
    """
    paths = {name: experiment.task_dir(path, name) for name in experiment.tasks}
    return _check(path, old_settings, settings, experiment, paths, check_params)


def changed_topology(was: str | None, now: str) -> list[str]:
    """Returns a line if the topology has changed. Args: was: None: it is not known."""
    return [] if was in (None, now) else [_changed("topology", was, now)]


def _check(
    path: Path,
    old_settings: dict[str, Any],
    settings: dict[str, Any],
    experiment: Experiment,
    paths: Mapping[str, Path],
    check: Callable[[Agent, Path], None],
) -> list[str]:
    """Returns a line for each changed setting; raises ConfigError if one must not change.

    Args:
      path: has the old settings, for messages.
      old_settings, settings: to compare.
      experiment: has the new settings.
      paths: the folders of arrays by task.
      check: raises SpecError if such a folder's arrays are of another agent.
    """
    tasks = experiment.tasks
    changes = config_diff.compare(old_settings, settings, config_diff.defaults(experiment))
    same = set.intersection(
        *(_without_effect(task.env_spec.observation) for task in tasks.values())
    )
    changes = [c for c in changes if c.field.rpartition(".")[2] not in same]
    fixed = [change for change in changes if change.fixed]
    if fixed:
        raise ConfigError(f"{path} belongs to another run: {_describe(fixed)}")
    lines = [_changed(c.field, c.was, c.now) for c in changes]
    for name, folder in paths.items():
        prefix = f"policies.{name}.agent." if experiment.policies else "agent."
        of_agent = [change for change in changes if change.field.startswith(prefix)]
        if of_agent and _may_store_settings(tasks[name].agent):
            lines.append(
                f"distrl: {', '.join(change.field for change in of_agent)}: parameters and learner "
                "state keep the checkpoint's value where they store it, such as a learning rate of "
                "optax.inject_hyperparams; elsewhere the new value applies"
            )
        try:
            check(tasks[name].make_agent(), folder)
        except SpecError as error:
            since = f"; changed since: {_describe(of_agent)}" if of_agent else ""
            raise ConfigError(
                f"{folder} belongs to another agent or environment: {error}{since}"
            ) from error
    return lines


def _changed(name: str, was: Any, now: Any) -> str:
    return f"distrl: changed since the checkpoint: {name}: {was} -> {now}"


def _may_store_settings(agent: AgentConfig) -> bool:
    """Returns whether an agent's arrays may have its settings in them: one's own, or a Tunable's.

    The package's algorithms store only what is named an initial value.
    """
    return is_own(agent) or algorithm(agent) is not agent


def _without_effect(observation: Nest) -> set[str]:
    """Returns settings of networks that mean the same for an observation, whatever their value."""
    has_effect = {
        "scale_integers": has_scaled_integers(observation),
        "image_layout": has_channels_last(observation),
        "mask_actions": has_mask(observation),
    }
    return {name for name, effect in has_effect.items() if not effect}


def _describe(changes: list[config_diff.Change]) -> str:
    return ", ".join(f"{change.field}: was {change.was}, is {change.now}" for change in changes)


def has_table(
    checkpoint: Checkpoint,
    name: str,
    experiment: Experiment,
    topology: str,
    say: Callable[[str], None],
) -> bool:
    """Returns whether a task can start with the replay table that was saved.

    Args:
      checkpoint: the task's checkpoint.
      name: the task's name.
      experiment: has the task.
      topology: the program's topology.
      say: prints a line for the user if it cannot, although tables are saved.
    """
    folder = checkpoint.path / TABLE
    if folder.is_dir():
        why_not = _why_no_table(folder, experiment, name, topology)
    else:
        why_not = "the checkpoint has no table" if experiment.checkpoint.replay else ""
    if why_not:
        policy = f"policy {name!r}: " if len(experiment.tasks) > 1 else ""
        say(f"distrl: {policy}the replay starts empty: {why_not}")
    return folder.is_dir() and not why_not


def _why_no_table(folder: Path, experiment: Experiment, name: str, topology: str) -> str:
    """Returns why a saved table cannot be loaded into the task's; "" if it can."""
    task = experiment.tasks[name]
    in_one_process = topology == "single_process"  # which has one table, without servers
    in_reverb = task.replay.backend == "reverb" and not in_one_process
    columns = Columns(task.trajectory_struct(), task.replay.unroll_length)
    facts = read_facts(folder, columns, task.replay)
    shards = facts.get("num_shards", 1)
    if facts["kind"] != ("reverb" if in_reverb else "files"):
        return "its saved contents cannot be moved to or from Reverb"
    if in_reverb and facts["unrolls_per_item"] != task.unrolls_per_item:
        return "Reverb's items had another size when it was saved"
    if shards != (1 if in_one_process else task.replay.num_shards):
        return f"it was saved as {shards} shards"
    if experiment.lockstep and not in_one_process:  # as `ExperimentProgram` has it
        return "in lockstep, nodes begin again with the first round"
    return ""
