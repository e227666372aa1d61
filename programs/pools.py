"""The pools of a program: their environments' seeds, from the run's tree, and a line that says so.

Process pools fork: a node makes its pool before anything in it uses JAX.
"""

from collections.abc import Callable, Sequence

from distrl import seeds
from distrl.envs.pool import Pool
from distrl.experiment import Experiment

Printer = Callable[[str], None]


def actor_pool(experiment: Experiment, index: int, printer: Printer, life: int = 0) -> Pool:
    """The environments of one actor.

    Args:
      experiment: what to train.
      index: of the actor.
      printer: takes the line.
      life: of the actor; rises when it restarts.
    """
    num_envs = experiment.actors.num_envs
    own = seeds.environment_seeds(experiment.seed, "actor", index, num_envs, life)
    pool = experiment.environment.make_pool(num_envs, experiment.actors.envs_per_step, own)
    printer(_line(f"actor/{index}", pool, own, life))
    return pool


def shared_pool(experiment: Experiment, printer: Printer, life: int = 0) -> Pool:
    """The environments of all actors in one pool, in turn; `life`: of all of them."""
    config = experiment.actors
    owners = [
        seeds.environment_seeds(experiment.seed, "actor", index, config.num_envs, life)
        for index in range(config.num_actors)
    ]
    own = tuple(seed for owner in owners for seed in owner)
    wait_num = experiment.actors.envs_per_step * config.num_actors
    pool = experiment.environment.make_pool(len(own), wait_num, own)
    for index in range(config.num_actors):
        part = slice(index * config.num_envs, (index + 1) * config.num_envs)
        printer(_line(f"actor/{index}", pool, own, life, part))
    return pool


def evaluator_pool(experiment: Experiment, printer: Printer, life: int = 0) -> Pool:
    """The environments of the evaluator, in this life of it."""
    num_envs = experiment.evaluator.num_envs
    own = seeds.environment_seeds(experiment.seed, "evaluator", 0, num_envs, life)
    environment = experiment.evaluation_environment or experiment.environment
    pool = environment.make_pool(num_envs, num_envs, own)
    printer(_line("evaluator/0", pool, own, life))
    return pool


def _line(node: str, pool: Pool, asked: Sequence[int], life: int, part: slice = slice(None)) -> str:
    own = getattr(pool, "seeds", asked)[part]  # EnvPool takes one, and counts on from it
    return (
        f"{node}: {len(own)} environments {pool.name} in a {type(pool).__name__}, "
        f"seeds {own[0]} to {own[-1]}, life {life}"
    )
