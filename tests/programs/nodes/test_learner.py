"""The learner's node."""

import dataclasses
import threading
import types

import pytest

from distrl import presets
from distrl.callbacks import Callback
from distrl.errors import SaveError
from distrl.programs.nodes import learner


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
