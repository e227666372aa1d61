"""The pools of a program: their environments' seeds, and a line that reports them.

Process pools fork: a node makes its pool before anything in it uses JAX.
"""

from collections.abc import Callable, Sequence

from distrl import seeds
from distrl.envs.pool import Pool, on_cores
from distrl.envs.whole_games import whole_games
from distrl.experiment import Experiment
from distrl.runtime.host_resources import usable_cores

Printer = Callable[[str], None]


def actor_pool(experiment: Experiment, index: int, printer: Printer, life: int = 0) -> Pool:
    """Returns the environments of one actor.

    Args:
      experiment: what to train.
      index: index of the actor.
      printer: takes the line.
      life: life of the actor; rises when it restarts.
    """
    config = experiment.actors
    pool_seeds = seeds.environment_seeds(experiment.seed, "actor", index, config.num_envs, life)
    environment = on_cores(experiment.environment, usable_cores() // config.num_actors)
    pool = environment.make_pool(config.num_envs, config.envs_per_step, pool_seeds)
    printer(_line(f"actor/{index}", pool, pool_seeds, life))
    return pool


def shared_pool(experiment: Experiment, printer: Printer, life: int = 0) -> Pool:
    """Returns the environments of all actors in one pool, in order, all in the same life."""
    config = experiment.actors
    seeds_of_actors = [
        seeds.environment_seeds(experiment.seed, "actor", index, config.num_envs, life)
        for index in range(config.num_actors)
    ]
    pool_seeds = tuple(seed for actor_seeds in seeds_of_actors for seed in actor_seeds)
    wait_num = config.envs_per_step * config.num_actors
    environment = on_cores(experiment.environment, usable_cores())
    pool = environment.make_pool(len(pool_seeds), wait_num, pool_seeds)
    for index in range(config.num_actors):
        part = slice(index * config.num_envs, (index + 1) * config.num_envs)
        printer(_line(f"actor/{index}", pool, pool_seeds, life, part))
    return pool


def evaluator_pool(experiment: Experiment, printer: Printer, life: int = 0) -> Pool:
    """Returns the evaluator's environments, for this life of it."""
    num_envs = experiment.evaluator.num_envs
    pool_seeds = seeds.environment_seeds(experiment.seed, "evaluator", 0, num_envs, life)
    environment = experiment.evaluator.limited(
        experiment.evaluation_environment or whole_games(experiment.environment)
    )
    pool = environment.make_pool(num_envs, num_envs, pool_seeds)
    printer(_line("evaluator/0", pool, pool_seeds, life))
    return pool


def _line(node: str, pool: Pool, asked: Sequence[int], life: int, part: slice = slice(None)) -> str:
    used = getattr(pool, "seeds", asked)[part]  # EnvPool takes one seed, and counts up from it
    return (
        f"{node}: {len(used)} environments {pool.name} in a {type(pool).__name__}, "
        f"seeds {used[0]} to {used[-1]}, life {life}"
    )
