"""The last save of a program: what is saved though a part cannot be."""

import json
import threading
import time
import types

import numpy as np
import pytest

from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import TABLE, Checkpoint, Checkpoints
from distrl.config import CheckpointConfig
from distrl.errors import DeadlineExceeded, PeerError, SaveError
from distrl.learning.training_state import TrainingState
from tests.support.waiting import until

COUNTERS = {"mean_return": None, "full_window": False, "episodes": 5, "evaluation": {}}


class Replay:
    """A table that is saved, or a silent one. `timeouts`: seconds that it was given."""

    def __init__(self, error=None):
        self.error, self.timeouts = error, []

    def save(self, folder, timeout):
        self.timeouts.append(timeout)
        folder.mkdir()
        (folder / "half").write_text("a column")
        if self.error is not None:
            raise self.error
        return {"size": 1}


@pytest.fixture
def checkpointer(tmp_path):
    """A function that returns a checkpointer of a learner with 3 updates."""
    state = TrainingState(3, {"w": np.ones(2)}, {"m": np.ones(2)}, 30, 3, 0.0)
    learner = types.SimpleNamespace(
        version=3, variables=(3, state.params), state=lambda: state, check=lambda state: None
    )
    lines = []

    def make(
        replay=None,
        counters=lambda: COUNTERS,
        known=None,
        at_least=dict,
        grace=30.0,
        period=300.0,
        life=None,
    ):
        made = Checkpointer(
            tmp_path,
            CheckpointConfig(period, grace=grace),
            learner,
            replay or Replay(),
            counters,
            {},
            known_counters=known,
            at_least=at_least,
            life=life,
            printer=lines.append,
        )
        made.lines = lines
        made.start(threading.Event())
        return made

    return make


def fail_with(error):
    def counters():
        raise error

    return counters


def manifest(folder):
    return Checkpoints(folder).latest().manifest


def test_the_end_saves_checkpoint_and_parameters(tmp_path, checkpointer):
    checkpointer().close()
    saved = Saved.read(tmp_path)
    assert (saved.checkpoint, saved.params) == ("000003", 3)


def test_a_program_may_take_as_long_as_it_likes_to_save(tmp_path, checkpointer):
    checkpointer(grace=1e18).close()
    saved = Saved.read(tmp_path)
    assert (saved.checkpoint, saved.params) == ("000003", 3)


def test_parameters_that_cannot_be_written_do_not_cost_the_checkpoint(tmp_path, checkpointer):
    (tmp_path / "params.npz").mkdir()
    with pytest.raises(SaveError, match=r"^could not save params\.npz: IsADirectoryError"):
        checkpointer().close()
    assert Saved.read(tmp_path).checkpoint == "000003"
    assert not list(tmp_path.glob("*.part.npz"))


def test_a_checkpoint_that_cannot_be_written_does_not_cost_the_parameters(tmp_path, checkpointer):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(SaveError, match=r"^could not save the last checkpoint: FileExistsError"):
        checkpointer().close()
    assert Saved.read(tmp_path).params == 3


@pytest.mark.parametrize("error", [DeadlineExceeded("no answer in 10 s"), PeerError("is gone")])
def test_the_last_checkpoint_does_without_a_silent_replay(tmp_path, checkpointer, error):
    replay = Replay(error)
    made = checkpointer(replay)
    made.close()
    assert replay.timeouts == [10.0]  # time is left for the rest
    assert manifest(tmp_path)["table"] is None
    assert not (Checkpoints(tmp_path).latest().path / TABLE).exists()
    assert f"distrl: the last checkpoint has no replay table: {error}" in made.lines


def test_the_last_checkpoint_does_without_a_silent_monitor(tmp_path, checkpointer):
    made = checkpointer(counters=fail_with(PeerError("monitor/0.state() failed")), known=COUNTERS)
    made.close()
    assert manifest(tmp_path)["monitor"] == COUNTERS
    assert "older counts of episodes: monitor/0.state() failed" in made.lines[0]


