"""--config_file feeds a run's settings back, and those that a user writes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import flagsaver

from distrl.experiment import Experiment
from distrl.launch.commands import train
from distrl.launch.run_dir import config_diff
from tests.support.commands import ROOT


@pytest.fixture
def experiment_of(status_of, monkeypatch: pytest.MonkeyPatch):
    """A function that returns the experiment that a command would train, and its command line."""
    made: list[tuple[Experiment, list[str]]] = []

    def take(experiment, arguments, values, process_group, chosen, name):
        made.append((experiment, arguments))
        return 0

    monkeypatch.setattr(train, "_train_in_one_process", take)

    def run(*arguments: str) -> tuple[Experiment, list[str]]:
        with flagsaver.flagsaver():
            assert status_of("train", "--topology=single_process", *arguments) == 0
        return made[-1]

    return run


FLAGS = (
    "--env=CartPole-v1",
    "--agent=ppo",
    "--seed=3",
    "--config.agent.network.hidden_sizes=32",
    "--config.learner.timeout=7",
    "--max_env_steps=3000",
)


def test_a_runs_settings_come_back_and_flags_override_them(experiment_of, tmp_path: Path):
    first, command = experiment_of(*FLAGS)
    config = {"command": command, "topology": "single_process", **config_diff.describe(first)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again, command = experiment_of("--config_file=config.json")
    assert config_diff.describe(again) == config_diff.describe(first)
    other, _ = experiment_of("--config_file=config.json", "--seed=4", "--config.learner.timeout=8")
    assert (other.seed, other.learner.timeout) == (4, 8.0)
    assert other.goal == first.goal
    # The command that a run keeps needs the file no more.
    assert "--config.agent.network.hidden_sizes=32" in command
    # What only another version has is left out, and so is what is no setting of a command line.
    config["experiment"]["learner"]["forgotten"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    again, _ = experiment_of("--config_file=config.json")
    assert again.learner == first.learner


OPTIONS = """
from distrl import presets
from distrl.envs import PythonEnvironment
from distrl.envs.suites import GymBuilder

OPTIONS = (("map_name", "4x4"), ("desc", ["SFFG"]), ("is_slippery", False))
experiment = presets.experiment(
    PythonEnvironment(GymBuilder("gym", "FrozenLake-v1", OPTIONS), "lake"), "ppo"
)
"""


def test_options_of_a_file_stay_what_they_are_where_its_run_is_repeated(experiment_of, tmp_path):
    (tmp_path / "lake.py").write_text(OPTIONS)
    first, command = experiment_of("--experiment=lake.py", "--max_env_steps=3000")
    settings = json.loads(json.dumps(config_diff.describe(first)))
    config = {"command": command, "topology": "single_process", **settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again, command = experiment_of("--config_file=config.json", "--experiment=lake.py")
    assert again.environment.builder.options == first.environment.builder.options
    assert not [word for word in command if "options" in word]
    flag = "--config.environment.builder.options=(('is_slippery', True),)"
    other, _ = experiment_of("--config_file=config.json", "--experiment=lake.py", flag)
    assert other.environment.builder.options == (("is_slippery", True),)


def test_a_run_with_an_infinite_setting_comes_back(experiment_of):
    flag = "--config.environment.pool.step_timeout=inf"
    first, command = experiment_of("--env=gym:CartPole-v1", flag)
    config = {"command": command, "topology": "single_process", **config_diff.describe(first)}
    Path("config.json").write_text(json.dumps(config))
    again, _ = experiment_of("--config_file=config.json")
    assert again.environment.pool.step_timeout == math.inf
    # As an experiment of one's own has it, whose command does not say so.
    config["command"] = [word for word in command if word != flag]
    Path("config.json").write_text(json.dumps(config))
    again, _ = experiment_of("--config_file=config.json")
    assert again.environment.pool.step_timeout == math.inf


YAML = """
env: CartPole-v1
agent: ppo
max_env_steps: 2000
config:
  learner.timeout: 7
  agent: {network: {hidden_sizes: [16, 16]}, learning_rate: 1e-4}
