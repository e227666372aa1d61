"""Makes the checkpointer of a task, for one process and for nodes alike."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.generations import Generations
from distrl.checkpointing.resume_point import ResumePoint
from distrl.config import CheckpointConfig
from distrl.learner import Learner
from distrl.programs.build import Builder
from distrl.replay.buffer import ReplayAdministration
from distrl.saved.saved_agent import agent_writer


def make_checkpointer(
    builder: Builder,
    run_dir: Path,
    learner: Learner,
    replay: ReplayAdministration,
    counters: Callable[[], dict[str, Any]],
    resume_point: ResumePoint,
    give_up: Callable[[], None],
    config: CheckpointConfig | None = None,
    generations: Generations | None = None,
    at_least: Callable[[], Mapping[str, int]] = dict,
    life: int | None = None,
) -> Checkpointer:
    """Returns the checkpointer of a builder's task; see `Checkpointer`.

    Args:
      builder: the task's builder.
      run_dir, learner, replay, counters, give_up, generations, at_least, life: see `Checkpointer`.
      resume_point: what the run was resumed with.
      config: None: the experiment's.
    """
    name, experiment = builder.task.name, builder.experiment
    return Checkpointer(
        run_dir,
        config or experiment.checkpoint,
        learner,
        replay,
        counters,
        {"task": name, "seed": experiment.seed, **resume_point.settings},
        known_counters=_known_counters(builder, resume_point),
        at_least=at_least,
        task_dir=experiment.task_dir(run_dir, name),
        other_tasks=[
            experiment.task_dir(run_dir, other) for other in experiment.tasks if other != name
        ],
        generations=generations,
        acts=builder.task.learns_from is None,
        life=life,
        fill=agent_writer(builder.task, builder.printer),
        give_up=give_up,
        printer=builder.printer,
        callbacks=builder.callbacks,
    )


def _known_counters(builder: Builder, resume_point: ResumePoint) -> dict[str, Any]:
    """Returns the monitor's state at the start, for a checkpoint without the monitor's help."""
    monitor = builder.make_monitor(lambda reason, reached: None, None)
    manifest = resume_point.of_task(builder.task.name).manifest()
    if manifest is not None:
        monitor.restore(manifest["monitor"])
    return monitor.state()
