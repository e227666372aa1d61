"""Where a program starts, on hosts that do not share the run folder."""

import json

import pytest

from distrl.checkpointing.resume_point import ResumePoint, check_seen, monitor_states
from distrl.errors import ConfigError


def saved(folder, name, **facts):
    path = folder / "checkpoints" / name
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps({"format": 1, "files": {}, **facts}))


def test_checkpoints_that_the_launcher_has_not_seen_are_not_started_beside(tmp_path):
    folders = {"a": tmp_path}
    check_seen(folders, ResumePoint())
    saved(tmp_path, "000007")
    saved(tmp_path, "000012")
    newest = str(tmp_path / "checkpoints" / "000012")
    with pytest.raises(ConfigError, match=rf"^--run_dir: host .* has {newest}, which the launcher"):
        check_seen(folders, ResumePoint())
    check_seen(folders, ResumePoint(checkpoint=newest))
    check_seen(folders, ResumePoint(checkpoints={"a": newest}))


def test_of_several_tasks_the_launcher_has_seen_those_of_no_complete_round(tmp_path):
    folders = {"a": tmp_path / "a", "b": tmp_path / "b"}
    saved(folders["b"], "000007", round=2)
    check_seen(folders, ResumePoint(generations={"b": 2}))
    for before in ({}, {"b": 0}, {"b": 1}, {"a": 2}, {"a": 2, "b": 1}):
        with pytest.raises(ConfigError, match=r"has .*/b/checkpoints/000007, which"):
            check_seen(folders, ResumePoint(generations=before))


def test_checkpoints_of_one_task_do_not_stand_for_those_of_another_host(tmp_path):
    learner_hosts = [{"a": tmp_path / "a"}, {"b": tmp_path / "b"}]
    saved(tmp_path / "a", "000007", round=3)
    saved(tmp_path / "b", "000009", round=3)
    start = ResumePoint(generations={"a": 3})  # the launcher has the folder of `a` alone
    check_seen(learner_hosts[0], start)
    with pytest.raises(ConfigError, match=r"has .*/b/checkpoints/000009, which"):
        check_seen(learner_hosts[1], start)


def test_a_node_restarts_from_where_the_program_started_or_from_what_it_saved(tmp_path):
    saved(tmp_path, "000009", number=4)  # newer than what the program starts from
    saved(tmp_path, "000005", number=3)
    start = ResumePoint(checkpoint=str(tmp_path / "checkpoints" / "000005"), last_number=4)
    for begun in (
        start,
        ResumePoint(checkpoint="elsewhere/checkpoints/000002", last_number=4),
        ResumePoint(last_number=4),
    ):
        assert ResumePoint.latest(tmp_path, begun) == begun
    saved(tmp_path, "000006", number=5)
    newest = str(tmp_path / "checkpoints" / "000006")
    # The table in it is the program's, though that began without one.
    without = start._replace(with_table=False)
    assert ResumePoint.latest(tmp_path, without) == start._replace(checkpoint=newest)


@pytest.mark.parametrize(("heard", "spent"), [(12, False), (7, True)])
def test_a_budget_is_used_up_only_if_the_updates_that_did_it_are_saved(tmp_path, heard, spent):
    learner = {"learner_steps": heard, "trained_steps": 10 * heard, "spent": [100]}
    monitor = {"learner": learner, "env_steps_acted": 100, "episodes": 3}
    saved(tmp_path, "000007", version=7, env_steps=70, monitor=monitor)
    start = ResumePoint(checkpoint=str(tmp_path / "checkpoints" / "000007"))
    state = monitor_states(start, ["default"])["default"]["learner"]
    want = {"learner_steps": 7, "trained_steps": 70}
    assert state == {**want, "spent": [100]} if spent else state == want
