"""Observations of integers: which are images, and what the MLP takes of the others."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.defaults import has_pixels
from distrl.agents.dqn import DQNConfig
from distrl.agents.modules.distributions import Categorical
from distrl.agents.modules.images import integer_scale, to_nhwc
from distrl.agents.networks import NetworkConfig, make_network, make_q_network
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.random_keys import root
from distrl.saved.plain_pickle import load_plain
from distrl.saved.plain_settings import decode, encode
from distrl.specs import EnvironmentSpec

DISCRETE = dm_specs.DiscreteArray(3, np.int32)
CONTINUOUS = dm_specs.BoundedArray((1,), np.float32, -1, 1)
RAM = dm_specs.BoundedArray((128,), np.uint8, 0, 255)


def with_observation(observation):
    return EnvironmentSpec(observation, DISCRETE)


def test_only_large_images_count_as_pixels():
    image = dm_specs.BoundedArray((4, 84, 84), np.uint8, 0, 255)
    grey = dm_specs.Array((84, 84), np.uint8)
    assert all(has_pixels(with_observation(x)) for x in (image, grey, {"a": RAM, "b": image}))
    others = RAM, dm_specs.Array((7, 7, 3), np.uint8), dm_specs.Array((3, 8, 8), np.float32)
    assert not any(has_pixels(with_observation(other)) for other in others)
    vector = with_observation(dm_specs.Array((4,), np.float32))
    for config in (DQNConfig, SACConfig):
        assert config.preset(with_observation(RAM)) == config.preset(vector)
    ram, floats = (DQNConfig().defaults(spec) for spec in (with_observation(RAM), vector))
    assert (ram.replay, ram.transforms) == (floats.replay, floats.transforms)


@pytest.mark.parametrize(
    ("spec", "values", "want"),
    [
        (RAM, np.arange(128) * 2, np.arange(128) * 2 / 255),
        (dm_specs.Array((3,), np.uint8), [0, 51, 255], [0, 0.2, 1]),  # the dtype's own bounds
        (dm_specs.BoundedArray((2,), np.int32, [-5, 0], [5, 4]), [0, 1], [0.5, 0.25]),
        (dm_specs.BoundedArray((2,), np.int8, 0, 1), [0, 1], [0, 1]),
        (dm_specs.BoundedArray((2,), np.uint8, 7, 7), [7, 7], [0, 0]),
    ],
)
def test_the_mlp_takes_integers_scaled_by_their_bounds(spec, values, want):
    values = np.asarray(values, spec.dtype)
    network = make_network(NetworkConfig(hidden_sizes=(8,)), with_observation(spec))
    floats = dm_specs.Array(spec.shape, np.float32)
    same = make_network(NetworkConfig(hidden_sizes=(8,)), with_observation(floats))
    params = network.init(root(0))
    jax.tree.map(np.testing.assert_array_equal, params, same.init(root(0)))

    def value_of(network, spec, observation):
        step = specs.zeros(specs.timestep_struct(with_observation(spec)), 1)
        return network.step(params, step._replace(observation=observation[None]), ())[1]

    got = value_of(network, spec, values)
    np.testing.assert_allclose(
        got, value_of(same, floats, np.asarray(want, np.float32)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "spec",
    [
        dm_specs.Array((2,), np.int32),
        dm_specs.BoundedArray((2,), np.int32, -(2**31), 2**31 - 1),
        dm_specs.BoundedArray((2,), np.float32, 0, 255),
        dm_specs.DiscreteArray(3, np.int32),
    ],
)
def test_what_is_left_as_it_is(spec):
    assert integer_scale(spec) is None


GRID = dm_specs.BoundedArray((4, 4, 2), np.uint8, np.array([0, 1]), np.array([3, 3]))
"""4 symbols in the first channel, 3 in the second."""


def test_symbols_of_images_become_one_hot_in_their_channels():
    x = np.random.default_rng(0).integers([0, 1], [4, 4], (5, 4, 4, 2)).astype(np.uint8)
    want = np.concatenate([np.eye(4)[x[..., 0]], np.eye(3)[x[..., 1] - 1]], axis=-1)
    np.testing.assert_array_equal(to_nhwc(GRID, x, "auto", True, True), want)
    first = dm_specs.BoundedArray((2, 4, 4), np.int32, 0, 1)
    x = np.random.default_rng(0).integers(0, 2, (5, 2, 4, 4)).astype(np.int32)
    want = np.concatenate([np.eye(2)[x[:, 0]], np.eye(2)[x[:, 1]]], axis=-1)
    np.testing.assert_array_equal(to_nhwc(first, x, "auto", True, True), want)
    grey = dm_specs.BoundedArray((4, 4), np.uint8, 0, 2)
    x = np.random.default_rng(0).integers(0, 3, (5, 4, 4)).astype(np.uint8)
    np.testing.assert_array_equal(to_nhwc(grey, x, "auto", True, True), np.eye(3)[x])
    frames = dm_specs.BoundedArray((4, 4, 3), np.uint8, 0, 255)  # quantities stay scaled
    x = np.full((5, 4, 4, 3), 51, np.uint8)
    np.testing.assert_allclose(to_nhwc(frames, x, "auto", True, True), x / 255)


def test_symbols_in_a_nest_become_one_hot():
    """Those of a vector too, and the network's parameters have the rows for it."""
    vector = dm_specs.BoundedArray((2,), np.int32, np.array([-1, 0]), np.array([1, 1]))
    many = dm_specs.BoundedArray((3,), np.int32, 0, 1000)
    spec = with_observation({"grid": GRID, "vector": vector, "zmany": many})
    network = make_network(NetworkConfig(hidden_sizes=(8,), one_hot_integers=True), spec)
    params = network.init(root(0))
    assert params["torso_grid/conv2_d"]["w"].shape == (3, 3, 7, 16)
    rows = params["torso/~/linear_0"]["w"]
    assert rows.shape[0] == 128 + (3 + 2) + 3
    step = specs.zeros(specs.timestep_struct(spec), 1)
    step.observation["vector"][:] = [[1, 0]]
    step.observation["grid"][:] = 1
    before = network.step(params, step, ())[1]
    rows = np.array(rows)
    rows[[128 + 0, 128 + 1, 128 + 4]] = 7.0  # of values that are not there
    changed = {**params, "torso/~/linear_0": {**params["torso/~/linear_0"], "w": rows}}
    np.testing.assert_allclose(network.step(changed, step, ())[1], before, rtol=1e-5)


