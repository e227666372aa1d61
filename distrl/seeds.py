"""One tree of seeds: every random stream of a run hangs on the run's one integer."""

import zlib

import numpy as np


def seed(run: int, group: str, index: int, life: int = 0) -> int:
    """The seed of a node, in [0, 2**31).

    A child of `numpy.random.SeedSequence(run)` keyed by (group, index, life): the number of
    actors leaves actor 0's seed alone, and a restarted actor gets a new one.
    """
    key = (zlib.crc32(group.encode()), index, life)
    return int(np.random.SeedSequence(run, spawn_key=key).generate_state(1)[0] >> 1)
