"""A relative path is of the folder of the command, though the environment has left it since."""

import json
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from distrl import saved_policy
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.launch.cli import config_file
from distrl.launch.commands import train  # noqa: F401  (defines its flags)
from distrl.launch.graph import drawing
from distrl.launch.hosts import slurm
from distrl.launch.network.credentials import (
    make_credentials,
    read_credentials,
    write_credentials,
)
from distrl.launch.run_dir import snapshot
from distrl.launch.runs import evaluation
from distrl.launch.runs.run import Run
from distrl.launch.runs.video_files import open_film
from distrl.programs.diagram import diagram_of_one_process
from distrl.programs.placement import parse_hosts
from distrl.runtime.provenance import provenance
from distrl.saved_policy import PastPolicies, SavedPolicy
from distrl.testing import CheckingConfig, CountingEnvironment

EXPERIMENT = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig())


def test_files_that_flags_name_are_read(moved: Path):
    home = moved / "home"
    (home / "flags.json").write_text(json.dumps({"agent": "ppo"}))
    assert config_file.read("flags.json", flags.FLAGS).words == ["--agent=ppo"]
    (home / "hosts").write_text("h1\nh2\n")
    assert [host.name for host in parse_hosts("@hosts")] == ["h1", "h2"]
    credentials = make_credentials()
    write_credentials(home / "key.pem", credentials)
    assert read_credentials("key.pem") == credentials


def test_the_experiments_code_is_known(moved: Path, monkeypatch: pytest.MonkeyPatch):
    file = moved / "home" / "mine.py"
    file.touch()
    monkeypatch.setattr(
        "distrl.runtime.provenance.revision", lambda path: {"commit": str(path), "dirty": False}
    )
    assert provenance("mine.py")["code"]["experiment"]["commit"] == str(file)
    monkeypatch.setattr(snapshot, "_own_code", lambda left_out: ({}, {}))
    monkeypatch.setattr(snapshot, "is_users", lambda module: module.__name__ == "mine")
    kept = snapshot.write_snapshot(moved / "run", EXPERIMENT, "mine.py:name", [])
    about = snapshot.read_about(kept)["experiment"]
    assert (about["from"], about["name"]) == (str(file), "name")


def test_a_run_is_evaluated(moved: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "_play", lambda policy, *rest: policy)
    environment = EXPERIMENT.environment
    assert evaluation.evaluate("run", environment) == moved / "home" / "run"
    of_task = evaluation.evaluate(Run("run", trust=True, task="a"), environment)
    assert isinstance(of_task, Run)
    assert (of_task.path, of_task.trust) == (moved / "home" / "run" / "tasks" / "a", True)


def test_policies_are_those_of_its_runs(moved: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saved_policy, "find_saved", lambda path, which, caller: None)
    for policy in (SavedPolicy("run"), PastPolicies("run")):
        assert policy.path == str(moved / "home" / "run")


@pytest.mark.parametrize("name", ["a.gif", "a.png"])
def test_films_are_written(moved: Path, name: str):
    pytest.importorskip("PIL")
    film = open_film(Path(name))
    film.begin(300, 40, 10.0)
    film.add(np.zeros((300, 40, 3), np.uint8))
    film.close()
    assert [path.suffix for path in (moved / "home").iterdir()] == [name[1:]]


@pytest.mark.parametrize("suffix", drawing.FORMATS)
def test_diagrams_are_written(moved: Path, suffix: str):
    if suffix in (".png", ".pdf"):
        pytest.importorskip("matplotlib")
    drawing.draw(diagram_of_one_process(EXPERIMENT), Path(f"graph{suffix}"))
    assert (moved / "home" / f"graph{suffix}").stat().st_size


def test_a_slurm_job_runs_there(moved: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "lib")
    monkeypatch.setattr(slurm, "_run", lambda command: "7\n")
    slurm.submit(["--env=CartPole-v1"], moved / "run", ())
    script = (moved / "run" / slurm.SUBMITTED[0]).read_text()
    assert f"\ncd {moved}/home\n" in script and f":{moved}/home/lib " in script
