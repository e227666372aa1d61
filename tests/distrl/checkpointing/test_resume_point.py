"""Where a program starts, on hosts that do not share the run folder."""

import json

import pytest

from distrl.checkpointing.resume_point import ResumePoint, check_seen
from distrl.errors import ConfigError


def saved(folder, version, **facts):
    path = folder / "checkpoints" / version
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps({"format": 1, "files": {}, **facts}))


def test_checkpoints_that_the_launcher_has_not_seen_are_not_started_beside(tmp_path):
    check_seen([tmp_path], ResumePoint())
    saved(tmp_path, "000007")
    saved(tmp_path, "000012")
    newest = str(tmp_path / "checkpoints" / "000012")
    with pytest.raises(ConfigError, match=rf"^--run_dir: host .* has {newest}, and the launcher's"):
        check_seen([tmp_path], ResumePoint())
    check_seen([tmp_path], ResumePoint(checkpoint=newest))
    check_seen([tmp_path], ResumePoint(checkpoints={"a": newest}))


def test_of_several_tasks_the_launcher_has_seen_those_of_no_complete_round(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    saved(folders[1], "000007", round=2)
    check_seen(folders, ResumePoint(last_generation=2))
    for before in (0, 1):
        with pytest.raises(ConfigError, match=r"has .*/b/checkpoints/000007, and"):
            check_seen(folders, ResumePoint(last_generation=before))
