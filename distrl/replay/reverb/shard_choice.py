"""Of which shard the next item of a batch is.

- Of a queue, shards that have an item take turns. Each unroll is taken once.
- Of a uniform or prioritized table a shard is drawn for each item, in proportion to what it holds:
  unrolls, or `priority ** priority_exponent` summed over them. Both follow from what Reverb says of
  the shard's last item: its probability p and its priority, for `priority ** exponent / p` is that
  sum. A shard's item is then as likely as in one table with all of them. What is known is as old as
  what was fetched ahead; 2 draws in 100 are between all shards alike, so that no shard is forgotten
  whose sum has been next to nothing. `Trajectory.probability` has all of this in it: it is the
  shard's probability in this draw, times that of the unroll in the shard.
- With `samples_per_insert` each shard has limits of its own, and a draw is between those that have
  an item there: nobody waits for a shard that its limits hold back, and where they hold, shards are
  sampled in proportion to their inserts. Without it, a shard that is drawn is waited for, for
  `PATIENCE` seconds.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from distrl.replay.columns import Block

PATIENCE = 1.0
"""Seconds that a batch waits for one shard that could give a sample, and does not."""

_EVENLY = 0.02  # of the draws


class Item(NamedTuple):
    """What a Reverb table gives at a time."""

    key: int
    probability: float  # with which the table chose it
    priority: float
    size: int  # items that the table held then
    block: Block


class ShardStatus(NamedTuple):
    """How a shard stands when one is chosen."""

    ready: bool  # it has an item
    last: Item | None  # that it gave; None: it gave none yet
    waited: float = 0.0  # seconds that it has had none; infinite while its server is gone


Choice = Callable[[Sequence[ShardStatus]], tuple[int, float] | None]
"""Which shard gives the next item, and how likely that was; None: there is none to take yet."""


def in_turn(count: int) -> Choice:
    """Of so many shards those that have an item, one after the other."""
    last = count - 1

    def choose(shards: Sequence[ShardStatus]) -> tuple[int, float] | None:
        nonlocal last
        for i in range(last + 1, last + 1 + count):
            if shards[i % count].ready:
                last = i % count
                return last, 1.0
        return None

    return choose


def by_mass(exponent: float, patience: float, rng: np.random.Generator) -> Choice:
    """A shard in proportion to its sum of `priority ** exponent`.

    Args:
      exponent: 0: to how many items it holds.
      patience: seconds for which one that is drawn, and has no item, is waited for; and for the
        first of each. 0: only those that have one are drawn.
      rng: draws.
    """
    drawn: tuple[int, float] | None = None

    def draw(able: dict[int, Item]) -> tuple[int, float]:
        weights = {
            i: float(item.priority) ** exponent / float(item.probability)
            for i, item in able.items()
        }
        total = sum(weights.values())
        if not total > 0:  # all priorities are 0: then a table chooses between all alike
            weights = {i: float(item.size) for i, item in able.items()}
            total = sum(weights.values())
        even = _EVENLY / len(weights)
        shares = [(i, (1 - _EVENLY) * each / total + even) for i, each in weights.items()]
        left = rng.random()
        for i, share in shares:
            left -= share
            if left < 0:
                return i, share
        return shares[-1]  # they add up to a little less than 1

    def choose(shards: Sequence[ShardStatus]) -> tuple[int, float] | None:
        nonlocal drawn
        if any(each.last is None and each.waited < patience for each in shards):
            return None
        able = {
            i: each.last
            for i, each in enumerate(shards)
            if each.last is not None and (each.ready or each.waited < patience)
        }
        if drawn is None or drawn[0] not in able:
            drawn = draw(able) if any(shards[i].ready for i in able) else None
        if drawn is None or not shards[drawn[0]].ready:
            return None
        found, drawn = drawn, None
        return found

    return choose
