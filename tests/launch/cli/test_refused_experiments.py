"""What an experiment cannot be, most of all one of several policies: one line, exit status 2."""

import os
from pathlib import Path

import pytest

from distrl.errors import ConfigError
from distrl.launch import launcher
from distrl.launch.commands import train
from distrl.programs import resources
from distrl.replay import memory_check
from tests.support import experiments

FILE = Path(experiments.__file__).with_name("refused.py")
SAID = {
    "memory_on_another_clock": "policy 'other' learns from 'main' and has memory; recurrent state",
    "acts_for_no_agent": "policies ['q'] act for no agent",
    "no_such_policy": "policy_of['agent_2'] is 'r'; the policies are ['p', 'q']",
    "table_of_another": "its table cannot be filled from there",
    "on_policy_from_another": "PPOConfig learns from its own policy's actions only",
    "more_workers_than_unrolls": "learner.num_gradient_workers=9 is more than learner.batch_size=8",
    "shared_with_nobody": "['third'] are no policies that learn",
    "more_shards_than_actors": "replay.num_shards=3 is more than actors.num_actors=2",
    "several_updates_summed": "makes several updates from a batch",
}


@pytest.mark.parametrize("name", SAID)
def test_an_experiment_that_cannot_be_is_refused_in_one_line(status_of, tmp_path, capsys, name):
    command = ("train", "--topology=single_process", f"--experiment={FILE}:{name}")
    assert status_of(*command) == 2
    out, err = capsys.readouterr()
    assert err.startswith("distrl: ") and err.count("\n") == 1
    assert SAID[name] in err
    assert out == ""
    assert not list(tmp_path.iterdir())  # no run folder


_SEVERAL = """
from distrl import presets

_hidden = first = presets.experiment("CartPole-v1", "ppo")
second = presets.experiment("CartPole-v1", "dqn")
number = 3
none = lambda: None


def of_task(task, *rest, **options):
    return first
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "FILE defines no 'experiment'; it has FILE:first, FILE:second"),
        (":third", "FILE defines no 'third'; it has FILE:first, FILE:second"),
        (
            ":number",
            "FILE:number must be an Experiment, or a function that returns one; got int; it has "
            "FILE:first, FILE:second",
        ),
        (
            ":none",
            "FILE:none must be an Experiment, or a function that returns one; got NoneType; it has "
            "FILE:first, FILE:second",
        ),
        (
            ":of_task",
            "FILE:of_task needs task; name a function without required arguments",
        ),
    ],
)
def test_the_experiments_of_a_file_are_named(status_of, tmp_path, capsys, name, said):
    file = tmp_path / "several.py"
    file.write_text(_SEVERAL)
    assert status_of("train", "--topology=single_process", f"--experiment={file}{name}") == 2
    line = capsys.readouterr().err
    assert line == f"distrl: --experiment: {said.replace('FILE', str(file))}\n"


@pytest.mark.parametrize(
    ("flag", "num_shards", "said"),
    [
        ("--config.replay.num_shards=4", [], "num_shards=4 is more than actors.num_actors=2"),
        ("--config.replay.num_shards=2", [2], "seen enough"),
        ("--config.actors.num_actors=3", [3], "seen enough"),
    ],
)
def test_flags_mend_what_a_file_has(status_of, capsys, monkeypatch, flag, num_shards, said):
    """An experiment is checked with its flags: what it would be without them does not count."""
    seen = []

    def resolve(experiment, *_):
        seen.append(experiment.replay.num_shards)
        raise ConfigError("seen enough")

    monkeypatch.setattr(train, "resolve", resolve)
    command = ("train", "--topology=heavy_env", f"--experiment={FILE}:more_shards_than_actors")
    assert status_of(*command, flag) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert seen == num_shards


def test_help_is_given_for_what_flags_may_mend(status_of, capsys):
    assert status_of("train", f"--experiment={FILE}:more_shards_than_actors", "--help") == 0
    assert "--config.replay.num_shards" in capsys.readouterr().out


@pytest.mark.parametrize(("free", "warnings"), [(1 << 50, 0), (1 << 10, 1)])
def test_a_table_for_which_memory_is_short_now_is_warned_of(
    status_of, tmp_path, capsys, monkeypatch, free, warnings
):
    def start(*_):
        raise ConfigError("seen enough")

    monkeypatch.setattr(train, "run_single_process", start)
    monkeypatch.setattr(memory_check, "free_memory", lambda: free)
    folder = f"--run_dir={tmp_path / 'run'}"
    command = ("train", "--topology=single_process", "--env=CartPole-v1", folder, "--nosnapshot")
    assert status_of(*command) == 2
    out, err = capsys.readouterr()
    assert "seen enough" in err
    assert out.count("distrl: warning: the full replay table needs ") == warnings


def test_a_gpu_that_nothing_uses_is_named(status_of, tmp_path, capsys, monkeypatch):
    def start(*_):
        raise ConfigError(f"seen {os.environ['JAX_PLATFORMS']}")

    monkeypatch.setattr(train, "run_single_process", start)
    monkeypatch.setattr(resources, "_PLUGINS", ("json",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("JAX_PLATFORMS", "")  # is restored
    monkeypatch.delenv("JAX_PLATFORMS")
    folder = f"--run_dir={tmp_path / 'run'}"
    command = ("train", "--topology=single_process", "--env=CartPole-v1", folder, "--nosnapshot")
    assert status_of(*command) == 2
    out, err = capsys.readouterr()
    assert "seen cpu" in err
    assert out.count("distrl: no part uses this machine's GPU") == 1


_ALIKE = """
from distrl import presets
from distrl.experiment import Experiment, LearnedPolicy
from distrl.replay.config import ReplayConfig

usual = presets.experiment("CartPole-v1", "dqn")
replay = ReplayConfig(table="uniform", max_size=1000)
policy = LearnedPolicy(usual.agent, replay, usual.learner)
other = LearnedPolicy(usual.agent, replay, usual.learner, learns_from="main")
experiment = Experiment(usual.environment, policies={"main": policy, "other": other})
"""
_NO_RATIO = ("--config.replay.samples_per_insert=None", "--config.replay.error_buffer=None")


@pytest.mark.parametrize(
    ("flags", "warnings"),
    [
        ((), 0),
        (_NO_RATIO, 1),
        ((*_NO_RATIO, "--config.learner.every_unrolls=1"), 0),
        (("--agent=impala",), 0),  # a queue has no ratio
        ((*_NO_RATIO, "--topology=single_process"), 0),
        (("--experiment=alike.py",), 1),  # once for two policies
    ],
)
def test_replay_without_the_algorithms_ratio_is_warned_of(
    status_of, tmp_path, capsys, monkeypatch, flags, warnings
):
    def start(*_, **__):
        raise ConfigError("seen enough")

    monkeypatch.setattr(launcher, "launch_experiment", start)
    monkeypatch.setattr(train, "run_single_process", start)
    folder = f"--run_dir={tmp_path / 'run'}"
    monkeypatch.chdir(tmp_path)
    Path("alike.py").write_text(_ALIKE)
    usual = () if "--experiment=alike.py" in flags else ("--env=CartPole-v1", "--agent=dqn")
    command = ("train", *usual, "--topology=heavy_env", "--nosnapshot")
    assert status_of(*command, folder, *flags) == 2
    out, err = capsys.readouterr()
    assert "seen enough" in err
    assert out.count("default, 8; to keep the algorithm's replay settings") == warnings
