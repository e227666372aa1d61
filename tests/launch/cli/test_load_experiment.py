"""A user's own file, and the words of a command line."""

import copy
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from absl import flags

from distrl.config import ActorsConfig, SupervisionConfig
from distrl.envs import MultiAgentEnvironment
from distrl.experiment import Experiment
from distrl.launch.cli import load_experiment
from distrl.launch.cli.train_flags import joined_flags, without_flags
from distrl.rules import Rule
from distrl.testing import CheckingConfig, CountingAgents

FILE = """
import beside
import jax

TOTAL = jax.numpy.int32(beside.NUMBER)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "beside.py").write_text("NUMBER = 7\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('a user file in the place of json')\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("my_experiment", "my_experiment"),
        ("my-experiment.v2", "my-experiment.v2"),
        ("jax", "distrl_experiment_jax"),  # imported already
        ("this", "distrl_experiment_this"),  # of the standard library
        ("distrl", "distrl_experiment_distrl"),
    ],
)
def test_a_users_file_replaces_no_module(folder: Path, stem: str, name: str):
    before = {each: sys.modules.get(each) for each in ("jax", "this", "distrl")}
    (folder / f"{stem}.py").write_text(FILE)
    for _ in range(2):
        module = load_experiment._import_file(str(folder / f"{stem}.py"))
        assert module.__name__ == name and sys.modules[name] is module
        modules = load_experiment.experiment_modules()
        assert {each.__name__ for each in modules} == {name, "beside"}
        assert module.TOTAL == 7
    assert {each: sys.modules.get(each) for each in before} == before
    assert sys.modules["jax"] is jax and sys.path[-1] == str(folder)


def test_a_relative_file_is_of_the_folder_of_the_command(moved: Path, folder: Path):
    (folder / "home" / "relative.py").write_text("import relative_too\n")
    (folder / "home" / "relative_too.py").touch()
    module = load_experiment._import_file("relative.py")
    assert module.__file__ == f"{folder}/home/relative.py"
    modules = {each.__name__ for each in load_experiment.experiment_modules()}
    assert modules == {"relative", "relative_too"}


@pytest.mark.parametrize(("text", "steps"), [("1e6", 1_000_000), ("2_000", 2000), ("7.0", 7)])
def test_a_budget_is_written_like_the_setting_that_it_is_short_for(text: str, steps: int):
    values = copy.deepcopy(flags.FLAGS)
    values(["distrl train", f"--max_env_steps={text}"], known_only=True)
    assert values.max_env_steps == steps and type(values.max_env_steps) is int


def words_flags() -> flags.FlagValues:
    values = flags.FlagValues()
    for name in ("run_dir", "slurm", "env", "name"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    flags.DEFINE_bool("light", False, "", flag_values=values)
    return values


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("--env=a --run_dir=X --light", "--env=a --light"),
        ("--env a --run_dir X --light", "--env a --light"),
        ("-run_dir X --env=a", "--env=a"),
        ("-run_dir=X --nolight", "--nolight"),
        ("--light --run_dir X", "--light"),
        ("--env --run_dir --slurm=y", "--env --run_dir"),
        ("--slurm --nodes=3 --env=a", "--env=a"),
        ("--namespace=b --name=a", "--namespace=b"),
        ("--run_dir", ""),
        ("--config.a.b=3 --run_dir X", "--config.a.b=3"),
        ("--config.a.b 3 --run_dir X", "--config.a.b 3"),
        ("word --run_dir=X - --run_dir Y", "word -"),
        ("--env=a -- --run_dir=X", "--env=a -- --run_dir=X"),
    ],
)
def test_a_flag_is_left_out_however_it_is_written(words: str, left: str):
    kept = without_flags(words.split(), ("run_dir", "slurm", "name"), words_flags())
    assert kept == left.split()


def test_flags_are_joined_however_they_are_written():
    words = "-env a --config.a.b 3 -run_dir=X word --nolight -light --name"
    joined = "--env=a --config.a.b=3 --run_dir=X word --nolight --light --name"
    assert " ".join(joined_flags(words.split(), words_flags())) == joined


def test_the_folder_is_not_put_on_the_path_twice(folder: Path):
    path = folder / "mine.py"
    path.write_text(FILE)
    before = len(sys.path)
    load_experiment._import_file(str(path))
    load_experiment._import_file(os.path.relpath(path))
    assert len(sys.path) == before + 1


@pytest.mark.parametrize("several", [False, True])
def test_debug_leaves_time_for_a_prompt_and_other_settings_alone(several: bool):
    parts: dict[str, Any] = {"agent": CheckingConfig()}
    if several:
        policies = {"rule": Rule(lambda _: 3), "x": CheckingConfig(), "y": CheckingConfig()}
        policy_of = {"a": "x", "b": "rule", "c": "y"}
        parts = {"policies": policies, "policy_of": policy_of}
    environment = MultiAgentEnvironment(CountingAgents)
    parts |= {"actors": ActorsConfig(1, 1), "supervision": SupervisionConfig(log_limit_mb=7.0)}
    experiment = Experiment(environment, **parts)
    values = copy.deepcopy(flags.FLAGS)
    values(["distrl train", "--debug=learner/0"], known_only=True)
    patient = load_experiment.apply_settings(experiment, values)
    assert [task.learner.timeout for task in patient.tasks.values()] == [86_400.0] * (1 + several)
    assert patient.tasks.keys() == experiment.tasks.keys()
    assert list(patient.policies) == list(experiment.policies)
    assert patient.inference.timeout == patient.supervision.call_timeout == 86_400.0
    supervision = patient.supervision
    assert (supervision.restarts, supervision.idle_limit) == (0, None)
    assert supervision.log_limit_mb == 7.0
