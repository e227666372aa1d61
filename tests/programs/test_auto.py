"""Which topologies an experiment can have, and what is chosen from costs."""

import dataclasses

import pytest

from distrl import presets
from distrl.annealing import learner_steps_per_env_step
from distrl.config import ActorsConfig, InferenceConfig
from distrl.errors import ConfigError
from distrl.programs import topology_rates
from distrl.programs.auto import candidates, choice, plans, with_settings
from distrl.programs.topology_rates import Cost, CostLine, Costs, DeviceCosts
from tests.support.settings import replaced

NAMES = ("single_process", "heavy_env", "light_env")


@pytest.fixture(scope="module")
def cartpole():
    return presets.experiment("CartPole-v1")


def test_what_fits_is_a_matter_of_speed(cartpole):
    assert candidates(cartpole, 2, {}) == (NAMES, "")
    assert candidates(cartpole, 1, {}) == (NAMES[:1], "there is one core")
    assert candidates(cartpole, 1, {"single_process": "x"}).topologies == ("heavy_env",)


@pytest.mark.parametrize(
    "part, settings, topologies, reason",
    [
        ("actors", {"max_actors": 4}, NAMES[1:], ""),
        ("learner", {"num_gradient_workers": 2}, NAMES[1:], ""),
        ("replay", {"backend": "reverb"}, NAMES[1:], ""),
        ("inference", {"num_inferencers": 2}, NAMES[2:], "inference.num_inferencers=2"),
    ],
)
def test_settings_exclude_what_would_ignore_or_refuse_them(
    cartpole, part, settings, topologies, reason
):
    assert candidates(replaced(cartpole, part, **settings), 2, {}) == (topologies, reason)


def test_lockstep_has_no_service(cartpole):
    experiment = dataclasses.replace(cartpole, lockstep=True)
    assert candidates(experiment, 2, {}).topologies == NAMES[:2]
    both = dataclasses.replace(experiment, inference=InferenceConfig(num_inferencers=2))
    assert candidates(both, 2, {}).topologies == NAMES[:2]


def test_nothing_is_left(cartpole):
    excluded = dict.fromkeys(NAMES, "so")
    with pytest.raises(
        ConfigError, match="topology: none can run this: not single_process: so; not"
    ):
        candidates(cartpole, 2, excluded)


@pytest.mark.parametrize("agent, updates", [("impala", 1 / (20 * 64)), ("dqn", 8 / (16 * 8))])
def test_updates_follow_from_the_replay(agent, updates):
    task = presets.experiment("CartPole-v1", agent).only_task
    assert learner_steps_per_env_step(task.replay, task.learner) == updates


def test_updates_of_a_step_count(cartpole):
    sac = presets.experiment("Pendulum-v1", "sac")
    assert learner_steps_per_env_step(sac.replay, sac.learner) == 1.0
    free = replaced(sac, "replay", samples_per_insert=None, error_buffer=None)
    assert learner_steps_per_env_step(free.replay, free.learner) is None


def waiting(seconds):
    line = CostLine(Cost(0.0, 0.0), Cost(seconds, 0.0))
    device = DeviceCosts(CostLine(Cost(1e-4, 1e-4), Cost(0.0, 0.0)), Cost(1e-3, 1e-3))
    return Costs(line, None, {"cpu": device})


def test_environments_that_wait_get_more_actors(cartpole):
    costs = waiting(0.01)
    made = plans(cartpole, costs, 2, NAMES, may_divide=True)
    assert {plan.num_actors for plan in made} == {1, 2, 4, 8}
    chosen = choice(cartpole, costs, 2, made)
    assert chosen.topology == "heavy_env"
    assert chosen.settings == {"actors.num_actors": 8, "actors.num_envs": 8}
    assert chosen.reason.startswith("heavy_env with 8 actors: about 798 environment steps/s on 2")
    assert "(single_process 100, light_env 7" in chosen.reason
    experiment = with_settings(cartpole, chosen.settings)
    assert experiment.actors == dataclasses.replace(cartpole.actors, num_actors=8, num_envs=8)
    assert experiment.replay == cartpole.replay
    kept = plans(cartpole, costs, 2, NAMES, may_divide=False)
    assert choice(cartpole, costs, 2, kept).settings == {}


def test_costly_updates_leave_one_process_its_two_threads(cartpole):
    costs = waiting(1e-6)
    update = Cost(1.0, 2.0)
    costs = costs._replace(devices={"cpu": costs.devices["cpu"]._replace(update=update)})
    assert choice(cartpole, costs, 2, plans(cartpole, costs, 2, NAMES, True)).topology == NAMES[0]


def test_threads_that_do_not_pay_are_left_out():
    pong = presets.experiment("Pong-v5")
    costs = waiting(1e-3)._replace(threaded=Cost(0.1, 0.1))
    made = plans(pong, costs, 2, NAMES[:1], True)
    assert choice(pong, costs, 2, made).settings == {"environment.num_threads": 1}
    costs = costs._replace(threaded=Cost(0.001, 0.001))
    assert choice(pong, costs, 2, plans(pong, costs, 2, NAMES[:1], True)).settings == {}
    with_one = with_settings(pong, {"environment.num_threads": 1})
    assert with_one.environment.num_threads == 1


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


