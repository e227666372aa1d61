"""Checkpoint generations: when they begin, which are complete, and what is kept of them."""

import shutil

import pytest

from distrl.checkpointing.generations import ClockGenerations, last_generation, latest_set, when_all
from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.store import Checkpoints
from distrl.errors import ConfigError


@pytest.fixture
def folders(tmp_path):
    """Folders of three tasks, by task."""
    made = {task: tmp_path / task for task in "abc"}
    for folder in made.values():
        folder.mkdir()
    return made


def save(folders, task, number, keep=3, **entries):
    others = [folder for name, folder in folders.items() if name != task]
    store = Checkpoints(folders[task], keep, others)

    def fill(part):
        (part / "data").write_text(f"{task} {number}")
        return {"round": number, "mean_return": None, **entries}

    return store.write(100 + number, fill)


def generations(folder):
    return [int(path.name) - 100 for path in Checkpoints(folder).paths()]


def test_the_clock_begins_rounds_and_the_last_one_is_final():
    now = [5.0]
    made = ClockGenerations(7, 10.0, lambda: now[0])
    assert made.current() == 7
    now[0] = 14.9
    assert made.current() == 7
    now[0] = 26.0
    assert made.current() == 9
    assert made.last() == 10
    now[0] = 1000.0
    assert (made.last(), made.current()) == (10, 9)
    at_the_end = ClockGenerations(0, None, lambda: now[0])
    assert (at_the_end.current(), at_the_end.last(), at_the_end.current()) == (0, 1, 0)


def test_the_last_of_several_tasks_ends_the_process():
    calls = []
    give_up = when_all(3, lambda: calls.append(1))
    for _ in range(3):
        assert not calls
        give_up()
    assert len(calls) == 1


def test_the_newest_complete_round_counts(folders):
    lines = []
    assert latest_set(folders, lines.append) == {}
    for task in "abc":
        save(folders, task, 1)
    for task in "ab":
        save(folders, task, 2)
    chosen = latest_set(folders, lines.append)
    assert {checkpoint.manifest["round"] for checkpoint in chosen.values()} == {1}
    assert [checkpoint.path.parents[1].name for checkpoint in chosen.values()] == ["a", "b", "c"]
    assert len(lines) == 2
    assert "000102 is of generation 2, which not all policies have saved" in lines[0]
    assert last_generation(folders["a"]) == 2
    save(folders, "c", 2)
    assert {c.manifest["round"] for c in latest_set(folders, lines.append).values()} == {2}
    # A damaged checkpoint costs its generation.
    (folders["b"] / "checkpoints" / "000102" / "data").write_text("x")
    lines.clear()
    assert {c.manifest["round"] for c in latest_set(folders, lines.append).values()} == {1}
    assert len(lines) == 1 and "000102 is damaged" in lines[0]
    (folders["a"] / "checkpoints" / "000101" / "data").unlink()
    with pytest.raises(ConfigError, match="none of the 2 generations of checkpoints can be loaded"):
        latest_set(folders, lines.append)


def test_what_a_restarted_learner_has_saved_again_does_not_count(folders):
    """Older versions did so; the others' checkpoints are of a moment before."""
    before, after = {"learner/0": 1, "learner/1": 1}, {"learner/0": 2, "learner/1": 1}
    chosen = {task: save(folders, task, 1, lives=before) for task in "abc"}
    again = save(folders, "a", 1, lives=after)
    assert again.name == "000101-2"
    assert {task: c.path for task, c in latest_set(folders).items()} == chosen
    # The last save of a program, which is made again if the learner went on meanwhile.
    chosen = {task: save(folders, task, 2, lives=after) for task in "abc"}
    chosen["b"] = save(folders, "b", 2, lives=after)
    assert {task: c.path for task, c in latest_set(folders).items()} == chosen


def test_a_task_that_does_not_save_costs_the_others_no_complete_round(folders):
    for number in (1, 2):
        for task in "abc":
            save(folders, task, number, keep=2)
    for number in range(3, 8):  # b's disk is full
        for task in "ac":
            save(folders, task, number, keep=2)
    assert generations(folders["a"]) == generations(folders["c"]) == [1, 2, 6, 7]
    for number in (8, 9, 10):
        for task in "abc":
            save(folders, task, number, keep=2)
    assert generations(folders["c"]) == [9, 10]
    assert {c.manifest["round"] for c in latest_set(folders).values()} == {10}


def test_a_node_restarts_from_nothing_that_the_program_did_not_start_from(folders):
    first = save(folders, "a", 1)
    save(folders, "a", 2)  # of a program before; not all tasks have saved it
    start = ResumePoint(checkpoints={"a": str(first)}, generations={"a": 2}).of_task("a")
    assert ResumePoint.latest(folders["a"], start).checkpoint == str(first)
    newer = save(folders, "a", 3)
    assert ResumePoint.latest(folders["a"], start).checkpoint == str(newer)
    shutil.rmtree(folders["a"] / "checkpoints")
    assert ResumePoint.latest(folders["a"], ResumePoint()).checkpoint is None
