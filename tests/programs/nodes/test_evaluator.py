"""When the evaluator evaluates."""

import contextlib
import math
import threading
import types

from distrl.programs.nodes.evaluator import EvaluatorNode
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
