"""The learner's node."""

import dataclasses
import threading
import types

import pytest

from distrl import presets
from distrl.callbacks import Callback
from distrl.errors import SaveError
from distrl.programs.build import Builder
from distrl.programs.nodes import learner
from tests.support.settings import replaced


def test_a_learner_has_a_core_for_itself_and_who_computes_for_it(monkeypatch):
    """Not where callbacks may start something, which would be kept to that core, too."""
    monkeypatch.setattr(learner, "usable_cores", lambda: 2)
    monkeypatch.setattr(learner, "has_own_process", lambda: True)
    experiment = presets.experiment("CartPole-v1", "dqn")
    cases = {
        (True, True): experiment,
        (True, False): dataclasses.replace(experiment, callbacks=(Callback(),)),
        (False, False): experiment,
    }
    for (computes, expected), case in cases.items():
        monkeypatch.setattr(learner, "computing_threads", lambda c=computes: {1} if c else set())
        assert (learner._core(case) is not None) == expected
    free = dataclasses.replace(experiment, actors=dataclasses.replace(experiment.actors, pin=False))
    monkeypatch.setattr(learner, "computing_threads", lambda: {1})
    assert learner._core(free) is None


def test_a_learner_goes_on_before_its_parameters_are_published(monkeypatch):
    """Where parameters that come later change nothing but that."""
    monkeypatch.setattr(learner, "has_own_process", lambda: True)
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
        assert learner._publishes_late(experiment, [task]) == is_late, name
        assert learner._is_long(Builder(experiment)) == is_long, name
    (task,) = r2d2.tasks
    assert not learner._publishes_late(r2d2, [task, task])
    monkeypatch.setattr(learner, "has_own_process", lambda: False)  # JAX has others' settings
    assert not learner._publishes_late(r2d2, [task])


@pytest.mark.parametrize("failing", ["first", "second"])
def test_a_policy_that_cannot_be_saved_leaves_the_others_saved(monkeypatch, failing):
    closed = []

    class Part:
        turn = None

        def __init__(self, name):
            self._name = name

        def hear_last_evaluations(self):
            pass

        def close(self):
            closed.append(self._name)
            if self._name == failing:
                raise SaveError(f"could not save {failing}")

    node = object.__new__(learner.LearnerNode)
    node._tasks = {name: Part(name) for name in ("first", "second", "third")}
    node._frames = types.SimpleNamespace(close=lambda: closed.append("frames"))
    node._stop = threading.Event()
    node._stop.set()
    node._learn = list
    monkeypatch.setattr(learner, "drop_batches", lambda turns, stop: None)
    with pytest.raises(SaveError, match=failing):
        node.run()
    assert closed == ["first", "second", "third", "frames"]