def test_the_mlp_takes_small_images_as_rows():
    config = NetworkConfig(torso="mlp", hidden_sizes=(8,), one_hot_integers=True)
    params = make_network(config, with_observation(GRID)).init(root(0))
    assert params["torso/~/linear_0"]["w"].shape == (4 * 4 * 7, 8)
    values = make_q_network(config, with_observation(GRID), Categorical(3), dueling="streams")
    assert values.init(root(0))["advantage_stream"]["w"].shape == (4 * 4 * 7, 8)
    large = dm_specs.BoundedArray((84, 84, 3), np.uint8, 0, 255)
    with pytest.raises(ConfigError, match=r"the mlp takes .* less than 36x36 pixels.*; use auto"):
        make_network(config, with_observation(large))


@pytest.mark.parametrize("config", [NetworkConfig, SACConfig, TD3Config, DDPGConfig])
def test_settings_saved_before_integers_were_scaled_act_as_they_did(config):
    old = config()
    del old.__dict__["scale_integers"]
    want = dataclasses.replace(config(), scale_integers=False)
    assert pickle.loads(pickle.dumps(old)) == load_plain(pickle.dumps(old)) == want
    assert pickle.loads(pickle.dumps(config())) == load_plain(pickle.dumps(config())) == config()
    data = encode(config())
    assert decode(data) == config()
    del data["fields"]["scale_integers"]
    assert decode(data) == want


def test_without_scaling_bytes_reach_the_layers_raw():
    spec = EnvironmentSpec(RAM, CONTINUOUS)
    agent = SACConfig((8,), scale_integers=False).make(spec)
    scaled = SACConfig((8,)).make(spec)
    params = agent.initial_params(root(0))
    observation = np.full((1, 128), 255, np.uint8)
    raw = agent.normal(params["policy"], observation).mean
    np.testing.assert_allclose(
        raw, 255 * scaled.normal(params["policy"], observation).mean, rtol=1e-4
    )  # relu, and biases of 0
    action = np.zeros((1, 1), np.float32)
    raw, small = (a.critics.apply(params["critics"], observation, action) for a in (agent, scaled))
    np.testing.assert_allclose(raw, 255 * small, rtol=1e-4)
