"""When the evaluator evaluates."""

import contextlib
import math
import threading
import types

from distrl.programs.build import NEVER
from distrl.programs.nodes import evaluator
from distrl.programs.nodes.evaluator import EvaluatedVariables, EvaluatorNode
from distrl.variables.client import VariableClient
from tests.support.waiting import in_thread, until


def test_an_evaluator_without_a_second_evaluation_waits_for_the_end():
    node = object.__new__(EvaluatorNode)
    ended = []
    node._opened = contextlib.ExitStack()
    node._opened.callback(ended.append, True)
    node._stop, node._interval, node._reporters = threading.Event(), math.inf, {}
    played = []
    node._evaluator = types.SimpleNamespace(evaluate=lambda _: played.append(1) or {})
    thread, raised = in_thread(node.run)
    until(lambda: ended or node._stop._cond._waiters, "the evaluator to wait")
    node._stop.set()
    thread.join(20)
    assert (ended, played, raised) == ([True], [1], [])


class Learner:
    """A learner whose parameters are its life and version."""

    life_now, version = 4, 7

    def life(self):
        return self.life_now

    def get_variables(self, newer_than):
        return None if newer_than == self.version else (self.version, (self.life_now, self.version))


def test_parameters_are_never_taken_for_those_of_a_later_life(monkeypatch):
    learner = Learner()
    monkeypatch.setattr(evaluator, "RemoteVariables", lambda source, agent: source)
    source = EvaluatedVariables(learner, None)
    client = VariableClient(source, NEVER)
    assert (source.life, client.params) == (4, (4, 7))
    client.refresh()
    assert (source.life, client.params) == (4, (4, 7))
    learner.life_now = 5  # it has come to the same version as the life before
    client.refresh()
    assert (source.life, client.params) == (5, (5, 7))

    def life():  # it dies after the answer, and its next life answers the next call
        learner.life_now, learner.version = 6, 3
        return 5

    learner.life = life
    client.refresh()
    assert (source.life, client.params) == (5, (6, 3))
    del learner.life
    client.refresh()
    assert (source.life, client.params) == (6, (6, 3))
