"""One tree of seeds: every random stream of a run derives from the run's seed."""

import zlib

import numpy as np

from distrl.errors import ConfigError

# An environment's seed has 31 bits: group, actor, life of the actor, restart of the environment,
# and the environment itself: last, so that a pool's seeds are consecutive (EnvPool takes only the
# first).
MAX_ACTORS, _LIVES, _RESTARTS, MAX_ENVS = 2**10, 2**5, 2**3, 2**12
_GROUPS = ("actor", "evaluator")


def seed(run: int, group: str, index: int, life: int = 0) -> int:
    """Returns the seed of a node, in [0, 2**31).

    It is a child of `numpy.random.SeedSequence(run)` with the key (group, index, life): it does not
    depend on the number of actors, and a restarted actor gets a new one.

    Args:
      run: the run's seed.
      group: the node's group, e.g. "actor".
      index: the node's index in its group.
      life: the node's life.
    """
    key = (zlib.crc32(group.encode()), index, life)
    return int(np.random.SeedSequence(run, spawn_key=key).generate_state(1)[0] >> 1)


def environment_seeds(
    run: int, group: str, index: int, num_envs: int, life: int = 0
) -> tuple[int, ...]:
    """Returns the seeds of a node's environments, in [0, 2**31), consecutive modulo 2**31.

    All seeds of a run are distinct, over actors and evaluators, environments, and the first 32
    lives of a node; those of later lives are random, and coincide only by chance. They do not
    depend on the number of actors.

    Args:
      run: the run's seed.
      group: "actor" or "evaluator".
      index: the node's index in its group.
      num_envs: how many seeds.
      life: the node's life.

    Raises:
      ConfigError: more nodes or environments than there are seeds for.
    """
    if index >= MAX_ACTORS or num_envs > MAX_ENVS:
        raise ConfigError(
            f"seeds: {group} {index} with {num_envs} environments; a run has distinct seeds for "
            f"{MAX_ACTORS} actors of {MAX_ENVS} environments"
        )
    root = _draw(run, life // _LIVES)
    node = (_GROUPS.index(group) * MAX_ACTORS + index) * _LIVES + life % _LIVES
    first = root + node * _RESTARTS * MAX_ENVS
    return tuple((first + i) % 2**31 for i in range(num_envs))


def restart_seed(seed: int, restarts: int) -> int:
    """Returns the seed of a restarted environment: distinct for the first 7 restarts, then random.

    Args:
      seed: the environment's first seed, from `environment_seeds`.
      restarts: number of restarts, 0 or more.
    """
    first = seed if restarts < _RESTARTS else _draw(seed, restarts // _RESTARTS)
    return (first + restarts % _RESTARTS * MAX_ENVS) % 2**31


def _draw(entropy: int, child: int) -> int:
    """Returns a number in [0, 2**32) from a `SeedSequence`, if `child` is 0, or from a child."""
    sequence = np.random.SeedSequence(entropy, spawn_key=(child,) if child else ())
    return int(sequence.generate_state(1)[0])