"""


def test_a_file_that_a_user_writes(experiment_of, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(YAML)
    made, _ = experiment_of("--config_file=mine.yaml", "--config.learner.timeout=9")
    assert type(made.agent).__name__ == "PPOConfig"
    assert made.agent.network.hidden_sizes == (16, 16)
    assert made.agent.learning_rate == 1e-4
    assert made.goal.max_env_steps == 2000
    assert made.learner.timeout == 9.0


def test_lists_and_null_in_a_file(experiment_of):
    names = ["reward_clip", "reward_scale"]
    Path("mine.json").write_text(json.dumps({"transforms": names, "seed": None}))
    made, _ = experiment_of("--config_file=mine.json")
    assert [each.name for each in made.transforms] == names
    assert made.seed == 0


@pytest.mark.parametrize("of_run", [False, True])
def test_sizes_in_a_file_are_those_of_flags(experiment_of, of_run):
    """Also the batch size that would be the default with fewer actors."""
    preset = ("--env=CartPole-v1", "--agent=ppo")
    batch_size = experiment_of(*preset)[0].learner.batch_size
    sizes = {"actors.num_actors": 4, "learner.batch_size": batch_size, "replay.max_size": 64}
    wanted, _ = experiment_of(*preset, *(f"--config.{name}={n}" for name, n in sizes.items()))
    data = {"env": "CartPole-v1", "agent": "ppo", "config": sizes}
    if of_run:  # made by another version, whose command did not need the flags
        data = {"command": ["distrl train", *preset], **config_diff.describe(wanted)}
    Path("sizes.json").write_text(json.dumps(data))
    made, _ = experiment_of("--config_file=sizes.json")
    assert made.learner.batch_size == batch_size
    assert (made.learner, made.replay) == (wanted.learner, wanted.replay)
    if of_run:  # where these are other ones, defaults follow them
        flags = ("--config.actors.num_actors", "6", "--config.replay.max_size=200")
        more, _ = experiment_of("--config_file=sizes.json", *flags)
        assert more.learner.batch_size == 3 * batch_size


@pytest.mark.parametrize(
    "words",
    [
        ("--agent=ppo",),
        ("--agent=dqn", "--config.actors.num_envs=16"),
        ("--agent=ppo", "--config.learner.batch_size=96"),
        ("--agent=ppo", "--config.replay.max_size=300", "--config.learner.timeout=7"),
        ("--agent=impala", "--config.agent.network.core=lstm"),
    ],
)
def test_sizes_that_a_run_did_not_set_follow_other_actors(experiment_of, words):
    """Also where these sizes are not the preset's, as the run had other actors, too."""
    first, command = experiment_of(*words, "--config.actors.num_actors=4")
    data = {"command": command, "topology": "single_process", **config_diff.describe(first)}
    Path("config.json").write_text(json.dumps(data))
    made, _ = experiment_of("--config_file=config.json", "--config.actors.num_actors=8")
    wanted, _ = experiment_of(*words, "--config.actors.num_actors=8")
    assert config_diff.describe(made) == config_diff.describe(wanted)


SHORT, LONG = (3000, 3), (9000, 5)


@pytest.mark.parametrize("file", ["run", "short", "long"])
def test_a_flag_replaces_that_of_a_file_in_its_other_form(experiment_of, file):
    steps, seed = SHORT
    short = ("--max_env_steps=9000", "--seed=5")
    long = ("--config.goal.max_env_steps=9000", "--config.seed=5")
    data = {"max_env_steps": steps, "seed": seed}
    if file == "long":
        data = {"config": {"goal": {"max_env_steps": steps}, "seed": seed}}
    elif file == "run":
        first, command = experiment_of(*FLAGS)
        data = {"command": command, "topology": "single_process", **config_diff.describe(first)}
    Path("file.json").write_text(json.dumps(data))
    for words, wanted in (((), SHORT), (short, LONG), (long, LONG)):
        made, command = experiment_of("--config_file=file.json", *words)
        assert (made.goal.max_env_steps, made.seed) == wanted
        again, _ = experiment_of(*(word for word in command[1:] if "config_file" not in word))
        assert (again.goal, again.seed) == (made.goal, made.seed)