def test_it_prefers_the_counts_of_the_checkpoint_before(tmp_path, checkpointer):
    newer = {**COUNTERS, "episodes": 8}
    answers = iter([newer, newer])  # before the rest is saved, and after
    made = checkpointer(
        counters=lambda: next(answers, None) or fail_with(PeerError("silent"))(), known=COUNTERS
    )
    made.save()
    made.close()
    assert manifest(tmp_path)["monitor"] == newer


@pytest.mark.parametrize("is_silent", [False, True])
def test_no_count_is_below_what_is_known_without_the_monitor(tmp_path, checkpointer, is_silent):
    counters = {**COUNTERS, "env_steps_acted": 20}
    made = checkpointer(
        counters=fail_with(PeerError("silent")) if is_silent else lambda: counters,
        known=counters,
        at_least=lambda: {"env_steps_acted": 36, "episodes": 4},
    )
    made.close()
    assert manifest(tmp_path)["monitor"] == {**counters, "env_steps_acted": 36}
    assert Saved.read(tmp_path).env_steps == 36


def test_other_checkpoints_are_whole_or_not_written(tmp_path, checkpointer):
    error = DeadlineExceeded("no answer")
    for made in (checkpointer(Replay(error)), checkpointer(counters=fail_with(error))):
        with pytest.raises(DeadlineExceeded):
            made.save()
        made.abandon()
    assert Checkpoints(tmp_path).latest() is None


def test_a_checkpoint_that_takes_longer_than_the_last_one_may_is_reported_once(
    checkpointer, monkeypatch
):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Slow(Replay):
        seconds = 4.0

        def save(self, folder, timeout):
            clock[0] += self.seconds
            return super().save(folder, timeout)

    slow = Slow()
    made = checkpointer(slow, grace=4.0)
    made.save()
    slow.seconds = 5.0
    for _ in range(2):
        made.save()
    told = [line for line in made.lines if not line.startswith("checkpoint 000003")]
    assert told == [
        "distrl: the last checkpoint would be lost if it took 5 s, too: it has checkpoint.grace=4 "
        "s; raise that, or set checkpoint.replay=False"
    ]


def test_the_last_checkpoint_does_without_a_table_for_which_a_save_in_progress_left_no_time(
    tmp_path, checkpointer, monkeypatch
):
    clock, began, go_on = [0.0], threading.Event(), threading.Event()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Slow(Replay):
        def save(self, folder, timeout):
            began.set()
            assert go_on.wait(60)
            clock[0] += 20.0
            return super().save(folder, timeout)

    made = checkpointer(Slow(), period=1.0, at_least=lambda: {"episodes": int(clock[0])})
    clock[0] += 2.0
    assert began.wait(60)  # a periodic save, in the midst of which the program ends
    ending = threading.Thread(target=made.close)
    ending.start()
    assert made._ended.wait(60)
    go_on.set()
    ending.join(60)
    assert not ending.is_alive()
    made.check()
    names = [path.name for path in Checkpoints(tmp_path).paths()]
    assert names == ["000003", "000003-2"]
    assert Checkpoints(tmp_path).latest().manifest["table"] is None
    assert Saved.read(tmp_path).params == 3
    assert (
        "distrl: the last checkpoint has no replay table: it took 20.0 s the last time, and of "
        "checkpoint.grace=30 s 10.0 s are left"
    ) in made.lines


def evaluated(number, score, life, version=2):
    """Returns the monitor's state after an evaluation. Its version is the same in all lives."""
    report = {"evaluation_return": score, "version": version, "learner_life": life}
    return {**COUNTERS, "evaluation": {**report, "evaluations": number}}


def save_each(checkpointer, states, **arguments):
    """Returns the manifests of checkpoints, one after each state of the monitor."""
    now = []
    made, saved = checkpointer(counters=lambda: now[-1], **arguments), []
    for state in states:
        now.append(state)
        saved.append(json.loads((made.save() / "manifest.json").read_text()))
    made.abandon()
    return saved


