"""Runs of several policies that are resumed, from checkpoints that belong together."""

import dataclasses
import json
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from distrl.agents.dqn import DQNConfig
from distrl.checkpointing.generations import ClockGenerations, latest_set
from distrl.checkpointing.resume_point import check_seen, monitor_states
from distrl.checkpointing.store import Checkpoints
from distrl.config import ActorsConfig
from distrl.errors import ConfigError, SpecError
from distrl.experiment import LearnedPolicy
from distrl.goal import Goal
from distrl.launch.run_dir import run_dir
from distrl.launch.supervision.result import EXIT_FINISHED
from distrl.programs.running.saving import make_checkpointer
from distrl.programs.single_process import single_process
from distrl.programs.single_process_parts import SingleProcess
from distrl.rules import Rule
from tests.programs.resuming.test_resume import OFTEN, Run, check_resumed
from tests.support.commands import EXPERIMENTS, finish, skip_without_reverb
from tests.support.experiments import agents, tasks
from tests.support.selection import full, slow

TASKS = ("outer", "inner")


def experiment(max_env_steps, **changes):
    return dataclasses.replace(
        agents.experiment(), goal=Goal(max_env_steps=max_env_steps), **changes
    )


def saved(folder):
    found = latest_set({task: folder.path / "tasks" / task for task in TASKS})
    return {task: checkpoint.manifest for task, checkpoint in found.items()}


def run(folder, made):
    """Runs the program to its end; returns the manifests of its last checkpoints."""
    ended = single_process(
        made,
        stop=threading.Event(),
        run_dir=folder.path,
        resume_point=folder.resume_point,
        printer=lambda line: None,
    )
    assert ended is not None and ended[1]
    return saved(folder)