def with_gpu(costs, **faster):
    """Costs with a GPU that is faster at some of `inference` and `update`."""
    gpu = costs.devices["cpu"]._replace(**faster)
    return costs._replace(devices={**costs.devices, topology_rates.GPU: gpu})


FAST = Cost(1e-6, 1e-6)
UPDATES = {"update": FAST}
INFERENCES = {"inference": CostLine(FAST, Cost(0.0, 0.0))}


@pytest.mark.parametrize("topology", NAMES[:2])
def test_a_learner_gets_the_gpu_that_is_faster(cartpole, one_gpu, topology):
    costs = with_gpu(waiting(1e-6), **UPDATES)
    costs.devices["cpu"] = costs.devices["cpu"]._replace(update=Cost(1.0, 1.0))
    made = plans(cartpole, costs, 2, (topology,), False)
    chosen = choice(cartpole, costs, 2, made)
    assert chosen.settings == {"learner.num_gpus": 1}
    assert chosen.reason.endswith(", an update 1 µs on the GPU")
    declared = with_settings(cartpole, chosen.settings)
    made = plans(declared, costs, 2, (topology,), False)
    assert [plan.learner_gpu for plan in made] == [True]
    assert choice(declared, costs, 2, made).settings == {}


def test_one_process_computes_where_it_is_faster(cartpole):
    costs = with_gpu(waiting(1e-6), inference=CostLine(Cost(0.1, 0.1), Cost(0.0, 0.0)))
    chosen = choice(cartpole, costs, 2, plans(cartpole, costs, 2, NAMES[:1], False))
    assert chosen.settings == {}
    assert "GPU" not in chosen.reason


@pytest.mark.parametrize("topology", NAMES)
def test_a_declared_gpu_is_what_updates_take(cartpole, one_gpu, topology):
    costs = with_gpu(waiting(1e-6), update=Cost(1.0, 1.0))
    declared = with_settings(cartpole, {"learner.num_gpus": 1})
    made = plans(declared, costs, 2, (topology,), False)
    assert all(plan.learner_gpu and plan.rate < 20 * 64 for plan in made)  # an update a second
    assert choice(declared, costs, 2, made).reason.endswith(", an update 1e+03 ms on the GPU")


@pytest.mark.parametrize("topology", NAMES)
def test_only_a_gpu_that_the_machine_shows_is_given(cartpole, monkeypatch, topology):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    costs = with_gpu(waiting(1e-6), **INFERENCES, **UPDATES)
    chosen = choice(cartpole, costs, 2, plans(cartpole, costs, 2, (topology,), False))
    assert chosen.settings == {}
    assert "GPU" not in chosen.reason


@pytest.mark.parametrize("settings", [{"num_gradient_workers": 2}, {"num_devices": 2}])
def test_a_learner_that_computes_on_cpus_gets_no_gpu(cartpole, one_gpu, settings):
    experiment = replaced(cartpole, "learner", **settings)
    costs = with_gpu(waiting(1e-6), **UPDATES)
    made = plans(experiment, costs, 2, ("heavy_env",), False)
    assert choice(experiment, costs, 2, made).settings == {}


@pytest.mark.parametrize(("gpus", "shared"), [("0", True), ("0,1", False)])
def test_services_get_a_gpu_that_is_faster(cartpole, monkeypatch, gpus, shared):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    costs = waiting(1e-6)
    slow = Cost(1.0, 1.0)
    cpu = costs.devices["cpu"]._replace(inference=CostLine(slow, Cost(0.0, 0.0)), update=slow)
    costs = with_gpu(costs._replace(devices={"cpu": cpu}), **INFERENCES, **UPDATES)
    chosen = choice(cartpole, costs, 2, plans(cartpole, costs, 2, ("light_env",), False))
    share = {"inference.share_gpus": True} if shared else {}
    assert chosen.settings == {"learner.num_gpus": 1, "inference.num_gpus": 1, **share}
    assert "an inference takes 1 µs on the GPU, an update 1 µs on the GPU" in chosen.reason
    with_settings(cartpole, chosen.settings)  # is accepted


def test_a_learner_shares_the_gpu_of_the_services(cartpole, one_gpu):
    served = dataclasses.replace(cartpole, inference=InferenceConfig(num_gpus=1))
    costs = with_gpu(waiting(0.01), **UPDATES)
    chosen = choice(served, costs, 2, plans(served, costs, 2, ("light_env",), False))
    assert chosen.settings == {"learner.num_gpus": 1, "inference.share_gpus": True}


def test_actors_are_not_divided_below_the_inferencers(cartpole):
    experiment = dataclasses.replace(
        cartpole, actors=ActorsConfig(4, 16), inference=InferenceConfig(num_inferencers=4)
    )
    made = plans(experiment, waiting(0.01), 2, NAMES, may_divide=True)
    assert min(plan.num_actors for plan in made if plan.topology != NAMES[0]) == 4
