"""Images of any size and layout, alone and among vectors."""

import haiku as hk
import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.dqn import DQNConfig
from distrl.agents.modules.convolution import SmallConv2D
from distrl.agents.modules.images import channel_axis, to_nhwc
from distrl.agents.networks import NetworkConfig, make_network
from distrl.random_keys import root
from distrl.specs import EnvironmentSpec

DISCRETE = dm_specs.DiscreteArray(3, np.int32)


def shapes(config, observation):
    network = make_network(config, EnvironmentSpec(observation, DISCRETE))
    params = jax.eval_shape(network.init, root(0))
    return {f"{m}/{n}": w.shape for m, n, w in hk.data_structures.traverse(params)}


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 84, 84), 0),
        ((84, 84, 3), 2),
        ((84, 84, 12), 2),
        ((8, 8, 111), 2),
        ((111, 8, 8), 0),
        ((210, 160, 3), 2),
        ((3, 210, 160), 0),
        ((6, 7, 2), 2),
        ((7, 7, 7), 0),
        ((84, 84), None),
    ],
)
def test_the_rule_of_the_channels(shape, axis):
    assert channel_axis(shape) == axis
    if axis is not None:
        assert channel_axis(shape, "chw") == 0
        assert channel_axis(shape, "hwc") == 2


@pytest.mark.parametrize(
    ("spec", "values", "want"),
    [
        (dm_specs.Array((2, 2), np.uint8), [[0, 51], [102, 255]], [[0, 0.2], [0.4, 1]]),
        (
            dm_specs.BoundedArray((1, 1, 3), np.uint8, 0, [10, 5, 3]),
            [[[10, 1, 0]]],
            [[[1, 0.2, 0]]],
        ),
        (dm_specs.BoundedArray((1, 1, 2), np.int8, 0, 1), [[[0, 1]]], [[[0, 1]]]),
        (dm_specs.Array((1, 1, 2), np.bool_), [[[False, True]]], [[[0, 1]]]),
        (dm_specs.Array((1, 1, 2), np.float32), [[[-3.5, 7]]], [[[-3.5, 7]]]),
    ],
)
def test_what_a_cnn_sees(spec, values, want):
    out = np.asarray(to_nhwc(spec, np.asarray([values], spec.dtype), "hwc", True))
    assert out.dtype == np.float32
    want = np.asarray([want], np.float32)
    np.testing.assert_allclose(out, want if want.ndim == 4 else want[..., None], rtol=1e-6)


def test_layouts_give_the_same_features():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2, 6, 5, 3), np.uint8)
    values = []
    for layout in ("hwc", "chw"):
        image = frames if layout == "hwc" else np.moveaxis(frames, 3, 1)
        env_spec = EnvironmentSpec(dm_specs.Array(image.shape[1:], np.uint8), DISCRETE)
        network = make_network(NetworkConfig(image_layout=layout), env_spec)
        step = specs.zeros(specs.timestep_struct(env_spec), 2)._replace(observation=image)
        values.append(network.step(network.init(root(0)), step, ())[1])
    np.testing.assert_array_equal(*values)


def test_small_images_have_a_cnn_of_their_size():
    got = shapes(NetworkConfig(), dm_specs.Array((7, 7, 3), np.uint8))
    weights = [shape for shape in got.values() if len(shape) > 1]
    assert weights[:4] == [(3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64), (2 * 2 * 64, 128)]


@pytest.mark.parametrize(("shape", "stride"), [((7, 5, 3), 1), ((7, 4, 2), 2), ((1, 2, 3), 2)])
def test_small_convolutions_are_haikus(shape, stride):
    def both(x):
        w_init = hk.initializers.RandomNormal()
        ours = SmallConv2D(4, 3, stride, w_init=w_init, name="ours")(x)
        return ours, hk.Conv2D(4, 3, stride, w_init=w_init, name="haikus")(x)

    transformed = hk.without_apply_rng(hk.transform(both))
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    params = transformed.init(root(0), x)
    params = {name: {**params["ours"], "b": np.ones(4, np.float32)} for name in params}
    np.testing.assert_allclose(*transformed.apply(params, x), rtol=1e-4, atol=1e-5)


def test_a_nest_of_images_and_vectors():
    observation = {
        "camera": dm_specs.Array((84, 84, 3), np.uint8),
        "hand": {"map": dm_specs.Array((9, 9), np.uint8)},
        "place": dm_specs.DiscreteArray(5, np.int32),
        "speed": dm_specs.Array((4,), np.float32),
        "table": dm_specs.Array((2, 3), np.float32),
    }
    config = NetworkConfig(hidden_sizes=(64, 32))
    got = shapes(config, observation)
    assert got["torso/~/linear_0/w"] == (512 + 128 + 5 + 4 + 6, 64)
    assert got["policy_head/w"] == (32, 3)
    assert {name.split("/")[0] for name in got} == {
        "torso", "torso_camera", "torso_hand_map", "policy_head", "value_head",
    }  # fmt: skip
    env_spec = EnvironmentSpec(observation, DISCRETE)
    network = make_network(config, env_spec)
    timestep = specs.zeros(specs.timestep_struct(env_spec), 5, 2)
    params = jax.eval_shape(network.init, root(0))
    assert jax.eval_shape(network.unroll, params, timestep, ())[1].shape == (5, 2)


def test_tables_of_large_frames_take_no_more_memory_than_those_of_ataris():
    def size(*shape):
        env_spec = EnvironmentSpec(dm_specs.Array(shape, np.uint8), DISCRETE)
        return DQNConfig().defaults(env_spec).replay.max_size

    assert size(1, 84, 84) == 100_000
    frames = 2 + 3  # of an unroll, and those before it
    assert 3.4e9 < size(210, 160, 3) * frames * 210 * 160 * 3 < 3.6e9