def check_steps(manifests, budget, num_envs=8):
    """All policies have counted the same environment steps: the budget, to less than one step."""
    (steps,) = {manifest["monitor"]["env_steps_acted"] for manifest in manifests.values()}
    assert budget <= steps < budget + num_envs
    for manifest in manifests.values():
        learner = manifest["monitor"]["learner"]
        assert learner["checked"] > 0
        assert not [name for name in learner if name.startswith("wrong_") and learner[name]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that has ended after 1,000 steps; tests copy it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    made = experiment(1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_dir, "lock", lambda path: None)
        run(run_dir.open_run(str(folder), made, "single_process", ["x"], lambda _: None), made)
    return folder


@pytest.fixture
def opened(tmp_path, monkeypatch, finished):
    """Opens a copy of that folder as a new program each time; returns it, and what it says."""
    monkeypatch.setattr(run_dir, "lock", lambda path: None)
    path = tmp_path / "run"
    shutil.copytree(finished, path)

    def open_run(made, topology="single_process"):
        lines = []
        return run_dir.open_run(str(path), made, topology, ["x"], lines.append), lines

    return open_run


def test_a_run_of_two_policies_resumes(opened):
    """With other actors, and a larger budget."""
    folder, lines = opened(experiment(1000))
    assert folder.ended[1] == EXIT_FINISHED and not lines  # the same command: nothing to do
    first = saved(folder)
    check_steps(first, 1000)
    assert {manifest["round"] for manifest in first.values()} == {1}
    larger = experiment(2000, actors=ActorsConfig(num_actors=1, num_envs=5))
    folder, lines = opened(larger)
    assert "distrl: changed since the checkpoint: goal.max_env_steps: 1000 -> 2000" in lines
    names = [f"{task}/{first[task]['version']:06d}" for task in TASKS]
    assert lines[-1].startswith(f"distrl: resuming from checkpoint {' + '.join(names)}: 1,0")
    second = run(folder, larger)
    check_steps(second, 2000, 5)
    for task in TASKS:
        loaded = json.loads((folder.path / "tasks" / task / "resumed.json").read_text())
        for name in ("version", "env_steps", "consumed", "params_checksum", "learner_checksum"):
            assert loaded["learner"][name] == first[task][name], name
        assert loaded["table"] == first[task]["table"]
        assert loaded["monitor"]["env_steps_acted"] == first[task]["monitor"]["env_steps_acted"]
        assert (second[task]["task"], second[task]["round"]) == (task, 2)
        assert second[task]["version"] > first[task]["version"]
        assert second[task]["lives"]["single_process"] == 2
        # The totals of checked steps are part of the learner's state.
        checked = [each[task]["monitor"]["learner"]["checked"] for each in (first, second)]
        assert checked[0] < checked[1]


def test_the_launcher_says_of_which_policies_it_has_seen_checkpoints(opened, tmp_path):
    """Those of `inner` are on another host, whose learner must not start from the beginning."""
    made = experiment(2000)
    elsewhere = tmp_path / "run" / "tasks" / "inner" / "checkpoints"
    elsewhere.rename(tmp_path / "elsewhere")
    point = opened(made)[0].resume_point
    assert not point.checkpoints and point.generations == {"outer": 1}
    (tmp_path / "elsewhere").rename(elsewhere)
    with pytest.raises(ConfigError, match=r"has .*/inner/checkpoints/\d+, which the launcher"):
        check_seen({"inner": elsewhere.parent}, point)


@pytest.mark.full
def test_a_program_killed_between_two_policies_saves(opened):
    """One policy's checkpoint has no match: both resume from the generation before."""
    made = experiment(2000)
    folder = opened(made)[0]
    run(folder, made)
    shutil.rmtree(Checkpoints(folder.path / "tasks" / "inner").paths()[-1])
    made = experiment(3000)
    folder, lines = opened(made)
    assert any("of generation 2, which not all policies have saved" in line for line in lines)
    point = folder.resume_point
    assert [point.of_task(task).manifest()["round"] for task in TASKS] == [1, 1]
    assert point.generations == {"inner": 1, "outer": 2}
    manifests = run(folder, made)
    check_steps(manifests, 3000)
    assert {manifest["round"] for manifest in manifests.values()} == {3}


def test_policies_that_were_saved_at_different_moments_count_alike(opened):
    folder, _ = opened(experiment(10**6))
    path = Path(folder.resume_point.of_task("inner").checkpoint) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["monitor"]["env_steps_acted"] += 300
    path.write_text(json.dumps(manifest))
    states = monitor_states(opened(experiment(10**6))[0].resume_point, TASKS)
    steps = manifest["monitor"]["env_steps_acted"]
    assert [state["env_steps_acted"] for state in states.values()] == [steps, steps]


def test_what_the_learner_did_is_what_it_resumes_from(opened):
    """Whatever the monitor had heard of when the checkpoint was written."""
    folder, _ = opened(experiment(10**6))
    path = Path(folder.resume_point.of_task("inner").checkpoint) / "manifest.json"
    manifest = json.loads(path.read_text())
    learner = manifest["monitor"]["learner"]
    learner["learner_steps"] = learner["trained_steps"] = 0
    path.write_text(json.dumps(manifest))
    state = monitor_states(opened(experiment(10**6))[0].resume_point, TASKS)["inner"]["learner"]
    assert state["learner_steps"] == manifest["version"] > 0
    assert state["trained_steps"] == manifest["env_steps"] > 0
    assert state["checked"] == learner["checked"]


def test_a_table_that_cannot_be_loaded_leaves_the_others_theirs(opened):
    made = experiment(10**6)
    inner = dataclasses.replace(
        made.policies["inner"], replay=dataclasses.replace(agents.REPLAY, backend="reverb")
    )
    moved = dataclasses.replace(made, policies={**made.policies, "inner": inner})
    folder, lines = opened(moved, "heavy_env")
    why_not = "its saved contents cannot be moved to or from Reverb"
    assert [line for line in lines if "starts empty" in line] == [
        f"distrl: policy 'inner': the replay starts empty: {why_not}"
    ]
    point = folder.resume_point
    with SingleProcess(made, printer=lambda line: None, resume_point=point) as parts:
        inserts = {name: part.replay.info().inserts for name, part in parts.tasks.items()}
    saved_inserts = point.of_task("outer").manifest()["table"]["inserts"]
    assert inserts == {"outer": saved_inserts, "inner": 0} and saved_inserts > 0


def _three(observation):
    return 3


def test_a_run_of_other_policies_is_refused(opened):
    made = experiment(2000)
    for change, message in (
        ({"inner": Rule(_three)}, "the policies that it has learned are inner, outer"),
        ({"outer": dataclasses.replace(made.policies["outer"], transforms=())}, None),
        (
            {"inner": LearnedPolicy(agents.OwnConfig(True, (1,)), agents.REPLAY)},
            "saved with another",
        ),
        ({"inner": LearnedPolicy(DQNConfig())}, "policies.inner.agent"),
    ):
        other = dataclasses.replace(made, policies={**made.policies, **change})
        if message is None:
            opened(other)
            continue
        with pytest.raises((ConfigError, SpecError)) as error:
            opened(other)
        assert message in str(error.value)


def test_one_learned_policy_beside_a_rule_resumes(tmp_path, monkeypatch):
    """Its checkpoints are in the run folder, whatever its name."""
    monkeypatch.setattr(run_dir, "lock", lambda path: None)
    path, steps = tmp_path / "run", []
    for budget in (400, 600):
        made = dataclasses.replace(agents.with_rule(), goal=Goal(max_env_steps=budget))
        folder = run_dir.open_run(str(path), made, "single_process", ["x"], lambda line: None)
        before = folder.resume_point.of_task("outer").manifest()
        steps.append(0 if before is None else before["monitor"]["env_steps_acted"])
        ended = single_process(
            made,
            stop=threading.Event(),
            run_dir=folder.path,
            resume_point=folder.resume_point,
            printer=lambda line: None,
        )
        assert ended is not None and ended[1]
    assert steps == [0, 400]
    assert json.loads((path / "resumed.json").read_text())["monitor"]["env_steps_acted"] == 400
    assert Checkpoints(path).latest().manifest["monitor"]["env_steps_acted"] == 600


@pytest.mark.full
def test_one_learned_policy_beside_a_rule_resumes_in_nodes(tmp_path):
    path = tmp_path / "run"
    for budget in (400, 600):
        ended = finish(
            [
                *(sys.executable, "-m", "distrl", "train", "--topology=heavy_env"),
                *(f"--experiment={EXPERIMENTS / 'agents.py'}:with_rule", f"--run_dir={path}"),
                f"--max_env_steps={budget}",
            ]
        )
        assert ended.returncode == EXIT_FINISHED, ended.stdout + ended.stderr
        saved_steps = Checkpoints(path).latest().manifest["monitor"]["env_steps_acted"]
        assert budget <= saved_steps < budget + 4  # less than one step of a pool
    resumed = json.loads((path / "resumed.json").read_text())
    assert 400 <= resumed["monitor"]["env_steps_acted"] < 404


class PolicyRun:
    """One policy's folder, seen as a run's."""

    def __init__(self, run: Run, task: str):
        self._run, self.run_dir = run, run.run_dir / "tasks" / task

    def resumed(self):
        path = self.run_dir / "resumed.json"
        parts = {"checkpoint", "learner", "table", "monitor"}
        self._run.wait_for(lambda: path.exists() and parts <= json.loads(path.read_text()).keys())
        return json.loads(path.read_text())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("topology", "name", "kills"),
    [
        full("single_process", "experiment", 1),
        full("light_env", "experiment", 1),
        slow("single_process", "experiment", 8),
        slow("heavy_env", "experiment", 4),
        slow("heavy_env", "reverb", 3),
        slow("light_env", "experiment", 8),
    ],
)
def test_killed_at_random_times(tmp_path, topology, name, kills):
    """Whenever it is killed, all resume from one generation, and every step stays exact."""
    skip_without_reverb(name)
    rng = random.Random(0)
    made = Run(
        tmp_path,
        f"--topology={topology}",
        f"--experiment={EXPERIMENTS / 'agents.py'}:{name}",
        "--max_env_steps=1000000000",
        *OFTEN,
    )
    folders = {task: made.run_dir / "tasks" / task for task in TASKS}

    def newest():
        found = latest_set(folders, lambda line: None)
        return {task: checkpoint.manifest for task, checkpoint in found.items()}

    def newest_round():
        return max((manifest["round"] for manifest in newest().values()), default=0)

    try:
        made.start()
        steps = 0
        for kill in range(kills):
            before = newest_round()
            made.wait_for(lambda before=before: newest_round() > before)
            time.sleep(rng.uniform(0.0, 2.0))
            made.end(signal.SIGKILL)
            manifests = newest()
            assert len({manifest["round"] for manifest in manifests.values()}) == 1
            counts = {
                name: max(manifest["monitor"][name] for manifest in manifests.values())
                for name in ("env_steps_acted", "episodes")
            }
            assert counts["env_steps_acted"] >= steps
            steps = counts["env_steps_acted"]
            made.start()
            made.wait_for("everything is written to")  # no longer what the life before loaded
            for task, manifest in manifests.items():
                manifest["monitor"].update(counts)
                check_resumed(PolicyRun(made, task), manifest, name == "reverb")
            lives = json.loads((made.run_dir / "lives.json").read_text())
            assert max(lives.values()) >= kill + 2
        made.wait_for(lambda: newest_round() > manifests["outer"]["round"])
        assert made.end(signal.SIGTERM) == 143
    finally:
        made.close()
    for manifest in newest().values():
        learner = manifest["monitor"]["learner"]
        assert not [key for key in learner if key.startswith("wrong_") and learner[key]]


