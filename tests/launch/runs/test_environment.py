"""The environment of a run comes back from its settings, or from the experiment that it has."""

import dataclasses
import json
import sys
import uuid

import numpy as np
import pytest

from distrl import envs
from distrl.envs import (
    Copies,
    MultiAgentEnvironment,
    NativeEnvironment,
    PoolConfig,
    PythonEnvironment,
    WrapperConfig,
)
from distrl.envs.multi_agent.pettingzoo import PettingZooBuilder
from distrl.envs.suites import DmControlBuilder, GymBuilder
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.run_dir.config_diff import describe
from distrl.launch.run_dir.snapshot import ABOUT, write_snapshot
from distrl.launch.runs import evaluation, player
from distrl.launch.runs.environment import environment_of, experiment_of, with_settings
from distrl.launch.runs.run import Run, load_run
from distrl.testing import CheckingConfig, CountingEnvironment

FILE = """
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.experiment import Experiment
from distrl.testing import CheckingConfig, CountingEnvironment

def mine():
    wrappers = WrapperConfig(max_episode_steps=2, post_process=lambda action, observation: action)
    return Experiment(PythonEnvironment(CountingEnvironment, "mine", wrappers), CheckingConfig())
"""


def make_run(folder, environment, **more):
    experiment = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig())
    object.__setattr__(experiment, "environment", environment)  # as if the agent could learn in it
    folder.mkdir()
    config = {"command": [], "topology": "single_process", **describe(experiment), **more}
    (folder / "config.json").write_text(json.dumps(config))
    return load_run(folder)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NativeEnvironment("CartPole-v1", max_episode_steps=9, num_threads=2),
        lambda: envs.make("Pong-v5", stack_num=2),
        lambda: envs.make(
            "gym:CartPole-v1", wrappers=WrapperConfig(frame_stack=3), sutton_barto_reward=True
        ),
        lambda: envs.make("gym:Pendulum-v1", pool=PoolConfig(kind="threads", num_workers=2)),
        lambda: Copies(envs.make("CartPole-v1"), 3),
    ],
)
def test_an_environment_by_name_has_its_settings_again(tmp_path, make):
    pytest.importorskip("envpool")
    environment = make()
    run = make_run(tmp_path / "run", environment)
    assert environment_of(run) == environment
    if isinstance(environment, Copies):
        of_policy = environment_of(Run(run.path, task="1"))
        assert of_policy == environment.environment


NUMPY = (
    ("is_slippery", np.bool_(False)),
    ("sizes", (np.int64(3), [np.float32(0.5)])),
    ("rewards", {"goal": np.int8(2)}),
)


@pytest.mark.parametrize(
    "builder",
    [
        GymBuilder("gym", "FrozenLake-v1", NUMPY),
        DmControlBuilder("cartpole", "swingup", NUMPY),
        PettingZooBuilder("pettingzoo.classic.tictactoe_v3", NUMPY),
    ],
)
def test_numbers_of_numpy_in_options_are_numbers_again(tmp_path, builder):
    run = make_run(tmp_path / "run", PythonEnvironment(builder))
    options = dict(environment_of(run).builder.options)
    assert options == {"is_slippery": False, "sizes": (3, (0.5,)), "rewards": {"goal": 2}}
    assert options["is_slippery"] is False  # and no text, which would be true


def test_numbers_of_numpy_in_options_of_envpool_are_numbers_again(tmp_path):
    pytest.importorskip("envpool")
    environment = envs.make("Pong-v5", stack_num=np.int64(2))
    again = environment_of(make_run(tmp_path / "run", environment))
    assert again == environment and type(dict(again.options)["stack_num"]) is int


@pytest.mark.parametrize("value", [uuid.SafeUUID.safe, json.dumps, Experiment, {1: 2}, [{abs}]])
@pytest.mark.parametrize("copies", [False, True])
def test_an_option_that_a_file_does_not_have_is_the_experiments(tmp_path, value, copies):
    environment = PythonEnvironment(GymBuilder("gym", "FrozenLake-v1", (("option", value),)))
    name, settings = "environment", environment
    if copies:
        name, settings = "environment.environment", Copies(environment, 3)
    run = make_run(tmp_path / "run", settings)
    assert run.config["not_plain"] == [f"{name}.builder.options"]
    with pytest.raises(ConfigError, match=rf"code of its own \({name}.builder.options\): give"):
        environment_of(run)
    experiment = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig())
    object.__setattr__(experiment, "environment", settings)
    write_snapshot(run.path, experiment, None, [])
    assert environment_of(run, trust=True) == settings


