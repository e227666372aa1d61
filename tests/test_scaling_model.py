"""The model of docs/scaling.md, by costs that are easy to add up."""

import dataclasses
from pathlib import Path

import pytest
from scaling_model import Costs, HostKind, Line, Plan, Workload, actor_step, limits, needs

MEASURED = Path(__file__).parents[1] / "benchmarks" / "scaling.json"
HOST = HostKind("of 10 cores", 10, 1.0)
# 10 environments, T = 9 (10 rows of 100 bytes), 10 unrolls an item: an item is 10 kB of 90 steps.
WORK = Workload(
    num_envs=10,
    unroll_length=9,
    batch_size=10,
    unrolls_per_item=10,
    unroll_bytes=1000.0,
    compression=0.5,
    param_bytes=1e6,
    request_bytes=40.0,
    answer_bytes=10.0,
    env_step=1e-5,
    infer=2e-4,
    overhead=1e-4,
    write=Line(800e-6, 1e-8),
    serve_item=Line(350e-6, 1e-8),
    read=Line(80e-6, 1e-9),
    learn=1e-5,
    ask=1e-4,
    answer=5e-4,
    report=1e-3,
)
COSTS = Costs(
    workloads={"w": WORK},
    fetch=Line(0.0, 1.8e-9),
    hand_out=Line(1e-4, 1e-9),
    pack=Line(0.0, 1e-9),
    tunnel_send=Line(0.0, 2e-9),
    tunnel_receive=Line(0.0, 4e-9),
)


def test_an_actors_step_is_the_sum_of_its_parts():
    own = 1e-5 + 1e-4 / 10 + (800e-6 + 1e-8 * 10_000) / 90
    heavy, light = Plan(HOST), Plan(HOST, light=True)
    assert actor_step(COSTS, WORK, heavy) == pytest.approx(own + 2e-4 / 10 + 1.8e-3 / 90)
    assert actor_step(COSTS, WORK, light) == pytest.approx(own + 1e-4 / 10)
    seldom = dataclasses.replace(heavy, sync_interval=90)
    assert actor_step(COSTS, WORK, seldom) == pytest.approx(own + 2e-4 / 10 + 1.8e-3 / 900)


def test_what_a_rate_takes():
    need = needs(COSTS, WORK, Plan(HOST), 9_000.0)
    assert need.actors == 1  # 7e-5 s a step: 0.63 cores
    assert need.hosts == 1
    loads = {part: load.used for part, load in need.loads.items()}
    assert loads["learner: updates"] == pytest.approx(0.09)
    assert loads["replay"] == pytest.approx(100 * 450e-6)  # 100 items a second
    assert loads["learner: reading batches"] == pytest.approx(100 * 90e-6)
    assert loads["monitor"] == pytest.approx(10 * 1e-3)
    assert loads["network into the first host"] == pytest.approx(100 * 5_000 * 8e-9)
    # 100 versions a second are made and asked for, and a relay takes 50 of them.
    assert loads["network out of the first host"] == pytest.approx(50 * 1e6 * 8e-9)
    assert loads["learner: handing out parameters"] == pytest.approx(50 * 1e-3 + 50 * 1.1e-3)
    assert loads["relay of an actors' host"] == pytest.approx(100 * 1.1e-3)
    assert loads["tunnel of the first host"] == pytest.approx(100 * 5_000 * 4e-9 + 50 * 2e-3)
    assert need.connections == 3  # the replay's, the monitor's, the relay's
    assert need.fullest == "network out of the first host"


def test_without_relays_every_actor_asks_the_learner():
    with_relays = needs(COSTS, WORK, Plan(HOST), 90_000.0)
    without = needs(COSTS, WORK, Plan(HOST, relays=False), 90_000.0)
    part = "network out of the first host"
    assert with_relays.actors == 7 and with_relays.hosts == 1
    assert with_relays.loads[part].used == pytest.approx(50 * 8e-3)
    assert without.loads[part].used == pytest.approx(1000 * 8e-3)
    assert "relay of an actors' host" not in without.loads


def test_a_part_is_full_where_its_share_is_one():
    found = limits(COSTS, WORK, Plan(HOST))
    assert found["learner: updates"] == pytest.approx(1e5, rel=2e-3)
    assert found["replay"] == pytest.approx(90 / 450e-6, rel=2e-3)
    assert list(found.values()) == sorted(found.values())
    shards = limits(COSTS, WORK, Plan(HOST, num_shards=3))
    assert shards["replay"] == pytest.approx(3 * 90 / 450e-6, rel=2e-3)
    fast = limits(COSTS, WORK, Plan(HOST, learner_speed=30.0))
    assert fast["learner: updates"] == pytest.approx(3e6, rel=2e-3)
    light = limits(COSTS, WORK, Plan(HOST, light=True, num_inferencers=2))
    assert light["inferencers"] == pytest.approx(2 * 10 / 5e-4, rel=2e-3)
    assert limits(COSTS, WORK, Plan(HOST, tunnels=False))["tunnel of the first host"] > 9e11


def test_longer_unrolls_are_larger_items_and_fewer():
    plan = Plan(HOST, unroll_length=99)
    assert needs(COSTS, WORK, plan, 990.0).loads["replay"].used == pytest.approx(350e-6 + 1e-3)


def test_what_was_measured_can_be_read():
    costs = Costs.read(MEASURED)
    for work in costs.workloads.values():
        for light in (False, True):
            found = limits(costs, work, Plan(HOST, light=light))
            assert 0 < min(found.values()) < 1e9
