"""The run folder: which runs resume, what is refused, and that changed settings are reported."""

import csv
import dataclasses
import json
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import envs
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.tunable import Tunable
from distrl.checkpointing.store import Checkpoint, Checkpoints
from distrl.config import CheckpointConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import MISSED, Goal
from distrl.launch.run_dir import config_diff, resume_checks, run_dir
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED, which_result
from distrl.programs.single_process import single_process
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Columns
from distrl.replay.table import files
from distrl.testing import CheckingConfig, CountingEnvironment


def experiment(**more):
    settings = {
        "environment": PythonEnvironment(CountingEnvironment, "counting"),
        "agent": CheckingConfig(),
        "actors": ActorsConfig(num_actors=1, num_envs=4),
        "learner": LearnerConfig(batch_size=4),
        "goal": Goal(max_env_steps=500),
        **more,
    }
    return Experiment(**settings)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens the folder as a new program each time; returns it, and the lines for the user."""
    monkeypatch.setattr(run_dir, "lock", lambda path: None)

    def open_run(made, topology="single_process"):
        lines = []
        folder = run_dir.open_run(str(tmp_path / "run"), made, topology, ["x"], lines.append)
        return folder, lines

    return open_run


def run(folder, made):
    return single_process(
        made,
        stop=threading.Event(),
        run_dir=folder.path,
        resume_point=folder.resume_point,
        printer=lambda x: x,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of `experiment()` that has ended; tests copy it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    made = experiment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "lock", lambda path: None)
        run(run_dir.open_run(str(folder), made, "single_process", ["x"], lambda _: None), made)
    return folder


def test_a_run_resumes_with_a_larger_goal(opened):
    made = experiment()
    folder, lines = opened(made)
    assert folder.resume_point.checkpoint is None and not lines
    assert run(folder, made)[1]
    ended, _ = opened(made)
    assert ended.ended[1] == EXIT_FINISHED and "environment steps" in ended.ended[0]
    first = Checkpoints(folder.path).latest().manifest
    goal = first["monitor"]["env_steps_acted"] + 1000
    larger = experiment(goal=Goal(max_env_steps=goal))
    folder, lines = opened(larger)
    assert lines[0] == f"distrl: changed since the checkpoint: goal.max_env_steps: 500 -> {goal}"
    assert lines[1].startswith("distrl: resuming from checkpoint 0000")
    run(folder, larger)
    last = Checkpoints(folder.path).latest().manifest
    assert goal <= last["monitor"]["env_steps_acted"] < goal + 4  # environments
    assert last["env_steps"] > first["env_steps"]
    assert last["monitor"]["seconds"] > first["monitor"]["seconds"]
    assert last["table"]["inserts"] > first["table"]["inserts"]
    assert set(last["lives"].values()) == {2} and "actor/0" in last["lives"]


def test_a_budget_that_ended_stays_ended(opened):
    made = experiment(goal=Goal(mean_return=1e9, max_env_steps=500))
    run(opened(made)[0], made)
    reason, code = opened(made)[0].ended
    assert code == EXIT_FAILED and "the goal was not reached" in reason


class SucceedingEnvironment(CountingEnvironment):
    """Each of its episodes is a success."""

    def env_info_spec(self):
        return {"success": dm_specs.Array((), np.bool_)}

    def env_info(self):
        return {"success": True}


def test_a_share_of_successes_that_was_reached_stays_reached(opened):
    goal = Goal(success_rate=0.5, window=40, max_env_steps=10**6)
    environment = PythonEnvironment(SucceedingEnvironment, "succeeding")
    made = experiment(environment=environment, goal=goal)
    run(opened(made)[0], made)
    reason, code = opened(made)[0].ended
    assert code == EXIT_FINISHED and "100 %" in reason


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(
    opened, finished, tmp_path
):
    shutil.copytree(finished, tmp_path / "run")
    for path in Checkpoints(tmp_path / "run").paths():
        (path / "learner.npz").write_bytes(b"x")

    def contents():
        files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    before = contents()
    with pytest.raises(ConfigError) as error:
        opened(experiment(goal=Goal(max_env_steps=10**6)))
    message = str(error.value)
    assert "learner.npz has 1 bytes" in message and "\n" not in message
    assert "name a new --run_dir, or move" in message and str(tmp_path / "run") in message
    assert contents() == before


OTHERS = {
    "replay.unroll_length: was 20, is 10": {"replay": ReplayConfig(unroll_length=10)},
    "environment.name: was counting, is other": {
        "environment": PythonEnvironment(CountingEnvironment, "other")
    },
    "task: was task, is b": {"task": "b"},
    "agent.recurrent: was True, is False": {"agent": CheckingConfig(recurrent=False)},
}


@pytest.mark.parametrize("message", OTHERS)
def test_another_run_is_refused(opened, finished, tmp_path, message):
    shutil.copytree(finished, tmp_path / "run")
    with pytest.raises((ConfigError, ValueError)) as error:
        opened(experiment(**OTHERS[message]))
    if "recurrent" not in message:  # which the table's columns tell
        assert message in str(error.value)


def test_settings_that_may_change(opened, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    other = experiment(
        goal=Goal(max_env_steps=10**6),
        actors=ActorsConfig(num_actors=1, num_envs=8),
        checkpoint=CheckpointConfig(period=7.0),
        replay=ReplayConfig(max_size=64, backend="reverb"),
        seed=3,
    )
    folder, lines = opened(other, "light_env")
    why_not = "its saved contents cannot be moved to or from Reverb"
    assert f"distrl: the replay starts empty: {why_not}" in lines
    assert folder.resume_point.checkpoint is not None and folder.resume_point.table() is None
    changed = {line.split(": ")[2] for line in lines if "changed since" in line}
    assert changed == {
        "actors.num_envs", "checkpoint.period", "goal.max_env_steps", "replay.backend",
        "replay.max_size", "seed", "topology",
    }  # fmt: skip


def with_result(finished, path):
    """Copies a run that has ended, with the result that its launcher writes."""
    shutil.copytree(finished, path)
    result = {"status": "finished", "reason": "500 environment steps", "exit_code": 0}
    (path / "result.json").write_text(json.dumps(result))


@pytest.mark.parametrize("with_checkpoints", [True, False])
@pytest.mark.parametrize("message", [each for each in OTHERS if "recurrent" not in each])
def test_another_run_is_refused_where_one_has_finished(
    opened, finished, tmp_path, message, with_checkpoints
):
    with_result(finished, tmp_path / "run")
    if not with_checkpoints:
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = set((tmp_path / "run").rglob("*"))
    with pytest.raises(ConfigError, match=f"belongs to another run: .*{re.escape(message)}"):
        opened(experiment(**OTHERS[message]))
    assert set((tmp_path / "run").rglob("*")) == before


def test_another_algorithm_is_refused_where_a_run_has_finished(opened, finished, tmp_path):
    @dataclasses.dataclass(frozen=True)
    class OtherConfig(CheckingConfig):
        pass

    with_result(finished, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"agent: was CheckingConfig, is .*OtherConfig"):
        opened(experiment(agent=OtherConfig()))


def test_parameters_of_other_shapes_are_refused_where_a_run_has_finished(
    opened, finished, tmp_path
):
    with_result(finished, tmp_path / "run")
    params = tmp_path / "run" / "params.npz"
    with np.load(params) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(params, **{**arrays, "['more']": np.zeros(3)})
    with pytest.raises(ConfigError, match=r"belongs to another agent or environment: .*more"):
        opened(experiment())


def test_changed_settings_are_told_of_a_run_that_has_finished(opened, finished, tmp_path):
    with_result(finished, tmp_path / "run")
    folder, lines = opened(experiment())
    assert folder.ended == ("500 environment steps", EXIT_FINISHED) and not lines
    folder, lines = opened(experiment(seed=3), "heavy_env")
    assert folder.ended == ("500 environment steps", EXIT_FINISHED)
    assert lines == [
        "distrl: changed since the checkpoint: seed: 0 -> 3",
        "distrl: changed since the checkpoint: topology: single_process -> heavy_env",
    ]
    assert opened(experiment())[1] == []  # the settings are still the run's


def test_a_stopped_run_has_finished_by_a_smaller_goal_and_resumes_with_its_own(
    opened, finished, tmp_path
):
    shutil.copytree(finished, tmp_path / "run")
    result, larger = tmp_path / "run" / "result.json", experiment(goal=Goal(max_env_steps=10**6))
    assert opened(larger)[0].ended is None
    result.write_text(json.dumps({"status": "stopped", "reason": "SIGINT", "exit_code": 130}))
    folder, _ = opened(experiment(goal=Goal(max_env_steps=300), seed=3))
    assert folder.ended is not None and folder.ended[1] == EXIT_FINISHED
    written = json.loads(result.read_text())
    assert (written["status"], written["exit_code"]) == ("finished", 0)
    assert written["reason"] == folder.ended[0] and written["saved"]["checkpoint"]
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]
    assert (settings["goal"]["max_env_steps"], settings["seed"]) == (300, 0)
    assert opened(larger)[0].ended is None


def test_a_killed_run_that_had_missed_its_goal_has_failed(opened, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    made = experiment(goal=Goal(mean_return=1e9, max_env_steps=500))
    assert opened(made)[0].ended[1] == EXIT_FAILED
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert opened(made)[0].ended[0] == result["reason"]


def test_a_run_that_crashed_with_its_budget_used_up_has_missed_its_goal(opened, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    crash = {"status": "failed", "reason": "actor/0: ValueError", "exit_code": EXIT_FAILED}
    path.write_text(json.dumps(crash))
    made = experiment(goal=Goal(mean_return=1e9, max_env_steps=500))
    reason, code = opened(made)[0].ended
    result = json.loads(path.read_text())
    assert (result["reason"], result["exit_code"]) == (reason, code)
    assert reason.startswith(MISSED) and code == EXIT_FAILED
    before = which_result(path.parent)
    assert opened(made)[0].ended == (reason, code)
    assert which_result(path.parent) != before  # the result of this program, too
    assert json.loads(path.read_text()) == result


def test_a_table_of_other_shards(tmp_path):
    replay = ReplayConfig(backend="reverb", num_shards=2)
    made = experiment(replay=replay, actors=ActorsConfig(num_actors=2, num_envs=4))
    columns = Columns(made.trajectory_struct(), replay.unroll_length)
    (tmp_path / "replay").mkdir()
    saved, lines = Checkpoint(tmp_path, {}), []
    for shards in (2, 3):
        facts = {"unrolls_per_item": made.only_task.unrolls_per_item, "num_shards": shards}
        files.write_facts(tmp_path / "replay", "reverb", columns, replay, facts)
        has_table = resume_checks.has_table(saved, "task", made, "heavy_env", lines.append)
        assert has_table == (shards == 2)
    assert lines == ["distrl: the replay starts empty: it was saved as 3 shards"]


def test_the_table_of_one_process_has_no_shards(tmp_path):
    """Whatever `num_shards` says: it loads the one table that such a program saves."""
    replay = ReplayConfig(backend="served", num_shards=2)
    made = experiment(replay=replay, actors=ActorsConfig(num_actors=2, num_envs=4))
    columns = Columns(made.trajectory_struct(), replay.unroll_length)
    (tmp_path / "replay").mkdir()
    lines = []
    for facts, topology in (({}, "single_process"), ({"num_shards": 2}, "heavy_env")):
        files.write_facts(tmp_path / "replay", "files", columns, replay, facts)
        for now in ("single_process", "heavy_env"):
            saved = Checkpoint(tmp_path, {})
            has_table = resume_checks.has_table(saved, "task", made, now, lines.append)
            assert has_table == (now == topology)
    assert lines == [
        f"distrl: the replay starts empty: it was saved as {shards} shards" for shards in (1, 2)
    ]


def test_a_table_that_lockstep_cannot_continue_is_named(opened, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    made = experiment(lockstep=True, goal=Goal(max_env_steps=10**6))
    folder, lines = opened(made)
    assert folder.resume_point.table() is not None
    assert not any("starts empty" in line for line in lines)
    folder, lines = opened(made, "heavy_env")
    why_not = "in lockstep, nodes begin again with the first round"
    assert f"distrl: the replay starts empty: {why_not}" in lines
    assert folder.resume_point.checkpoint is not None and folder.resume_point.table() is None


def test_a_run_without_its_table(opened):
    made = experiment(checkpoint=CheckpointConfig(period=None, replay=False))
    run(opened(made)[0], made)
    larger = dataclasses.replace(made, goal=Goal(max_env_steps=10**6))
    folder, _ = opened(larger)
    manifest = Checkpoints(folder.path).latest().manifest
    assert manifest["table"] is None and manifest["number"] == 1
    assert folder.resume_point.checkpoint is not None and folder.resume_point.table() is None


def test_what_is_no_run_is_refused(opened, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    with pytest.raises(
        ConfigError, match="is not empty and not the folder of a run; name a new folder"
    ):
        opened(experiment())


def test_a_run_without_a_checkpoint_starts_from_the_beginning(opened, tmp_path):
    made = experiment()
    opened(made)
    (tmp_path / "run" / "logs").mkdir()
    (tmp_path / "run" / "metrics.csv").write_text("seconds,env_steps\n1,2\n3,")
    folder, (line,) = opened(made)
    assert line.endswith("has no checkpoint: starting from the beginning, appending to its logs")
    assert folder.resume_point.checkpoint is None
    run(folder, made)
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        first, *others = csv.DictReader(file)
    assert {name: text for name, text in first.items() if text} == {
        "seconds": "1",
        "env_steps": "2",
    }
    assert others and all(row["learner_steps"] for row in others)


def test_settings_are_compared_by_field():
    def described(made):
        return json.loads(json.dumps(config_diff.describe(made)))

    old = described(experiment())
    assert config_diff.compare(old, described(experiment())) == []
    assert config_diff.compare({}, old) == []

    @dataclasses.dataclass(frozen=True)
    class OtherConfig(CheckingConfig):
        depth: int = 3

    (change,) = config_diff.compare(old, described(experiment(agent=OtherConfig())))
    assert change.fixed and change.field == "agent"
    assert (change.was, change.now.rpartition(".")[2]) == ("CheckingConfig", "OtherConfig")


@pytest.mark.parametrize("mode", [None, 0o750, 0o775])
def test_a_new_run_folder_is_closed_to_others_and_an_existing_one_keeps_its_mode(
    opened, tmp_path, mode
):
    path = tmp_path / "run"
    if mode is not None:
        path.mkdir()
        path.chmod(mode)
    umask = os.umask(0o002)
    try:
        opened(experiment())
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == (0o700 if mode is None else mode)


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_run_that_could_not_save_has_not_ended(opened, finished, tmp_path, status):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "params.npz").unlink()
    result = {"status": status, "reason": "reached", "exit_code": 0}
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    folder, lines = opened(experiment())
    assert folder.ended is None and folder.resume_point.checkpoint is not None
    why = f"{folder.path / 'params.npz'}: resuming to save it"
    assert f"distrl: the previous program could not save {why}" in lines


@pytest.mark.parametrize(
    ("observation", "flag", "refused"),
    [
        (dm_specs.Array((4,), np.float32), True, False),
        (dm_specs.BoundedArray((4,), np.uint8, 0, 255), True, True),
        (dm_specs.BoundedArray((4,), np.uint8, 0, 255), False, False),
    ],
)
def test_a_run_from_before_integers_were_scaled(monkeypatch, observation, flag, refused):
    """It resumes as it was, where that makes no difference or is what the flag says."""

    class Steps(CountingEnvironment):
        def _observe(self, echo):
            return np.zeros(observation.shape, observation.dtype)

        def observation_spec(self):
            return observation

        def action_spec(self):
            return dm_specs.DiscreteArray(2, np.int32)

    made = experiment(
        environment=PythonEnvironment(Steps, "steps"),
        agent=IMPALAConfig(NetworkConfig(scale_integers=flag)),
    )
    settings = json.loads(json.dumps(config_diff.describe(made)))
    before = json.loads(json.dumps(settings))
    del before["experiment"]["agent"]["network"]["scale_integers"]
    monkeypatch.setattr(resume_checks, "check_agent", lambda agent, path: None)
    checkpoint = Checkpoint(Path("checkpoint"), before)
    if refused:
        want = r"another run: agent\.network\.scale_integers: was False, is True"
        with pytest.raises(ConfigError, match=want):
            resume_checks.check_settings({"task": checkpoint}, settings, made)
    else:
        assert resume_checks.check_settings({"task": checkpoint}, settings, made) == []


@dataclasses.dataclass(frozen=True)
class OwnConfig(IMPALAConfig):
    """An algorithm's settings of a user's own file."""


@pytest.mark.parametrize(
    ("agent", "field"),
    [
        (IMPALAConfig, None),
        (OwnConfig, "agent.learning_rate"),
        (
            lambda **rate: Tunable(IMPALAConfig(**rate), {"entropy_cost": (0.001, 0.1)}),
            "agent.agent.learning_rate",
        ),
    ],
)
def test_a_changed_setting_that_arrays_may_hold_is_told_with_its_limits(monkeypatch, agent, field):
    monkeypatch.setattr(resume_checks, "check_agent", lambda agent, path: None)
    environment = envs.make("CartPole-v1")
    old, new = (
        experiment(environment=environment, agent=agent(learning_rate=rate))
        for rate in (0.25, 0.125)
    )
    saved, settings = (json.loads(json.dumps(config_diff.describe(made))) for made in (old, new))
    lines = resume_checks.check_settings({"task": Checkpoint(Path("x"), saved)}, settings, new)
    assert "learning_rate: 0.25 -> 0.125" in lines[0]
    assert len(lines) == 1 + (field is not None)
    if field is not None:
        assert lines[1].startswith(f"distrl: {field}: parameters and learner state keep the check")


@pytest.mark.parametrize("content", ["", '{"command": [', "[]", "\udcff"])
def test_damaged_settings_are_put_aside_and_the_run_resumes(opened, finished, tmp_path, content):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "lock").touch()
    path = tmp_path / "run" / "config.json"
    path.write_text(content, errors="surrogateescape")
    folder, lines = opened(experiment(goal=Goal(max_env_steps=10**6)))
    assert lines[0].startswith(f"distrl: {path} is damaged (")
    assert lines[0].endswith("): it is now config.json.damaged")
    assert folder.resume_point.checkpoint is not None
    assert json.loads(path.read_text())["topology"] == "single_process"


def test_a_folder_with_a_broken_file_of_that_name_is_no_run(opened, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not the folder of a run"):
        opened(experiment())
    assert (tmp_path / "run" / "config.json").read_text() == "{"


def test_figures_of_the_program_before_are_not_those_of_the_next(opened, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    figures = tmp_path / "run" / "progress.json"
    assert opened(experiment())[0].ended is not None and figures.exists()  # of a report
    assert opened(experiment(goal=Goal(max_env_steps=10**6)))[0].ended is None
    assert not figures.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_result_does_not_matter(opened, finished, tmp_path, content):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    path.write_text(content)
    folder, lines = opened(experiment(goal=Goal(max_env_steps=10**6)))
    assert f"distrl: {path} is damaged (" in lines[0]
    assert folder.resume_point.checkpoint is not None


def test_what_code_ran_is_in_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "lock", lambda path: None)
    code = {"code": {"distrl": None}, "versions": {"python": "3.10"}}
    made = experiment()
    opened = run_dir.open_run(
        str(tmp_path / "run"), made, "single_process", ["x"], lambda line: None, code
    )
    written = json.loads((opened.path / "config.json").read_text())
    assert {name: written[name] for name in code} == code