def test_atari_is_scored_by_whole_games(tmp_path, monkeypatch):
    pytest.importorskip("envpool")
    run = make_run(tmp_path / "run", envs.make("Pong-v5", stack_num=2, episodic_life=True))
    whole = envs.make("Pong-v5", stack_num=2)
    monkeypatch.setattr(player, "set_environment", lambda variables: None)
    values = player.player_arguments("eval").parse_args([str(run.path)])
    assert player.Player("eval", values).environment == whole
    monkeypatch.setattr(evaluation, "_play", lambda run, environment, *rest: environment)
    assert evaluation.evaluate(run) == whole
    assert evaluation.evaluate(run, environment_of(run)) == environment_of(run) != whole


def test_an_environment_of_a_file_is_the_files_with_the_runs_settings(tmp_path):
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "my_file.py").write_text(FILE)
    wrappers = WrapperConfig(max_episode_steps=5, post_process=lambda action, _: action)
    environment = PythonEnvironment(CountingEnvironment, "mine", wrappers)
    command = ["distrl train", "--experiment=replaced.py", "--experiment", "my_file.py:mine"]
    run = make_run(tmp_path / "run", environment, command=command, working_folder=str(folder))
    hint = r"^play: .* code of its own \(CountingEnvironment\): to run that code, which is in "
    with pytest.raises(ConfigError, match=hint + r".*/my_file.py:mine, add --trust; or name"):
        environment_of(run, command="play")
    for options in ({"trust": True}, {"file": f"{folder}/my_file.py:mine"}):
        found = environment_of(run, **options)
        assert found.wrappers.max_episode_steps == 5
        assert found.builder is CountingEnvironment
        assert callable(found.wrappers.post_process)


REGISTERED = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=7)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project's folder, which is the current one and on Python's path, with a run in it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "all_runs").mkdir()
    yield tmp_path / "all_runs" / "a-run"
    for name in set(sys.modules) - before:
        if name.startswith(("all_runs", "a_module")):
            del sys.modules[name]
    if "gymnasium" in sys.modules:
        sys.modules["gymnasium"].registry.pop("Mine-v0", None)


@pytest.mark.parametrize("several", [False, True])
def test_a_module_in_a_run_folder_is_imported_only_with_trust(project, monkeypatch, several):
    pytest.importorskip("gymnasium")
    module = "all_runs.a-run.code"
    if several:
        environment = MultiAgentEnvironment(PettingZooBuilder(module))
    else:
        environment = PythonEnvironment(GymBuilder("gym", f"{module}:Mine-v0"))
    run = make_run(project, environment)
    (project / "code.py").write_text(REGISTERED)
    hint = r"code of its own \(all_runs.a-run.code\): to import that module, "
    with pytest.raises(ConfigError, match=hint + "load the run with load_run"):
        evaluation.evaluate(project, episodes=1)
    monkeypatch.setattr(player, "set_environment", lambda variables: None)
    values = player.player_arguments("eval").parse_args([str(project)])
    with pytest.raises(ConfigError, match=hint + "add --trust; or name"):
        player.Player("eval", values)
    assert module not in sys.modules
    assert environment_of(run, trust=True) == environment
    if not several:
        assert environment.builder.registered.max_episode_steps == 7
        assert module in sys.modules


def test_a_module_is_looked_for_where_the_run_began_and_where_the_command_does(
    project, tmp_path, monkeypatch
):
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(sys, "path", sys.path[1:])
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "a_module_before.py").write_text(REGISTERED)
    (tmp_path / "a_module_here.py").write_text(REGISTERED)
    for name in ("a_module_before", "a_module_here"):
        environment = PythonEnvironment(GymBuilder("gym", f"{name}:Mine-v0"))
        run = make_run(
            tmp_path / name.upper(), environment, working_folder=str(tmp_path / "before")
        )
        made = environment_of(run, trust=True)
        assert made.builder.registered.max_episode_steps == 7
        del sys.modules["gymnasium"].registry["Mine-v0"]


def test_the_module_of_an_environment_that_the_command_names_may_be_in_the_current_folder(
    project, tmp_path, monkeypatch
):
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(sys, "path", sys.path[1:])
    monkeypatch.setattr(player, "set_environment", lambda variables: None)
    (tmp_path / "a_module.py").write_text(REGISTERED)
    make_run(project, PythonEnvironment(CountingEnvironment))
    values = player.player_arguments("play").parse_args(
        [str(project), "--env=gym:a_module:Mine-v0"]
    )
    assert player.Player("play", values).environment.wrappers.max_episode_steps == 7


