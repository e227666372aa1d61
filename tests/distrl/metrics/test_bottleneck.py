"""Verdicts about shares whose answer follows by hand."""

import pytest

from distrl.metrics.bottleneck import Group, find_bottleneck


def verdict(actors, learner, inferencer=None, count=2, coupled=True, **service):
    groups = {"actor": Group(count, actors), "learner": Group(1, learner)}
    if inferencer is not None:
        groups["inferencer"] = Group(1, inferencer, **service)
    return find_bottleneck(groups, coupled)


def test_actors_that_nobody_holds_up_gain_until_the_learner_is_busy():
    found = verdict({"env_step": 0.9, "inference": 0.1}, {"sample_wait": 0.75, "compute": 0.25})
    assert found.bottleneck == "environments"
    assert found.gains == {"actor": pytest.approx(0.5), "learner": 0.0}  # 3 / 2
    found = verdict({"env_step": 1.0}, {"sample_wait": 0.2, "compute": 0.8})
    assert found.gains["actor"] == pytest.approx(0.25)  # 1 / 0.8, when the learner is busy


def test_a_busy_learner_is_the_bottleneck_of_actors_that_wait_for_room():
    found = verdict(
        {"env_step": 0.3, "insert_wait": 0.7}, {"compute": 0.7, "sampling": 0.28, "publish": 0.02}
    )
    assert found.bottleneck == "learner"
    assert found.gains == {"actor": 0.0, "learner": pytest.approx(1.0)}  # twice as fast
    found = verdict({"env_step": 0.8, "insert_wait": 0.2}, {"compute": 0.1, "sampling": 0.9})
    assert found.bottleneck == "sampling"
    assert found.gains["learner"] == pytest.approx(0.25)  # until the actors are busy


def test_a_learner_that_does_not_hold_up_actors_is_never_their_bottleneck():
    found = verdict({"env_step": 0.2, "replay_write": 0.8}, {"compute": 1.0}, coupled=False)
    assert found.bottleneck == "replay writes"
    assert found.gains == {"actor": pytest.approx(0.5), "learner": 0.0}


def test_a_service_whose_batches_grow_in_proportion_gives_no_more_than_it_does():
    actors, learner = {"env_step": 0.2, "inference_wait": 0.8}, {"sample_wait": 1.0}
    busy = {"inference": 1.0}
    found = verdict(actors, learner, busy, count=4, requests=2.0, growth=1.0)
    assert found.bottleneck == "inference"
    assert found.gains["actor"] == 0.0
    # Batches that take their time whatever their size: of five actors, half are in each.
    found = verdict(actors, learner, busy, count=4, requests=2.0, growth=0.0)
    assert found.gains["actor"] == pytest.approx(0.25)
    # An actor's own batches take 2 / 4 of its time; it waits 0.3 for those of others.
    assert found.gains["inferencer"] == pytest.approx(1 / 0.7 - 1)


def test_a_wait_for_a_service_that_is_idle_is_no_queue():
    actors, learner = {"env_step": 0.2, "inference_wait": 0.8}, {"sample_wait": 1.0}
    found = verdict(actors, learner, {"inference": 0.1, "idle": 0.9}, requests=1.0)
    assert found.bottleneck == "inference"
    assert found.gains["inferencer"] == pytest.approx(1 / (1 - (0.1 - 0.05)) - 1)


def test_what_needs_a_core_that_is_not_there_says_so():
    one = {"single_process": Group(1, {"env_step": 0.5, "compute": 0.5})}
    several = {"actor": Group(2, {"env_step": 1.0}), "learner": Group(1, {"sample_wait": 1.0})}
    for groups in (one, several):
        assert find_bottleneck(groups, idle_cores=1.5) == find_bottleneck(groups)
    assert find_bottleneck(one, idle_cores=0.2).sentence.endswith(
        "An actor with a process of its own: +100 % steps/s with another core; a learner twice as "
        "fast: +33 % steps/s"
    )
    assert find_bottleneck(several, idle_cores=0.2).sentence.endswith(
        "One more actor: +50 % steps/s with another core; a learner twice as fast: +0 % steps/s"
    )


def test_one_process_gains_what_acting_and_learning_at_once_brings():
    shares = {"env_step": 0.5, "inference": 0.1, "compute": 0.4}
    found = find_bottleneck({"single_process": Group(1, shares)})
    assert found.bottleneck == "environments"
    assert found.gains == {"actor": pytest.approx(1 / 0.6 - 1), "learner": pytest.approx(0.25)}
    assert "environments (50 % of the time" in found.sentence


def test_other_time_of_one_process_does_not_vanish_in_its_gains():
    shares = {"env_step": 0.3, "compute": 0.2, "other": 0.5}
    found = find_bottleneck({"single_process": Group(1, shares)})
    # The process that learns takes it, with another for acting or a faster update.
    assert found.gains == {"actor": pytest.approx(1 / 0.7 - 1), "learner": pytest.approx(1 / 9)}
    assert find_bottleneck({"single_process": Group(1, {"other": 1.0})}) is None


def test_one_process_is_held_up_by_the_side_that_takes_longer():
    shares = {"env_step": 0.2, "inference": 0.15, "replay_write": 0.1, "compute": 0.38}
    found = find_bottleneck({"single_process": Group(1, {**shares, "other": 0.17})})
    assert found.bottleneck == "environments"
    assert "environments (20 % of the time; acting takes 45 %, learning 38 %)" in found.sentence


def test_what_callbacks_take_is_a_part_of_the_learners_time():
    learner = {"sampling": 0.01, "compute": 0.01, "other": 0.98}
    found = verdict({"env_step": 0.01, "insert_wait": 0.99}, learner)
    assert found.bottleneck == "callbacks, saving and reports"
    assert found.gains == {"actor": 0.0, "learner": pytest.approx(1 / 0.99 - 1)}
    assert found.sentence == (
        "bottleneck: callbacks, saving and reports (98 % of the learner's time, which waits for "
        "samples 0 %; the actors wait for it 99 % of theirs). One more actor: +0 % steps/s; a "
        "learner twice as fast: +1 % steps/s"
    )
    assert verdict({"env_step": 1.0}, {"sample_wait": 0.4, "other": 0.6}).gains == {
        "actor": pytest.approx(0.5),
        "learner": 0.0,
    }


def test_what_callbacks_take_may_be_most_of_one_process():
    shares = {"env_step": 0.01, "compute": 0.02, "other": 0.97}
    found = find_bottleneck({"single_process": Group(1, shares)})
    assert found.bottleneck == "callbacks, saving and reports"
    assert found.sentence == (
        "bottleneck: callbacks, saving and reports (97 % of the time, with evaluation; acting "
        "takes 1 %, learning 2 %). An actor with a process of its own: +1 % steps/s; a learner "
        "twice as fast: +1 % steps/s"
    )


def test_nothing_is_said_of_a_few_updates():
    groups = {
        "actor": Group(2, {"inference": 0.02, "other": 0.98}, seconds=3.0),
        "learner": Group(1, {"compute": 1.0}, seconds=2.9),
    }
    assert find_bottleneck(groups) is None
    assert find_bottleneck({**groups, "learner": Group(1, {"compute": 1.0}, seconds=3.0)})
    assert find_bottleneck({"single_process": Group(1, {"env_step": 1.0}, seconds=2.9)}) is None


def test_nothing_is_said_before_actors_and_learner_have_reported():
    assert find_bottleneck({"actor": Group(1, {"env_step": 1.0})}) is None
    assert find_bottleneck({}) is None
