"""Which shard each item of a batch comes from."""

import math
from collections import Counter

import numpy as np
import pytest

from distrl.replay.remote.items import Item
from distrl.replay.remote.shard_choice import ShardStatus, by_mass, round_robin


def item(mass=1.0, size=1):
    return Item(0, 1.0, mass, size, None)


def test_shards_take_turns():
    choose = round_robin(3)
    now = [ShardStatus(True, item())] * 3
    assert [choose(now)[0] for _ in range(4)] == [0, 1, 2, 0]
    now[1] = ShardStatus(False, item(), 0.1)
    assert [choose(now)[0] for _ in range(3)] == [2, 0, 2]
    assert choose([ShardStatus(False, None)] * 3) is None


def test_a_shard_is_drawn_by_its_mass():
    choose = by_mass(1.0, np.random.default_rng(0))
    now = [
        ShardStatus(True, item(4.0)),
        ShardStatus(True, item(12.0)),
    ]
    drawn = Counter(choose(now) for _ in range(10_000))
    assert dict(drawn.keys()) == {0: pytest.approx(0.255), 1: pytest.approx(0.745)}
    assert abs(sum(n for (i, _), n in drawn.items() if i == 0) - 2550) < 220

    nothing = [ShardStatus(True, item(0.0, size)) for size in (1, 3)]
    assert sorted({choose(nothing)[1] for _ in range(100)}) == pytest.approx([0.255, 0.745])


def test_the_wait_for_a_drawn_shard_is_limited():
    light, heavy = item(1.0), item(1e6)
    choose = by_mass(1.0, np.random.default_rng(0))
    assert choose([ShardStatus(True, light), ShardStatus(False, heavy, 0.5)]) is None
    assert choose([ShardStatus(True, light), ShardStatus(False, heavy, 0.9)]) is None
    assert choose([ShardStatus(True, light), ShardStatus(False, heavy, 1.1)]) == (0, 1.0)
    assert choose([ShardStatus(True, light), ShardStatus(True, heavy)])[0] == 1
    gone = ShardStatus(False, heavy, math.inf)
    assert choose([ShardStatus(True, light), gone]) == (0, 1.0)
    assert choose([ShardStatus(True, light), ShardStatus(False, None, 0.9)]) is None  # no item yet
    assert choose([ShardStatus(True, light), ShardStatus(False, None, 1.1)]) == (0, 1.0)
    impatient = by_mass(0.0, np.random.default_rng(0))
    assert impatient([ShardStatus(True, light), ShardStatus(False, heavy)]) == (0, 1.0)
