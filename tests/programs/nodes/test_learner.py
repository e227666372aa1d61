"""The learner's node."""

import dataclasses

from distrl import presets
from distrl.callbacks import Callback
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