@pytest.mark.parametrize("module", ["gymnasium.envs.registration", "gymnasium"])
def test_a_module_of_an_installed_package_needs_no_trust(tmp_path, module):
    pytest.importorskip("gymnasium")
    environment = PythonEnvironment(GymBuilder("gym", f"{module}:CartPole-v1"))
    assert environment_of(make_run(tmp_path / "run", environment)) == environment


BUILDER = """
import dataclasses
import enum

from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.testing import CheckingConfig, CountingEnvironment

class Colour(str, enum.Enum):
    RED = "red"

@dataclasses.dataclass(frozen=True)
class Reward:
    scale: float = 1.0

@dataclasses.dataclass(frozen=True)
class Monster:
    name: str
    speed: float = 1.0

@dataclasses.dataclass(frozen=True)
class Builder:
    level: str = "easy"
    colour: Colour = Colour.RED
    sizes: tuple[int, ...] = (1, 2)
    colours: tuple[Colour, ...] = (Colour.RED,)
    rewards: tuple[Reward, ...] = (Reward(),)
    functions: tuple = (abs, (min, max))
    monsters: tuple[Monster, ...] = (Monster("orc"), Monster("bat", 2.0))
    made: str = dataclasses.field(default="", init=False)

    def __call__(self, seed):
        return CountingEnvironment(seed)

experiment = Experiment(PythonEnvironment(Builder()), CheckingConfig())
"""


def test_a_builder_has_the_settings_that_the_run_was_given(tmp_path):
    file = tmp_path / "words.py"
    file.write_text(BUILDER)
    environment = experiment_of(Run(tmp_path), file=str(file)).environment
    orc, bat = environment.builder.monsters
    monsters = (orc, dataclasses.replace(bat, speed=3.0))
    builder = dataclasses.replace(environment.builder, level="hard", sizes=(3,), monsters=monsters)
    run = make_run(tmp_path / "run", dataclasses.replace(environment, builder=builder))
    again = environment_of(run, file=str(file))
    assert again.builder == builder and again.builder.colour is builder.colour


def test_an_experiment_of_a_script_is_in_the_snapshot(tmp_path):
    class Mine(CountingEnvironment):
        pass

    environment = PythonEnvironment(Mine)
    experiment = Experiment(environment, CheckingConfig())
    run = make_run(tmp_path / "run", dataclasses.replace(environment, return_threshold=3.0))
    with pytest.raises(ConfigError, match=r"code of its own \(.*Mine\): give an environment"):
        environment_of(run)
    write_snapshot(run.path, experiment, None, [])
    with pytest.raises(
        ConfigError, match=r"which is in .*/code/1/experiment.pkl, load the run with load_run"
    ):
        environment_of(run)
    found = environment_of(run, trust=True)
    assert found.builder.__name__ == "Mine"
    assert found.return_threshold == 3.0


def test_an_experiment_with_bytecode_of_another_python_is_not_unpickled(tmp_path):
    class Mine(CountingEnvironment):
        def reset(self):
            return super().reset()

    environment = PythonEnvironment(Mine)
    run = make_run(tmp_path / "run", environment)
    about = write_snapshot(run.path, Experiment(environment, CheckingConfig()), None, []) / ABOUT
    known = json.loads(about.read_text())
    known["packages"]["python"] = "3.99.1"
    about.write_text(json.dumps(known))
    with pytest.raises(ConfigError, match=r"experiment.pkl has code that only Python 3.99.1 can"):
        environment_of(run, trust=True)


@dataclasses.dataclass(frozen=True)
class Placed:
    map: str


@pytest.mark.parametrize(("was", "now"), [(False, True), (True, True), (False, False)])
def test_a_path_that_is_not_here_stays_the_experiments(tmp_path, capsys, was, now):
    """As when a project was moved; a path that neither has is the run's, which is named then."""
    paths = tmp_path / "was", tmp_path / "now"
    for path, exists in zip(paths, (was, now), strict=True):
        if exists:
            path.touch()
    classes = {"environment.builder": Placed.__qualname__}
    made = with_settings(
        "environment.builder", Placed(str(paths[1])), {"map": str(paths[0])}, classes
    )
    moved = now and not was
    assert made == Placed(str(paths[moved]))
    said = f"distrl: environment.builder.map: there is no {paths[0]}, as in the run; taking "
    assert capsys.readouterr().out.startswith(said) == moved
