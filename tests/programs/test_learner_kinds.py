"""Which kind of learner a task has."""

import functools

import pytest

from distrl import presets
from distrl.in_place_learner import InPlaceLearner
from distrl.learner import Learner
from distrl.programs import learner_kinds
from distrl.programs.learner_kinds import learner_kind


@pytest.mark.parametrize(
    "agent, is_divided, few_readers, may_overwrite, overwrites",
    [
        ("dqn", False, True, True, "parameters, too"),
        ("dqn", False, False, True, "the learner state"),
        ("dqn", True, True, True, "nothing"),
        ("dqn", False, True, False, "nothing"),
        ("impala", False, True, True, "nothing"),
    ],
)
def test_what_updates_overwrite(
    monkeypatch, agent, is_divided, few_readers, may_overwrite, overwrites
):
    monkeypatch.setattr(learner_kinds, "may_overwrite", lambda: may_overwrite)
    (task,) = presets.experiment("CartPole-v1", agent).tasks.values()
    kind = learner_kind(task, task.make_agent(), None, is_divided, few_readers)
    if overwrites == "nothing":
        assert kind is Learner
    else:
        assert isinstance(kind, functools.partial) and kind.func is InPlaceLearner
        assert kind.keywords == {"keeps_params": overwrites == "the learner state"}


def test_an_agent_that_computes_with_its_parameters_has_a_plain_learner(monkeypatch):
    monkeypatch.setattr(learner_kinds, "may_overwrite", lambda: True)
    (task,) = presets.experiment("CartPole-v1", "dqn").tasks.values()
    agent = task.make_agent()
    monkeypatch.setattr(agent, "with_env_steps", lambda params, steps: params["agent"] * 0.5)
    assert learner_kind(task, agent, None, False, True) is Learner
