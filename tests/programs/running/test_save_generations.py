"""The checkpoint generations that the monitor tells the learners."""

import concurrent.futures
import threading
from types import SimpleNamespace

from distrl.programs.program import NodeHandle
from distrl.programs.running import save_generations
from distrl.programs.running.save_generations import RemoteGenerations
from distrl.programs.substrate import node_context


def test_a_restarted_learner_saves_from_the_next_generation_on(monkeypatch):
    """What it has saved in the current one stays the only checkpoint of that."""
    monkeypatch.setattr(node_context, "stop_event", threading.Event)
    monkeypatch.setattr(save_generations, "_POLL_S", 0.0)
    number = 4

    def answer(last=False):
        future = concurrent.futures.Future()
        future.set_result(number + last)
        return future

    futures = SimpleNamespace(save_generation=answer)
    client = SimpleNamespace(save_generation=lambda: answer().result(), futures=futures)
    monitor = NodeHandle("monitor/0", client)
    first, restarted = (RemoteGenerations(monitor, before, 1.0) for before in (1, None))
    # A checkpointer takes the first number as that of the generation before it began.
    assert (first.current(), restarted.current()) == (1, 4)
    assert (first.current(), restarted.current()) == (4, 4)
    number = 5
    for _ in range(2):
        numbers = first.current(), restarted.current()
    assert numbers == (5, 5)
    assert restarted.last() == 6