def test_only_evaluations_of_its_own_life_score_a_checkpoint(tmp_path, checkpointer):
    """A restarted learner's monitor has those of parameters that are lost."""
    restarted_from = evaluated(3, 30.0, 0)
    states = [
        evaluated(5, 50.0, 0),  # from after the checkpoint that the learner restarted from
        evaluated(6, 60.0, 0),  # was under way when the learner died
        evaluated(7, None, 1),  # no episode ended
        evaluated(8, 80.0, 1),
        evaluated(8, 80.0, 1),
        evaluated(9, 90.0, 1),  # of the same version again
        evaluated(10, 100.0, 0),
    ]
    saved = save_each(checkpointer, states, known=restarted_from, life=1)
    assert [each.get("evaluation_return") for each in saved] == [
        *(None, None, None, 80.0, None, 90.0, None)
    ]
    assert [each.get("evaluated_version") for each in saved].count(2) == 2
    last = [each["monitor"]["evaluation"] for each in saved]
    assert [each["evaluations"] for each in last] == [5, 6, 7, 8, 8, 9, 10]
    assert [each["evaluation_return"] for each in last] == [
        30.0,
        30.0,
        None,
        80.0,
        80.0,
        90.0,
        90.0,
    ]
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text()) == {
        "checkpoint": "000003-6",
        "evaluation_return": 90.0,
    }


def test_an_evaluation_of_newer_parameters_scores_the_next_checkpoint(tmp_path, checkpointer):
    """The learner goes on while one is written, and may die before the next one."""
    newer = evaluated(1, 50.0, 0, version=4)
    made = checkpointer(counters=lambda: newer, life=0)
    first = json.loads((made.save() / "manifest.json").read_text())
    assert "evaluation_return" not in first and first["monitor"]["evaluation"] == {}
    state = made._learner.state()._replace(version=4)
    made._learner.state = lambda: state
    second = json.loads((made.save() / "manifest.json").read_text())
    made.abandon()
    assert (second["evaluation_return"], second["evaluated_version"]) == (50.0, 4)
    assert second["monitor"] == newer


def test_an_evaluation_while_a_checkpoint_is_saved_does_not_hide_the_one_before(
    tmp_path, checkpointer
):
    states = iter([evaluated(1, 30.0, 0), evaluated(2, 50.0, 0, version=4)])
    made = checkpointer(counters=lambda: next(states), life=0)
    saved = json.loads((made.save() / "manifest.json").read_text())
    made.abandon()
    assert saved["evaluation_return"] == 30.0
    assert saved["monitor"]["evaluation"]["evaluations"] == 1


def test_an_evaluation_from_before_a_resume_scores_no_checkpoint(tmp_path, checkpointer):
    """It has scored one; that one process has no lives of a learner makes no difference."""
    for life, number in ((None, 4), (0, 5)):
        before = evaluated(number, 40.0, 0)
        states = [before, evaluated(number + 1, 50.0, life)]
        saved = save_each(checkpointer, states, known=before, life=life)
        assert [each.get("evaluation_return") for each in saved] == [None, 50.0]


def test_what_was_acted_without_an_update_is_saved_once(tmp_path, checkpointer):
    acted, asked = [5], []

    def counts():
        asked.append(acted[0])
        return {"episodes": acted[0]}

    def saved():
        return [Checkpoint.read(path).manifest["monitor"]["episodes"] for path in folder.paths()]

    folder = Checkpoints(tmp_path)
    made = checkpointer(at_least=counts, period=0.01)
    for acted[0] in (6, 7):
        until(lambda: acted[0] in saved(), "the checkpoint of this period")
    looked = len(asked) + 10  # fewer in two periods in which it saves
    until(lambda: len(asked) >= looked, "periods without news")
    assert sorted(saved()) == [6, 7]
    made.close()
