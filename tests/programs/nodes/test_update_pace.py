"""What follows for learner and actors from how long an update takes."""

import dataclasses

import pytest

from distrl import presets
from distrl.programs.build import Builder
from distrl.programs.nodes import update_pace
from tests.support.settings import replaced


def test_a_learner_goes_on_before_its_parameters_are_published(monkeypatch):
    """Where parameters that come later change nothing but that."""
    monkeypatch.setattr(update_pace, "has_own_process", lambda: True)
    r2d2 = presets.experiment("CartPole-v1", "r2d2")
    cases = {
        "long": (r2d2, True, True),
        "wide": (presets.experiment("Pendulum-v1", "td3"), True, True),
        "short": (presets.experiment("CartPole-v1", "dqn"), True, False),
        "on-policy": (presets.experiment("Pong-v5", "impala"), False, True),
        "lockstep": (dataclasses.replace(r2d2, lockstep=True), False, True),
        "rounds": (replaced(r2d2, "actors", min_actors=1), False, True),
        "young": (replaced(r2d2, "learner", max_policy_lag=9), False, True),
        "workers": (replaced(r2d2, "learner", num_gradient_workers=2), False, True),
    }
    for name, (experiment, is_late, is_long) in cases.items():
        (task,) = experiment.tasks
        assert update_pace.publishes_late(experiment, [task]) == is_late, name
        assert update_pace.has_long_updates(Builder(experiment)) == is_long, name
    (task,) = r2d2.tasks
    assert not update_pace.publishes_late(r2d2, [task, task])
    monkeypatch.setattr(update_pace, "has_own_process", lambda: False)  # JAX has others' settings
    assert not update_pace.publishes_late(r2d2, [task])


@pytest.mark.parametrize(
    "agent, cores, changes, kept",
    [
        ("dqn", 2, {}, False),
        ("dqn", 2, {"num_actors": 1}, True),
        ("dqn", 3, {}, True),
        ("dqn", 3, {"pin": False}, False),
        ("r2d2", 2, {}, True),
        ("impala", 2, {}, True),
        ("impala", 2, {"pin": False}, False),
    ],
)
def test_actors_leave_a_core_to_a_learner_of_short_updates(
    monkeypatch, agent, cores, changes, kept
):
    monkeypatch.setattr(update_pace, "usable_cores", lambda: cores)
    experiment = replaced(presets.experiment("CartPole-v1", agent), "actors", **changes)
    for own, expected in ((True, kept), (False, False)):
        monkeypatch.setattr(update_pace, "has_own_process", lambda own=own: own)
        kept_to_cores = update_pace.keeps_actors_to_cores(experiment, Builder(experiment))
        assert kept_to_cores == expected
