"""The monitor's node: when it ends the program, and what it says then."""

import threading
import types

from distrl.programs.nodes.monitor import MonitorNode


def node_of(stopper, *tasks):
    node = object.__new__(MonitorNode)
    node._monitors = dict.fromkeys(tasks)
    node._allocator = types.SimpleNamespace(end=lambda task: None)
    node._allocating, node._endings, node._stopper = threading.Lock(), {}, stopper
    return node


def test_the_last_task_ends_the_program_with_the_reasons_of_all(capsys):
    told = []
    node = node_of(lambda reason, finished: told.append((reason, finished)), "blue", "red")
    node._end("red", "20 updates", True)
    assert not told
    node._end("blue", "no goal", False)
    assert told == [("red: 20 updates; blue: no goal", False)]
    assert capsys.readouterr().out == "red: 20 updates\nblue: no goal\n"


def test_a_launcher_that_takes_no_reason_is_given_none(capsys):
    told = []
    node = node_of(lambda: told.append("stopped"), "task")
    node._end("task", "20 updates", True)
    assert told == ["stopped"] and capsys.readouterr().out == "20 updates\n"
