"""Chooses the shard of each item of a batch.

- For a queue, shards that have an item take turns. Each unroll is taken once.
- For a uniform or prioritized table, a shard is drawn for each item in proportion to its mass: its
  number of unrolls, or the sum of their `priority ** priority_exponent`, as of its last item. An
  item is then as likely as in one table with all of them. The mass is as old as what was fetched
  ahead. 2 draws in 100 are uniform over the shards, so that no shard is starved
  whose mass was close to zero. `Trajectory.probability` includes all of this: it is the shard's
  probability in this draw times that of the unroll in the shard.
- With `samples_per_insert` each shard has its own limits, and a draw is between shards that have an
  item ready: no batch waits for a shard blocked by its limits, and where limits bind, shards are
  sampled in proportion to their inserts. Without it, a batch waits for a drawn shard up to
  `MAX_WAIT` seconds.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from distrl.replay.remote.items import Item

MAX_WAIT = 1.0
"""Seconds that a batch waits for one shard that has no item ready."""

_UNIFORM_SHARE = 0.02  # share of the draws that are uniform over the shards


class ShardStatus(NamedTuple):
    """The state of a shard when one is chosen."""

    ready: bool  # it has an item
    last: Item | None  # its last item; None: it has had none yet
    waited: float = 0.0  # seconds since it last had an item; infinite while its server is gone


ShardChooser = Callable[[Sequence[ShardStatus]], tuple[int, float] | None]
"""Returns the shard of the next item and its probability; None: wait and try again."""


def round_robin(count: int) -> ShardChooser:
    """Returns a chooser that goes around `count` shards, skipping those without an item."""
    last = count - 1

    def choose(shards: Sequence[ShardStatus]) -> tuple[int, float] | None:
        nonlocal last
        for i in range(last + 1, last + 1 + count):
            if shards[i % count].ready:
                last = i % count
                return last, 1.0
        return None

    return choose


def by_mass(max_wait: float, rng: np.random.Generator) -> ShardChooser:
    """Returns a chooser that draws shards in proportion to their mass.

    Args:
      max_wait: seconds to wait for a drawn shard without an item, and for the first item of each
        shard. 0: only shards with an item are drawn.
      rng: source of randomness.
    """
    drawn: tuple[int, float] | None = None

    def draw(eligible: dict[int, Item]) -> tuple[int, float]:
        weights = {i: item.mass for i, item in eligible.items()}
        total = sum(weights.values())
        if not total > 0:  # all priorities are 0: a table then samples uniformly
            weights = {i: float(item.size) for i, item in eligible.items()}
            total = sum(weights.values())
        uniform = _UNIFORM_SHARE / len(weights)
        probabilities = [
            (i, (1 - _UNIFORM_SHARE) * weight / total + uniform) for i, weight in weights.items()
        ]
        left = rng.random()
        for i, probability in probabilities:
            left -= probability
            if left < 0:
                return i, probability
        return probabilities[-1]  # due to rounding they sum to slightly less than 1

    def choose(shards: Sequence[ShardStatus]) -> tuple[int, float] | None:
        nonlocal drawn
        if any(shard.last is None and shard.waited < max_wait for shard in shards):
            return None
        eligible = {
            i: shard.last
            for i, shard in enumerate(shards)
            if shard.last is not None and (shard.ready or shard.waited < max_wait)
        }
        if drawn is None or drawn[0] not in eligible:
            drawn = draw(eligible) if any(shards[i].ready for i in eligible) else None
        if drawn is None or not shards[drawn[0]].ready:
            return None
        chosen, drawn = drawn, None
        return chosen

    return choose
