"""Lives that are counted on disk, and what happens when that file is damaged."""

import itertools
import json

import pytest

from distrl.runtime.lives import lives, next_life


def begin(run_dir, *nodes):
    said = []
    return next_life(run_dir, *nodes, say=said.append), said


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"actor/0": "x"}', b'{"a": -1}'])
def test_no_life_is_given_twice_after_the_file_was_damaged(tmp_path, content):
    before = [begin(tmp_path, "actor/0")[0] for _ in range(3)]
    (tmp_path / "lives.json").write_bytes(content)
    assert lives(tmp_path) == {}
    life, said = begin(tmp_path, "actor/0")
    assert life > 1 << 20 and life % 32 >= len(before)  # its environments' seeds are new as well
    assert len(said) == 1 and "lives.json is damaged and is now lives.json.lost-1" in said[0]
    assert (tmp_path / "lives.json.lost-1").read_bytes() == content
    # It is as any other file from now on, and other nodes continue above, too.
    assert begin(tmp_path, "actor/0") == (life + 1, [])
    assert begin(tmp_path, "learner/0", "actor/0") == (life + 2, [])
    assert begin(tmp_path, "evaluator/0") == (life, [])
    assert lives(tmp_path) == {"actor/0": life + 3, "learner/0": life + 3, "evaluator/0": life + 1}


def test_every_loss_skips_further(tmp_path):
    given = [0]
    for _ in range(4):
        (tmp_path / "lives.json").write_text("")
        given += [begin(tmp_path, "actor/0")[0] for _ in range(2)]
    assert given == sorted(set(given))
    # Actors' streams have the lowest 16 bits: there, too, each loss is far from the other ones.
    firsts = sorted(life % 2**16 for life in (0, *given[1::2]))
    assert min(after - before for before, after in itertools.pairwise(firsts)) > 5_000


def test_a_run_with_checkpoints_whose_lives_are_missing(tmp_path):
    for number, life in enumerate((3, 3_000_000)):
        folder = tmp_path / "checkpoints" / f"{number:06d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"lives": {"actor/0": life}}))
    (tmp_path / "checkpoints" / "000001" / "manifest.json").touch()
    life, said = begin(tmp_path, "actor/0")
    assert life > 3_000_000 and len(said) == 1 and "lives.json is missing" in said[0]
    (tmp_path / "lives.json").unlink()
    assert begin(tmp_path, "actor/0")[0] > life


def test_a_life_that_could_not_be_written_is_not_lost(tmp_path, monkeypatch):
    begin(tmp_path, "actor/0")
    (tmp_path / "lives.json").write_text("")

    def refuse(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("distrl.runtime.files.write_json", refuse)
        with pytest.raises(OSError, match="No space"):
            begin(tmp_path, "actor/0")
    life, said = begin(tmp_path, "actor/0")
    assert life > 1 << 20 and "lives.json is missing" in said[0]
