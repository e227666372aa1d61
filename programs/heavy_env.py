"""Heavy environments: every actor has its own inferencer."""

from distrl.checkpointing.resume_point import ResumePoint
from distrl.experiment import Experiment
from distrl.programs.nodes.actor import add_actor
from distrl.programs.nodes.evaluator import add_evaluator
from distrl.programs.nodes.gradient_worker import add_gradient_workers
from distrl.programs.nodes.learner import add_learners
from distrl.programs.nodes.monitor import add_monitor
from distrl.programs.nodes.population import add_population
from distrl.programs.nodes.replay import add_replay
from distrl.programs.program import ExperimentProgram
from distrl.programs.substrate import AUTO, AnyProgram


def heavy_env(
    experiment: Experiment,
    run_dir: str,
    resume_point: ResumePoint | None = None,
    *,
    substrate: str = AUTO,
) -> AnyProgram:
    """Returns a program of actors with inferencers, and learner, replay and evaluator of each task.

    Args:
      experiment: what to train.
      run_dir: the run folder.
      resume_point: the checkpoint to resume from; None: start from scratch.
      substrate: what its nodes are made of, see `substrate.resolve`.
    """
    program = ExperimentProgram(experiment, run_dir, resume_point, substrate)
    tasks = experiment.tasks
    monitor = add_monitor(program)
    replay = {name: add_replay(program, task, monitor) for name, task in tasks.items()}
    workers = add_gradient_workers(program, monitor)
    learner = add_learners(program, replay, monitor, workers)
    add_evaluator(program, learner, monitor)
    add_population(program, learner, monitor)
    for index in range(experiment.actors.largest_num_actors):
        add_actor(program, index, replay, monitor, learner=learner, variables=learner)
    return program.program
