"""Gradient workers go where the load is, and stay there while it is."""

import pytest

from distrl.gradients.allocator import LOOK_S, SILENT_S, START_S, Allocator, Load, Move, due_move


@pytest.mark.parametrize(
    ("loads", "move"),
    [
        ({"a": Load(2, 1.0, 8), "b": Load(2, 0.3, 8)}, Move("b", "a")),
        ({"a": Load(2, 1.0, 8), "b": Load(2, 0.39, 8)}, Move("b", "a")),  # 0.78 with one
        ({"a": Load(2, 1.0, 8), "b": Load(2, 0.41, 8)}, None),  # 0.82
        ({"a": Load(2, 0.79, 8), "b": Load(2, 0.0, 8)}, None),  # a waits for batches too
        ({"a": Load(2, 1.0, 2), "b": Load(2, 0.0, 8)}, None),  # a's batch has two unrolls
        ({"a": Load(2, 1.0, 8), "b": Load(1, 0.0, 8)}, None),  # b keeps one,
        ({"a": Load(2, 1.0, 8), "b": Load(1, 0.0, 8, ended=True)}, Move("b", "a")),
        ({"a": Load(2, 1.0, 8), "b": Load(0, 0.0, 8, ended=True)}, None),
        (
            {
                "a": Load(1, 0.9, 8),
                "b": Load(3, 0.5, 8),
                "c": Load(2, 0.3, 8),
                "d": Load(1, 1.0, 8),
            },
            Move("c", "d"),
        ),
        ({"a": Load(4, 1.0, 8), "b": Load(4, 1.0, 8)}, None),
        ({"a": Load(4, 1.0, 8)}, None),
        ({}, None),
    ],
)
def test_the_busiest_takes_from_the_least_busy(loads, move):
    assert due_move(loads) == move


def test_no_load_makes_a_worker_go_back_and_forth():
    for give in range(2, 9):
        for busy in range(101):
            before = {"a": Load(2, 1.0, 99), "b": Load(give, busy / 100, 99)}
            if due_move(before):
                after = {
                    "a": Load(3, 2 / 3, 99),
                    "b": Load(give - 1, before["b"].busy_without_one(), 99),
                }
                assert due_move(after) is None
                still_busy = {**after, "a": Load(3, 1.0, 99)}  # saturated still
                assert due_move(still_busy) != Move("a", "b")


def report(allocator, now, **busy):
    for policy, value in busy.items():
        allocator.report(policy, value, now)
    return allocator.look(now)


def test_a_move_takes_three_looks_that_agree():
    allocator = Allocator({"a": 1, "b": 3}, {"a": 8, "b": 8})
    assert (allocator.workers("a"), allocator.workers("b")) == ([0], [1, 2, 3])
    now = 100.0
    assert report(allocator, now, a=1.0) is None  # b has not begun
    lines = []
    # A look in between breaks the row; looks too early do not count.
    for a in (1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0):
        now += LOOK_S
        lines += [report(allocator, now, a=a, b=0.2), report(allocator, now + 0.1, a=a, b=0.2)]
    assert [line for line in lines if line] == [
        "gradient_worker/3 moves from b to a: a is busy with updates for 100% of the time with 1, "
        "b with 3 for 20%, an estimated 30% with one less"
    ]
    assert (allocator.workers("a"), allocator.workers("b")) == ([0, 3], [1, 2])
    report(allocator, now + LOOK_S, a=1.0, b=0.2)
    assert allocator.workers("a") == [0, 3, 2]


def test_a_policy_that_has_no_batch_yet_gives_workers_when_others_had_time_to_begin():
    allocator = Allocator({"a": 1, "b": 2}, {"a": 8, "b": 8})
    moves = [now for now in range(0, 60, 2) if report(allocator, float(now), a=1.0) is not None]
    assert moves == [START_S + 2 * LOOK_S]
    assert allocator.workers("b") == [1]


def test_workers_follow_the_load_and_return():
    allocator = Allocator({"a": 2, "b": 2}, {"a": 8, "b": 8})
    now = 0.0
    for busy, want in (({"a": 1.0, "b": 0.1}, 3), ({"a": 0.1, "b": 1.0}, 1)):
        for _ in range(10):
            now += LOOK_S
            report(allocator, now, **busy)
        assert len(allocator.workers("a")) == want
    assert sorted(allocator.workers("a") + allocator.workers("b")) == [0, 1, 2, 3]


def test_a_policy_that_falls_silent_waits_for_batches_or_has_ended():
    allocator = Allocator({"a": 1, "b": 2}, {"a": 8, "b": 8})
    report(allocator, 0.0, a=1.0, b=1.0)
    now = SILENT_S
    for _ in range(5):
        now += LOOK_S
        report(allocator, now, a=1.0)
    assert allocator.workers("b") == [1]
    allocator.end("b")
    allocator.end("without workers")
    lines = []
    for _ in range(5):
        now += LOOK_S
        lines.append(report(allocator, now, a=1.0))
    assert allocator.workers("b") == []
    assert [line for line in lines if line] == [
        "gradient_worker/1 moves from b to a: a is busy with updates for 100% of the time with 2, "
        "b has ended"
    ]
