"""Pictures of environments: of the environment that is stepped, at its newest time step."""

import importlib.util
import types

import gymnasium
import numpy as np
import pytest

from distrl import envs
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.envs.pools.envpool_library import envpool_names
from distrl.envs.rendering import pictures
from distrl.envs.rendering.rendered import rendered
from distrl.errors import ConfigError
from distrl.testing import CountingEnvironment

STEPS = 40


class Drawn(CountingEnvironment):
    """Its picture has the number of steps so far in every place."""

    metadata = types.MappingProxyType({"render_fps": 8})

    def render(self):
        return np.full((4, 6, 3), self._count, np.uint8)


class Undrawn(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        return np.zeros((2, 2, 3), np.uint8) if self.render_mode == "rgb_array" else None


@pytest.mark.parametrize(
    "wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 9)]
)
def test_an_environment_without_render_is_told_to_have_one(wrap):
    class Bare(Undrawn):
        render = gymnasium.Env.render

    drawn = rendered(PythonEnvironment(lambda: wrap(Bare()), "bare"))
    pool = drawn.environment.make_pool(1, 1, [0])
    timestep = pool.reset()
    with pytest.raises(ConfigError, match=r"^bare has no pictures: give Bare a method render\(\)"):
        drawn.picture(timestep)
    pool.close()


def test_an_own_render_that_is_not_implemented_is_the_users():
    class Later(Undrawn):
        def render(self):
            raise NotImplementedError("next week")

    drawn = rendered(PythonEnvironment(Later))
    pool = drawn.environment.make_pool(1, 1, [0])
    timestep = pool.reset()
    with pytest.raises(NotImplementedError, match="next week"):
        drawn.picture(timestep)
    pool.close()


def test_the_picture_is_that_of_the_newest_step():
    drawn = rendered(PythonEnvironment(Drawn, wrappers=WrapperConfig(action_repeat=2)))
    pool = drawn.environment.make_pool(1, 1, [3])
    timestep = pool.reset()
    for _ in range(10):
        count = timestep.observation[0, 1]
        picture = drawn.picture(timestep)
        assert picture.shape == (4, 6, 3) and (picture == count).all()
        timestep = pool.step(np.zeros(1, np.int32))
    assert drawn.fps() == 8 / 2
    pool.close()


def test_what_has_no_pictures_is_one_line():
    drawn = rendered(PythonEnvironment(CountingEnvironment))
    timestep = drawn.environment.make_pool(1, 1, [0]).reset()
    with pytest.raises(ConfigError, match=r"give CountingEnvironment a method render\(\) that"):
        drawn.picture(timestep)
    drawn = rendered(PythonEnvironment(lambda: Undrawn()))
    timestep = drawn.environment.make_pool(1, 1, [0]).reset()
    with pytest.raises(ConfigError, match=r"got None; make it with render_mode='rgb_array'"):
        drawn.picture(timestep)
    with pytest.raises(ConfigError, match=r"must return uint8 \[H, W, 3\], got float64\[2, 2\]"):
        pictures.checked(np.zeros((2, 2)), "mine")


def test_a_builder_with_a_render_mode_gets_it():
    drawn = rendered(PythonEnvironment(Undrawn))
    timestep = drawn.environment.make_pool(1, 1, [0]).reset()
    assert drawn.picture(timestep).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("shape", "newest"),
    [((4, 20, 30), (3, 3, 3)), ((20, 30, 3), (0, 1, 2)), ((2, 20, 30, 3), (3, 4, 5)),
     ((6, 20, 30), (3, 4, 5)), ((20, 30, 1), (0, 0, 0))],
)  # fmt: skip
def test_the_newest_picture_of_an_observation(shape, newest):
    channels = [k for k, size in enumerate(shape) if size < 16]
    numbers = np.arange(np.prod([shape[k] for k in channels])).astype(np.uint8)
    view = numbers.reshape([size if k in channels else 1 for k, size in enumerate(shape)])
    picture = pictures.newest_picture({"a": np.zeros(3), "b": np.broadcast_to(view, shape)})
    assert picture.shape == (20, 30, 3)
    assert (picture == np.array(newest)).all()