def test_policies_that_share_parameters_resume_with_the_same(tmp_path, monkeypatch):
    """Though one of them was saved before the other's last update."""
    monkeypatch.setattr(run_dir, "lock", lambda path: None)
    made = dataclasses.replace(tasks.sharing(), goal=Goal(max_env_steps=200))
    path = str(tmp_path / "run")
    folder = run_dir.open_run(path, made, "single_process", ["x"], lambda _: None)
    with SingleProcess(made, printer=lambda line: None) as parts:
        for number in range(4):
            parts.run_once()
            if number == 2:
                save(parts, "aux", folder)
        save(parts, "main", folder)
        newest = parts.tasks["main"].learner.state().params["torso/~/linear_0"]["w"]
    larger = dataclasses.replace(made, goal=Goal(max_env_steps=300))
    folder = run_dir.open_run(path, larger, "single_process", ["x"], lambda _: None)
    point = folder.resume_point
    assert set(point.checkpoints) == {"main", "aux"}
    with SingleProcess(larger, printer=lambda line: None, resume_point=point) as parts:
        for part in parts.tasks.values():
            torso = part.learner.state().params["torso/~/linear_0"]["w"]
            np.testing.assert_array_equal(torso, newest)
        parts.run_once()


def save(parts, task, folder):
    part = parts.tasks[task]
    monitor = part.builder.make_monitor(lambda reason, reached: None, None)
    checkpointer = make_checkpointer(
        part.builder,
        folder.path,
        part.learner,
        part.replay,
        monitor.state,
        folder.resume_point,
        lambda: None,
        generations=ClockGenerations(0, None),
    )
    checkpointer.save(last=True)
