"""The rates that topologies promise follow from what their parts cost, exactly."""

import pytest

from distrl.programs import topology_rates
from distrl.programs.topology_rates import (
    GPU,
    Cost,
    CostLine,
    Costs,
    DeviceCosts,
    Plan,
    Work,
    choose,
    plan_heavy_env,
    plan_light_env,
    plan_single_process,
)


@pytest.fixture(autouse=True)
def nothing_beside_the_parts(monkeypatch):
    """Leaves out what is not measured."""
    for name in ("STEP_S", "ROW_S", "UPDATE_S", "NODE_UPDATE_S", "ASK_S", "SERVE_S"):
        monkeypatch.setattr(topology_rates, name, 0.0)


def costs(step=(0.0, 0.0), row=(0.25, 0.25), inference=1.0, update=8.0, threaded=None, **devices):
    def device(call, of_update):
        return DeviceCosts(CostLine(Cost(call, call), Cost(0.0, 0.0)), Cost(of_update, of_update))

    return Costs(
        CostLine(Cost(*step), Cost(*row)),
        None if threaded is None else Cost(threaded, threaded),
        {"cpu": device(inference, update), **{k: device(*v) for k, v in devices.items()}},
    )


WORK = Work(streams=8, updates=1 / 16)  # an update for each two steps of all environments


def test_in_one_process_times_add_up():
    # 8 steps: 2 s, an inference 1 s, half an update 4 s.
    assert plan_single_process(costs(), WORK, 2).rate == 8 / 7
    # Without a ratio, an update after each step of the actor.
    assert plan_single_process(costs(), Work(8, None), 2).rate == 8 / 11


def test_one_process_takes_the_faster_pool():
    plan = plan_single_process(costs(threaded=1.0), WORK, 2)
    assert (plan.rate, plan.one_thread) == (8 / 6, False)
    plan = plan_single_process(costs(threaded=3.0), WORK, 2)
    assert (plan.rate, plan.one_thread) == (8 / 7, True)


def test_one_process_shares_a_core_if_that_is_faster():
    # A step of all takes 2 s, 0.5 s of them on one core: waking the other thread takes the rest.
    cheap = costs(row=(0.25, 0.0625), update=0.0)
    assert plan_single_process(cheap, WORK, 2).rate == 8 / 3
    assert plan_single_process(cheap._replace(shares_core=True), WORK, 2).rate == 8 / 1.5


def test_nodes_are_as_fast_as_the_slowest_part():
    # Actors of 4: steps 1 s, an inference 1 s; the learner has 8 s for 16 steps.
    assert plan_heavy_env(costs(), WORK, 2, cores=64).rate == 16 / 8
    assert plan_heavy_env(costs(update=2.0), WORK, 2, cores=64).rate == 8 / 2
    # Cores: (1 + 1) / 4 s of acting and 8 / 16 s of learning for each step.
    assert plan_heavy_env(costs(), WORK, 2, cores=1).rate == 1 / (2 / 4 + 8 / 16)


def test_environments_that_wait_need_no_core():
    waiting = costs(row=(1.0, 0.0), update=0.0)
    assert plan_heavy_env(waiting, WORK, 2, cores=1).rate == 8 / (4 + 1)
    assert plan_heavy_env(waiting, WORK, 8, cores=64).rate == 8 / (1 + 1)
    assert plan_heavy_env(waiting, WORK, 8, cores=4).rate == min(8 / 2, 4 / 1)


def test_actors_with_several_cores_each_have_threads():
    plan = plan_heavy_env(costs(update=0.0, threaded=0.5), WORK, 2, cores=8)  # 4 times as fast
    assert plan.rate == 8 / (1 / 4 + 1)


def test_without_a_ratio_the_learner_has_a_core_of_its_own():
    assert plan_heavy_env(costs(), Work(8, None), 2, cores=2).rate == 1 / (2 / 4)


def test_services_batch_the_requests_of_half_of_the_actors():
    # 8 actors of 1: 4 requests a batch, which takes 1 s. An actor: a step 0.25 s, and the batch.
    plan = plan_light_env(costs(update=0.0), WORK, 8, cores=64)
    assert plan.rate == min(4 / 1, 8 / 1.25)
    plan = plan_light_env(costs(update=0.0), WORK, 8, cores=64, services=2)
    assert plan.rate == min(2 * 2 / 1, 8 / 1.25)
    # On one core: 0.25 s and a quarter of a batch for each step.
    assert plan_light_env(costs(update=0.0), WORK, 8, cores=1).rate == 1 / (0.25 + 0.25)


def test_a_gpu_takes_what_it_is_faster_at():
    faster = costs(gpu=(0.5, 1.0))
    plan = plan_single_process(faster, WORK, 2, GPU)
    assert (plan.rate, plan.learner_gpu) == (8 / (2 + 0.5 + 0.5), True)
    assert not plan_single_process(faster, WORK, 2).learner_gpu
    plan = plan_heavy_env(faster, WORK, 2, cores=64)
    assert (plan.rate, plan.learner_gpu) == (min(8 / 2, 16 / 1), True)
    assert not plan_heavy_env(costs(gpu=(0.5, 9.0)), WORK, 2, cores=64).learner_gpu
    plan = plan_light_env(faster, WORK, 8, 64, gpu=True)
    assert (plan.rate, plan.inference_gpu) == (min(4 / 0.5, 8 / 0.75, 16 / 1), True)
    assert not plan_light_env(costs(), WORK, 8, 64, gpu=True).inference_gpu  # JAX has none here


def test_costs_between_two_measurements():
    line = CostLine.through(2, Cost(3.0, 1.0), 4, Cost(5.0, 1.0))
    assert line == (Cost(1.0, 1.0), Cost(1.0, 0.0))
    assert line(8) == Cost(9.0, 1.0)
    assert CostLine.through(2, Cost(3.0, 3.0), 4, Cost(2.0, 2.0))(1) == Cost(2.0, 2.0)  # noise
    assert CostLine.through(1, Cost(1.0, 1.0), 3, Cost(7.0, 7.0)).call == Cost(0.0, 0.0)
    assert CostLine.through(4, Cost(2.0, 1.0), 4, Cost(2.0, 1.0))(2) == Cost(1.0, 0.5)


def test_the_simplest_of_the_fastest():
    single, heavy = Plan("single_process", 2, 98.0), Plan("heavy_env", 2, 100.0)
    assert choose([heavy, single]) == single
    assert choose([single._replace(rate=90.0), heavy]) == heavy
    more = heavy._replace(num_actors=4, rate=115.0)
    assert choose([heavy, more]) == heavy
    assert choose([heavy, more._replace(rate=120.0)]) == more._replace(rate=120.0)
    assert choose([Plan("light_env", 2, 120.0), heavy]).topology == "light_env"
