"""What a program saved, read from its run folder."""

import numpy as np

from distrl.checkpointing.params_file import save_params
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import Checkpoints


def save(folder, version, params=True, checkpoint=True):
    if checkpoint:
        Checkpoints(folder).write(version, lambda part: {"env_steps": 10 * version})
    if params:
        save_params(folder / "params.npz", version, {"w": np.zeros(2)})


def test_an_empty_folder(tmp_path):
    saved = Saved.read(tmp_path)
    assert saved == Saved() and not saved.complete
    assert saved.describe(Saved()) == "nothing was saved"


def test_a_whole_end(tmp_path):
    save(tmp_path, 7)
    saved = Saved.read(tmp_path)
    assert saved.as_dict() == {
        "checkpoint": "000007", "learner_steps": 7, "env_steps": 70, "params_learner_steps": 7,
    }  # fmt: skip
    assert saved.complete and saved.is_new(Saved())
    assert saved.describe(Saved()) == "saved: checkpoint 000007, params.npz"


def test_what_was_there_before_is_not_new(tmp_path):
    save(tmp_path, 7)
    before = Saved.read(tmp_path)
    assert before.complete and not before.is_new(before)
    assert before.describe(before) == "nothing was saved; the newest checkpoint is 000007"
    save(tmp_path, 7)  # by a resumed program that made no update
    assert Saved.read(tmp_path).is_new(before)


def test_a_checkpoint_without_the_final_parameters(tmp_path):
    save(tmp_path, 7)
    before = Saved.read(tmp_path)
    save(tmp_path, 9, params=False)
    saved = Saved.read(tmp_path)
    assert not saved.complete and not saved.is_new(before)
    assert saved.describe(before) == "saved: checkpoint 000009, no params.npz"


def test_damaged_files_count_as_missing(tmp_path):
    save(tmp_path, 7)
    (tmp_path / "params.npz").write_bytes(b"PK\3\4 half a file")
    (tmp_path / "checkpoints" / "000007" / "manifest.json").write_text("{")
    assert Saved.read(tmp_path) == Saved()


def test_steps_are_the_actors(tmp_path):
    facts = {"env_steps": 900, "monitor": {"env_steps_acted": 70}}
    Checkpoints(tmp_path).write(7, lambda part: facts)
    assert Saved.read(tmp_path).env_steps == 70
