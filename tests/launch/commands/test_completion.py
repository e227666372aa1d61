"""`distrl completion`: what a shell offers for the last word of a command line."""

import shutil
import subprocess

import pytest
from absl import flags

from distrl.errors import ConfigError
from distrl.launch.cli import config_flags
from distrl.launch.command_table import COMMANDS
from distrl.launch.commands import completion, completion_words, host_daemon
from distrl.launch.sweep import sweep
from distrl.presets import AGENTS, experiment

KNOWN = {
    "flags": ["agent", "env", "experiment", "seed"],
    "settings": {
        "impala": {"config.agent.rho": [], "config.replay.table": ["queue", "uniform"]},
        "ppo": {"config.agent.clip_ratio": [], "config.actors.pin": ["True", "False"]},
    },
    "choices": {"snapshot": ["true", "false"]},
    "environments": ["CartPole-v0", "CartPole-v1", "Pong-v5"],
}


def offered(line: str) -> list[str]:
    words = line.split() + ([""] if line.endswith(" ") else [])
    return completion.candidates(words[1:], KNOWN)


def test_a_user_without_a_home_has_no_names_and_no_process_that_looks_for_them(monkeypatch):
    def expanded(path, name):
        raise ConfigError(f"{name}: there is no home")

    def start(*arguments, **settings):
        raise AssertionError("a process was started")

    monkeypatch.setattr("distrl.runtime.home.expanded", expanded)
    monkeypatch.setattr(subprocess, "Popen", start)
    assert completion_words.read() == ({}, True)
    assert completion.completion(["completion", "bash"]) == 0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "runs" / name / "logs").mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    (tmp_path / "runs" / "sweep").mkdir()
    (tmp_path / "runs" / "b" / "tasks" / "left").mkdir(parents=True)
    (tmp_path / "runs" / "b" / "metrics.csv").write_text("seconds,env_steps,mean_return\n1,2,3\n")
    (tmp_path / "own.py").touch()
    for node in ("actor-0", "gradient_worker-1"):
        (tmp_path / "runs" / "a" / "logs" / f"{node}.log").touch()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("distrl st", ["stacks", "status", "stop"]),
        ("distrl --v", ["--version"]),
        ("distrl train --a", ["--agent="]),
        ("distrl train --agent=", ["--agent=impala", "--agent=ppo"]),
        ("distrl train --agent p", ["ppo"]),
        ("distrl train --env=Cart", ["--env=CartPole-v0", "--env=CartPole-v1"]),
        ("distrl train --config.agent.", ["--config.agent.rho="]),
        ("distrl train --agent=ppo --config.ag", ["--config.agent.clip_ratio="]),
        ("distrl train --config.replay.table=", [
            "--config.replay.table=queue", "--config.replay.table=uniform"]),
        ("distrl train --agent=ppo --config.actors.pin=T", ["--config.actors.pin=True"]),
        ("distrl train --topology=h", ["--topology=heavy_env"]),
        ("distrl sweep --agent=ppo --grid config.agent", ["config.agent.clip_ratio="]),
        ("distrl sweep --tri", ["--trials="]),
        ("distrl eval runs/a --tru", ["--trust"]),
        ("distrl eval runs/a --which=b", ["--which=best"]),
        ("distrl eval ", ["runs/a", "runs/b", "runs/sweep/"]),
        ("distrl stop runs/", ["runs/a", "runs/b", "runs/sweep/"]),
        ("distrl stop nowhere/", []),
        ("distrl list runs/s", ["runs/sweep/"]),
        ("distrl logs runs/a ", ["actor/0", "gradient_worker/1"]),
        ("distrl train --run_dir=runs/b", ["--run_dir=runs/b"]),
        ("distrl completion z", ["zsh"]),
        ("distrl train --snapshot=", ["--snapshot=false", "--snapshot=true"]),
        ("distrl train --experiment=ow", ["--experiment=own.py"]),
        ("distrl train --experiment=runs/a/", ["--experiment=runs/a/config.json",
            "--experiment=runs/a/logs/"]),
        ("distrl sweep --grid config.replay.table=u", ["config.replay.table=uniform"]),
        ("distrl sweep --grid agent=ppo,", ["agent=ppo,impala"]),
        ("distrl sweep --show ru", ["runs/"]),
        ("distrl eval runs/a --s", ["--sample", "--seed="]),
        ("distrl eval runs/a --code=", ["--code=current", "--code=snapshot"]),
        ("distrl eval runs/b --task=", ["--task=left"]),
        ("distrl eval --trust runs/b", ["runs/b"]),
        ("distrl play runs/a --w", ["--watch", "--which="]),
        ("distrl video runs/a --which=l", ["--which=latest"]),
        ("distrl video runs/a ", []),
        ("distrl logs runs/a actor/0 -", ["--help", "-f"]),
        ("distrl plot runs/a ru", ["runs/"]),
        ("distrl plot runs/b --y=m", ["--y=mean_return"]),
        ("distrl tables x --s", ["--set"]),
    ],
)  # fmt: skip
def test_candidates(runs, line, words):
    assert offered(line) == words


def test_settings_are_those_of_the_dataclasses():
    values = flags.FlagValues()
    config_flags.define_flags(experiment("CartPole-v1", "dqn"), values=values)
    found = {name: completion_words.choices(values[name]) for name in values}
    assert found["config.replay.table"] == ["queue", "uniform", "prioritized"]
    assert found["config.actors.late_data"] == ["keep", "drop"]
    assert found["config.actors.pin"] == ["True", "False"]
    assert found["config.learner.batch_size"] == []


def test_every_setting_has_an_explanation():
    for agent, environment in (("r2d2", "CartPole-v1"), ("sac", "Pendulum-v1")):
        for name, leaf in config_flags.describe(experiment(environment, agent), "config").items():
            assert leaf.doc != config_flags._text(leaf.kinds), name


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_scripts_are_valid(monkeypatch, capsys, shell):
    monkeypatch.setattr(completion_words, "read", lambda: ({}, True))
    assert completion.completion(["distrl completion", shell]) == 0
    script = capsys.readouterr().out
    assert "distrl _complete" in script
    if shutil.which(shell) is not None:
        done = subprocess.run([shell, "-n"], input=script, text=True, check=False)
        assert done.returncode == 0


@pytest.mark.full
def test_what_is_collected(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert completion_words.read() == ({}, False)
    completion_words.main()
    words, is_new = completion_words.read()
    assert is_new
    assert words["settings"].keys() == AGENTS.keys()
    assert "config.agent.clip_ratio" in words["settings"]["ppo"]
    assert "CartPole-v1" in words["environments"] and "topology" in words["flags"]
    assert words["choices"]["snapshot"] == ["true", "false"]


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("sweep", sweep._define_flags),
        ("host-daemon", lambda: host_daemon._parse(["", "--join=h:1", "--credentials=c.pem"])),
    ],
)
def test_every_flag_of_a_command_is_in_its_help(command, values):
    """From which the completion of its flags is made, too."""
    names = {f"--{name}" for name in values()} - {"--help", "--helpfull", "--helpshort"}
    names -= {"--helpxml", "--?", "--only_check_args", "--flagfile", "--undefok"}
    assert names
    assert [name for name in sorted(names) if name not in COMMANDS[command].help] == []
