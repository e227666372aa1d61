"""Environments by name: which suite they come from, their limits, refusals."""

import dataclasses
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from distrl import envs, specs
from distrl.envs import NativeEnvironment, PoolConfig, PythonEnvironment, WrapperConfig
from distrl.envs.multi_agent.copies import Copies
from distrl.envs.pool import on_cores
from distrl.envs.pools.envpool_library import envpool_names
from distrl.errors import ConfigError
from distrl.types import StepType


def first_and_last(environment, steps):
    """The first step, and the one after `steps` actions of zero, of one stepper."""
    stepper = environment.make_stepper(3)
    action = np.zeros(environment.spec().action.shape, environment.spec().action.dtype)
    first = stepper.reset()
    for _ in range(steps):
        last = stepper.step(action)
    stepper.close()
    return first, last


def test_envpool_comes_first_and_a_prefix_chooses():
    pytest.importorskip("gymnasium")
    native, python = envs.make("CartPole-v1"), envs.make("gym:CartPole-v1")
    assert isinstance(native, NativeEnvironment) and isinstance(python, PythonEnvironment)
    assert envs.make("envpool:CartPole-v1") == native
    assert native.name == python.name == "CartPole-v1"
    assert native.return_threshold == python.return_threshold == 475.0
    assert native.spec().action == python.spec().action
    assert native.spec().observation.dtype == python.spec().observation.dtype


def test_what_only_gymnasium_has_is_found_there():
    gymnasium = pytest.importorskip("gymnasium")
    name = next(n for n in ("Taxi-v4", "Taxi-v3") if n in gymnasium.registry)
    gymnasium.register("Own-v0", lambda: gymnasium.make(name), max_episode_steps=9)
    try:
        environment = envs.make("Own-v0")
        assert environment.wrappers.max_episode_steps == 9
        assert environment.spec().observation.num_values == 500
    finally:
        del gymnasium.registry["Own-v0"]


def test_box2d_of_gymnasium():
    pytest.importorskip("Box2D")
    _, last = first_and_last(
        envs.make("gym:LunarLander-v3", wrappers=WrapperConfig(max_episode_steps=2)), 2
    )
    assert last.observation.shape == (8,)


def test_settings_reach_the_environment():
    pytest.importorskip("gymnasium")
    wrappers = WrapperConfig(action_repeat=2, frame_stack=3)
    environment = envs.make(
        "gym:CartPole-v1", wrappers=wrappers, pool=PoolConfig(kind="threads"),
        sutton_barto_reward=True,
    )  # fmt: skip
    assert environment.spec().observation.shape == (3, 4)
    assert environment.pool.kind == "threads"
    assert first_and_last(environment, 1)[1].reward == 0.0  # 1 a step without the option
    assert pickle.loads(pickle.dumps(environment)) == environment
    assert hash(environment)
    native = envs.make(
        "CartPole-v1", num_threads=2, wrappers=WrapperConfig(False, max_episode_steps=7)
    )
    assert native == NativeEnvironment("CartPole-v1", 2, 7, clip_actions=False)
    assert envs.make("Pong-v5", stack_num=2).spec().observation.shape == (2, 84, 84)


@pytest.mark.parametrize(
    "name, given, threads", [("CartPole-v1", None, 1), ("Pong-v5", None, 4), ("Pong-v5", 0, 0)]
)
def test_threads_follow_the_cores_unless_they_are_set(name, given, threads):
    environment = envs.make(name, num_threads=given)
    assert environment.num_threads == given
    assert on_cores(environment, 4).num_threads == threads
    assert on_cores(Copies(environment, 2), 4).environment.num_threads == threads