def test_both_forms_of_a_flag_are_refused(status_of, capsys):
    words = ("--max_env_steps", "3000", "--config.goal.max_env_steps=9000")
    assert status_of("train", "--topology=single_process", *words) == 2
    message = "--max_env_steps=3000 is short for --config.goal.max_env_steps, which is 9000 here;"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no.json", None, "no.json: No such file"),
        ("bad.json", "{", "bad.json cannot be read: "),
        ("list.yaml", "- 3", "list.yaml must have names and values"),
        ("flag.yaml", "agnet: ppo", "'agnet' is not a flag that a file may set; settings of"),
        ("again.yaml", "run_dir: here", "'run_dir' is not a flag that a file may set"),
        ("setting.yaml", "config: {learner.batchsize: 3}", "no setting 'learner.batchsize'"),
        ("config.yaml", "config: 3", "`config` must have settings by name"),
        ("value.yaml", "config: {learner.batch_size: much}", "expected int, got 'much'"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(status_of, tmp_path, capsys, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert status_of("train", "--topology=single_process", f"--config_file={name}") == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("agent", ["impala", "ppo", "dqn", "sac"])
def test_sizes_follow_the_actors_unless_they_are_given(experiment_of, agent):
    env = "--env=Pendulum-v1" if agent == "sac" else "--env=Pong-v5"
    flags = (env, f"--agent={agent}")
    plain, _ = experiment_of(*flags)
    many, _ = experiment_of(*flags, "--config.actors.num_actors=6")  # refused with plain's sizes
    assert many.actors.num_actors == 6
    defaults = many.agent.defaults(many.only_task.env_spec, many.actors)
    assert (many.learner, many.replay) == (defaults.learner, defaults.replay)
    least = max(2000, many.replay.min_size_to_sample)
    large = least + 4 * max(many.learner.batch_size, many.actors.num_streams)
    given, _ = experiment_of(
        *flags, "--config.actors.num_actors=6", f"--config.replay.max_size={large}"
    )
    assert given.replay.max_size == large
    again, _ = experiment_of(*flags)
    assert (again.learner, again.replay) == (plain.learner, plain.replay)


def test_sizes_follow_the_agent_unless_they_are_given(experiment_of):
    made, _ = experiment_of("--env=Pendulum-v1", "--agent=td3", "--config.agent.network.core=lstm")
    assert made.replay.unroll_length == 20
    assert made.learner.batch_size == 16


POLICIES = """
from distrl import envs
from distrl.agents.dqn import DQNConfig
from distrl.agents.ppo import PPOConfig
from distrl.experiment import ActorsConfig, Experiment, LearnedPolicy, LearnerConfig, ReplayConfig


def made(**actors):
    return Experiment(
        envs.make("CartPole-v1"),
        policies={
            "main": PPOConfig(),
            "values": LearnedPolicy(DQNConfig(), learns_from="main"),
            "own": LearnedPolicy(
                DQNConfig(),
                ReplayConfig(table="uniform", unroll_length=8, max_size=900),
                LearnerConfig(batch_size=24),
                learns_from="main",
            ),
        },
        **actors,
    )


experiment = made()
many = made(actors=ActorsConfig(num_actors=5, num_envs=24))
"""


def test_sizes_of_policies_follow_the_actors_unless_they_are_given(experiment_of, tmp_path):
    (tmp_path / "several.py").write_text(POLICIES)
    wanted, _ = experiment_of("--experiment=several.py:many")
    flags = ("--config.actors.num_actors=5", "--config.actors.num_envs=24")
    made, _ = experiment_of("--experiment=several.py", *flags)
    assert made.policies == wanted.policies
    assert made.policies["own"].learner.batch_size == 24  # the file's own
    batch = ("--config.policies.main.learner.batch_size=30", "--config.actors.num_envs=8")
    made, _ = experiment_of("--experiment=several.py", *batch)
    (main, _, own), alone = made.policies.values(), made.policies["main"].agent
    sized = alone.defaults(made.env_spec_of("main"), made.actors, main.learner)
    assert (main.learner.batch_size, main.replay) == (30, sized.replay)
    assert own == wanted.policies["own"]


def test_an_environment_of_a_module_in_the_current_folder(tmp_path):
    (tmp_path / "my_module.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Mine-v0', CartPoleEnv, max_episode_steps=7)\n"
    )
    command = [
        sys.executable, "-m", "distrl", "train", "--env=gym:my_module:Mine-v0", "--agent=ppo",
        "--topology=single_process", "--max_env_steps=1", "--run_dir=run",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "environments my_module:Mine-v0 in a " in done.stdout, done.stdout + done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["experiment"]["environment"]["wrappers"]["max_episode_steps"] == 7


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            "gym:no_such_module:Mine-v0",
            "there is no module 'no_such_module'; it is looked for on Python's path and, last, in "
            "the current folder, which other hosts need on PYTHONPATH",
        ),
        ("gym:gymnasium:Mine-v0", "gymnasium does not register it: "),
    ],
)
def test_a_module_that_is_missing_or_registers_nothing_is_said(status_of, capsys, env, message):
    assert status_of("train", f"--env={env}") == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_flags_of_absl_that_do_nothing_are_refused(status_of, capsys):
    assert status_of("train", "--topology=single_process", "--only_check_args") == 2
    assert "--only_check_args: absl defines it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "actors", "stacks", "tables", "host-daemon"])
def test_every_command_has_a_help(status_of, capsys, command):
    assert status_of(command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: distrl {command} ")
