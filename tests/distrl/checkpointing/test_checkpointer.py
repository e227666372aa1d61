"""The last save of a program: what is saved though a part cannot be."""

import threading
import types

import numpy as np
import pytest

from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import TABLE, Checkpoints
from distrl.config import CheckpointConfig
from distrl.errors import DeadlineExceeded, PeerError, SaveError
from distrl.learning.training_state import TrainingState

COUNTERS = {"mean_return": None, "full_window": False, "episodes": 5}


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

    def make(replay=None, counters=lambda: COUNTERS, known=None, at_least=dict, grace=30.0):
        made = Checkpointer(
            tmp_path,
            CheckpointConfig(grace=grace),
            learner,
            replay or Replay(),
            counters,
            {},
            known_counters=known,
            at_least=at_least,
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
    answers = iter([newer])
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