def test_results_do_not_depend_on_threads():
    """Nor does the order of the rows, in a synchronous pool."""
    steps = []
    for threads in (1, 3):
        pool = envs.make("LunarLander-v2", num_threads=threads).make_pool(3, 3, range(3))
        assert pool.one_thread == (threads == 1)
        pool.reset()
        steps.append([pool.step(np.array([0, 1, 2], np.int32)) for _ in range(20)])
        pool.close()
    for one, several in zip(*steps, strict=True):
        for a, b in zip(one[:4], several[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_gymnasiums_time_limit_is_a_setting():
    pytest.importorskip("gymnasium")
    environment = envs.make("gym:Pendulum-v1")
    assert environment.wrappers.max_episode_steps == 200
    longer = dataclasses.replace(environment, wrappers=WrapperConfig(max_episode_steps=203))
    _, last = first_and_last(longer, 202)
    assert last.step_type == StepType.MID
    for limited, steps in ((environment, 200), (longer, 203)):
        _, last = first_and_last(limited, steps)
        assert (last.step_type, last.discount) == (StepType.LAST, 1.0)


@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"])
def test_minigrid_without_its_text(name):
    pytest.importorskip("minigrid")
    spec = envs.make(name).spec()
    assert sorted(spec.observation) == ["direction", "image"]
    assert spec.observation["image"].shape == (7, 7, 3)
    assert spec.observation["image"].dtype == np.uint8
    assert isinstance(envs.make(name, size=6), PythonEnvironment) or name in envpool_names()


@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"])
def test_minigrids_symbols_have_their_true_bounds(name):
    """Declared as bytes from 0 to 255 a network would scale them to next to nothing."""
    constants = pytest.importorskip("minigrid.core.constants")
    largest = [
        max(constants.OBJECT_TO_IDX.values()), max(constants.COLOR_TO_IDX.values()), 3
    ]  # fmt: skip
    environment = envs.make(name)
    observation = environment.spec().observation
    assert specs.num_values(observation["image"]) == [n + 1 for n in largest] * 49
    assert specs.num_values(observation["direction"]) == [4]
    pool = environment.make_pool(2, 2, (0, 1))
    steps = [pool.reset(), *(pool.step(np.array([i % 3, 2], np.int32)) for i in range(20))]
    pool.close()
    images = np.stack([step.observation["image"] for step in steps])
    assert (images <= largest).all() and images.max(axis=(0, 1, 2, 3))[0] >= 8  # a goal is in sight


def test_atari_of_ale():
    pytest.importorskip("ale_py")
    environment = envs.make("ALE/Pong-v5", obs_type="grayscale")
    assert environment == envs.make("ale:ALE/Pong-v5", obs_type="grayscale")
    first, _ = first_and_last(environment, 2)
    assert (first.observation.shape, first.observation.dtype) == ((210, 160), np.uint8)


def test_dm_control():
    pytest.importorskip("dm_control")
    display = os.environ.get("MUJOCO_GL")
    environment = envs.make("cartpole-swingup", wrappers=WrapperConfig(max_episode_steps=3))
    assert os.environ.get("MUJOCO_GL") == display
    first, last = first_and_last(environment, 3)
    assert environment.spec().observation["position"].dtype == np.float32
    assert (last.step_type, last.discount) == (StepType.LAST, 1.0)
    other = environment.make_stepper(4).reset()
    assert not np.array_equal(first.observation["velocity"], other.observation["velocity"])
    flat = envs.make("dm_control:cartpole-swingup", flat_observation=True)
    assert flat.wrappers.max_episode_steps == 1000
    assert flat.spec().observation["observations"].shape == (5,)
    with pytest.raises(ConfigError, match="did you mean cartpole-swingup"):
        envs.make("dm_control:cartpole-swing")


def test_nothing_is_printed_where_there_is_no_display():
    pytest.importorskip("dm_control")
    code = "from distrl import envs; envs.make('dm_control:cartpole-swingup').spec()"
    variables = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("CartPol-v1", {}, r"there is no 'CartPol-v1'; did you mean CartPole-v[01] or"),
        ("envpool:Pon-v5", {}, r"envpool has no 'Pon-v5'; did you mean Pong-v5"),
        ("gym:CartPol-v1", {}, r"gym has no 'CartPol-v1'; did you mean CartPole-v"),
        ("some:Thing-v0", {}, r"no suite 'some'; there is envpool, gym, .*write gym:some:Thing"),
        ("gym:CartPole-v1", {"num_threads": 2}, r"num_threads is EnvPool's"),
        (
            "CartPole-v1",
            {"wrappers": WrapperConfig(frame_stack=2)},
            r"EnvPool's CartPole-v1 takes no wrappers\.frame_stack; write gym:CartPole-v1",
        ),
        (
            "Pong-v5",
            {"wrappers": WrapperConfig(action_repeat=2)},
            r"takes no wrappers\.action_repeat; set its own option frame_skip",
        ),
        ("CartPole-v1", {"pool": PoolConfig("processes")}, r"takes no pool settings; write gym:"),
        ("Pong-v5", {"stack_nm": 2}, r"near matches: .*stack_num"),
        (
            "gym:CartPole-v1",
            {"max_episode_steps": 5},
            r"takes no option max_episode_steps: use environment\.wrappers\.max_episode_steps",
        ),
        ("gym:CartPole-v1", {"disable_env_checker": False}, r"takes no option disable_env_checker"),
        ("Pong-v5", {"seed": 2}, r"environment\.options: seed is set by the experiment's seed"),
        (lambda: None, {}, r"an environment's name, got .*goes into distrl\.envs\.PythonEnviron"),
    ],
)
def test_refusals(name, arguments, message):
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=message) as caught:
        envs.make(name, **arguments)
    assert "\n" not in str(caught.value)


def test_an_option_that_an_environment_does_not_have():
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=r"CartPole-v1 cannot be made: .*'length'"):
        envs.make("gym:CartPole-v1", length=2).spec()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "minigrid" else object()
    )
    envs.suites._import.cache_clear()
    with pytest.raises(ConfigError, match=r"needs the package minigrid: pip install minigrid$"):
        envs.make("minigrid:MiniGrid-Empty-5x5-v0")
