"""Light environments: inferencers are services that batch the requests of many actors."""

from distrl.checkpointing.resume_point import ResumePoint
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.nodes.actor import add_actor
from distrl.programs.nodes.evaluator import add_evaluator
from distrl.programs.nodes.gradient_worker import add_gradient_workers
from distrl.programs.nodes.inferencer import add_inferencers
from distrl.programs.nodes.learner import add_learners
from distrl.programs.nodes.monitor import add_monitor
from distrl.programs.nodes.population import add_population
from distrl.programs.nodes.replay import add_replay
from distrl.programs.program import ExperimentProgram
from distrl.programs.substrate import AUTO, AnyProgram
from distrl.transforms.agent import recurrent_parts


def light_env(
    experiment: Experiment,
    run_dir: str,
    resume_point: ResumePoint | None = None,
    *,
    on_one_host: bool = True,
    substrate: str = AUTO,
) -> AnyProgram:
    """Returns a program of actors, and inferencers, learner, replay and evaluator of each task.

    Args:
      experiment: what to train.
      run_dir: the run folder.
      resume_point: the checkpoint to resume from; None: start from scratch.
      on_one_host: whether the actors are on the inferencers' machine, so that memory can be shared.
      substrate: what its nodes are made of, see `substrate.resolve`.
    """
    if experiment.actors.min_actors is not None:
        _check_no_state(experiment)
    program = ExperimentProgram(experiment, run_dir, resume_point, substrate)
    tasks = experiment.tasks
    monitor = add_monitor(program)
    replay = {name: add_replay(program, task, monitor) for name, task in tasks.items()}
    workers = add_gradient_workers(program, monitor)
    learner = add_learners(program, replay, monitor, workers)
    add_evaluator(program, learner, monitor)
    add_population(program, learner, monitor)
    inferencer_of_actor = {
        name: add_inferencers(program, tasks[name], learner[name], monitor, on_one_host)
        for name in experiment.acting_tasks
    }
    for index in range(experiment.actors.largest_num_actors):
        inferencer = {name: nodes[index] for name, nodes in inferencer_of_actor.items()}
        add_actor(program, index, replay, monitor, learner=learner, inferencer=inferencer)
    return program.program


def _check_no_state(experiment: Experiment) -> None:
    """Raises ConfigError if the agent has memory."""
    if memory := recurrent_parts(experiment.make_agent()):
        raise ConfigError(
            f"actors.min_actors: {' and '.join(memory)} has recurrent state, and light_env's "
            "service cannot take back the step with which a round ends; take --topology=heavy_env"
        )