def test_mujoco_draws_without_a_display_where_it_can(monkeypatch):
    environ = {}
    monkeypatch.setattr(pictures.os, "environ", environ)
    monkeypatch.setattr(pictures.ctypes.util, "find_library", lambda name: name == "OSMesa")
    pictures.choose_renderer()
    assert (environ["MUJOCO_GL"], environ["SDL_VIDEODRIVER"]) == ("osmesa", "dummy")
    monkeypatch.setattr(pictures.ctypes.util, "find_library", lambda name: True)
    pictures.choose_renderer()
    assert environ["MUJOCO_GL"] == "osmesa"  # what is set stays
    environ.clear()
    environ["DISPLAY"] = ":0"
    pictures.choose_renderer()
    assert "MUJOCO_GL" not in environ


def test_a_game_of_envpool_is_played_as_without_pictures():
    pytest.importorskip("envpool")
    environment = envs.make("Pong-v5", stack_num=2)
    drawn = rendered(environment)
    pools = [each.make_pool(1, 1, [5]) for each in (environment, drawn.environment)]
    assert drawn.fps() == 15 and not drawn.note
    steps = [pool.reset() for pool in pools]
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(STEPS):
        for name in ("step_type", "reward", "observation"):
            np.testing.assert_array_equal(*(getattr(step, name) for step in steps))
        seen.append(drawn.picture(steps[1]).copy())
        action = rng.integers(6, size=1, dtype=np.int32)
        steps = [pool.step(action) for pool in pools]
    assert seen[0].shape == (210, 160, 3)
    assert (seen[0] != seen[0][..., :1]).any()  # in colours
    assert (seen[0] != seen[-1]).any()
    for pool in pools:
        pool.close()


@pytest.mark.parametrize(
    ("name", "other"),
    [("CartPole-v1", "gymnasium's CartPole-v1"), ("HalfCheetah-v4", "gymnasium's HalfCheetah-v4"),
     ("Taxi-v3", "gymnasium's Taxi-v4"), ("CheetahRun-v1", "dm_control's cheetah-run")],
)  # fmt: skip
def test_what_envpool_does_not_draw_is_played_elsewhere(name, other):
    for package in ("envpool", "mujoco", "dm_control"):
        pytest.importorskip(package)
    environment = envs.make(name)
    drawn = rendered(environment)
    assert drawn.note == f"EnvPool does not draw: this is {other}, of the same spaces"
    assert drawn.environment.episode_limit == environment.episode_limit
    assert drawn.environment.spec().action.shape == environment.spec().action.shape


@pytest.mark.parametrize(
    ("name", "limit"), [("MiniGrid-Empty-5x5-v0", 100), ("BabyAI-GoToLocal-v0", None)]
)
def test_envpools_minigrid_is_drawn_by_minigrid(monkeypatch, name, limit):
    # Not imported here, which would register its environments with gymnasium.
    if importlib.util.find_spec("minigrid") is None or name not in envpool_names():
        pytest.skip("minigrid is not installed, or EnvPool has no MiniGrid")
    drawn = rendered(envs.make(name))
    assert drawn.note == f"EnvPool does not draw: this is minigrid's {name}, of the same spaces"
    assert drawn.environment.episode_limit == limit
    pool = drawn.environment.make_pool(1, 1, [0])
    assert drawn.picture(pool.reset()).shape[2] == 3
    pool.close()
    monkeypatch.setitem(envs.suites._PACKAGES, "minigrid", (("not_installed",), "minigrid"))
    envs.suites._import.cache_clear()
    with pytest.raises(ConfigError, match="no other suite that is installed has an environment"):
        rendered(envs.make(name))


def test_pictures_of_cartpole():
    pytest.importorskip("pygame")
    drawn = rendered(envs.make("gym:CartPole-v1"))
    pool = drawn.environment.make_pool(1, 1, [0])
    first = drawn.picture(pool.reset())
    for _ in range(5):
        timestep = pool.step(np.ones(1, np.int32))
    assert first.shape == (400, 600, 3) and (first != drawn.picture(timestep)).any()
    assert drawn.fps() == 50
    pool.close()
