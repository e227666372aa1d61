"""Networks: what they take and refuse, and the recurrent unroll with its resets."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.impala import IMPALAConfig
from distrl.agents.modules import distributions
from distrl.agents.modules.images import to_nhwc
from distrl.agents.modules.recurrence import reset_unroll
from distrl.agents.networks import NetworkConfig, make_network, make_q_network
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, TimeStep

FIRST, LAST = int(StepType.FIRST), int(StepType.LAST)
KEY = np.array([0, 1], np.uint32)
DISCRETE = dm_specs.DiscreteArray(3, np.int32)
VECTOR = dm_specs.Array((4,), np.float32)


def pixels(channels=4, size=84):
    return dm_specs.Array((channels, size, size), np.uint8)


def shapes(params):
    return {f"{m}/{n}": w.shape for m, n, w in hk.data_structures.traverse(params)}


@pytest.mark.parametrize(
    ("torso", "features"),
    [("auto", 512), ("nature_cnn", 512), ("shallow_cnn", 256), ("impala_resnet", 256)],
)
def test_torsos_for_pixels(torso, features):
    env_spec = EnvironmentSpec(pixels(), DISCRETE)
    network = make_network(NetworkConfig(torso=torso), env_spec)
    params = jax.eval_shape(network.init, KEY)
    assert shapes(params)["policy_head/w"] == (features, 3)
    timestep = specs.zeros(specs.timestep_struct(env_spec), 5, 2)
    policy, value, state = jax.eval_shape(network.unroll, params, timestep, ())
    assert (policy.shape, value.shape, state) == ((5, 2, 3), (5, 2), ())


def test_the_nature_cnn_has_the_layers_of_the_paper():
    network = make_network(NetworkConfig(), EnvironmentSpec(pixels(), DISCRETE))
    weights = [s for s in shapes(jax.eval_shape(network.init, KEY)).values() if len(s) > 1]
    assert weights[:4] == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (7 * 7 * 64, 512)]


def test_the_shallow_cnn_has_the_layers_of_the_paper():
    config = NetworkConfig(torso="shallow_cnn")
    network = make_network(config, EnvironmentSpec(pixels(), DISCRETE))
    weights = [s for s in shapes(jax.eval_shape(network.init, KEY)).values() if len(s) > 1]
    assert weights[:3] == [(8, 8, 4, 16), (4, 4, 16, 32), (9 * 9 * 32, 256)]


def test_the_impala_resnet_has_fifteen_convolutions():
    config = NetworkConfig(torso="impala_resnet")
    network = make_network(config, EnvironmentSpec(pixels(), DISCRETE))
    weights = list(shapes(jax.eval_shape(network.init, KEY)).values())
    convolutions = [s for s in weights if len(s) == 4]
    assert len(convolutions) == 3 * (1 + 2 * 2)
    assert convolutions[0] == (3, 3, 4, 16)
    assert (11 * 11 * 32, 256) in weights


@pytest.mark.parametrize("torso", ["nature_cnn", "impala_resnet", "small_cnn"])
@pytest.mark.parametrize("nested", [False, True])
def test_cnns_compute_in_bfloat16_with_parameters_and_results_in_float32(torso, nested):
    frames = pixels(size=36)
    observation = {"camera": frames, "speed": VECTOR} if nested else frames
    env_spec = EnvironmentSpec(observation, DISCRETE)
    exact, half = (
        make_network(NetworkConfig(torso=torso, cnn_dtype=dtype), env_spec)
        for dtype in ("float32", "bfloat16")
    )
    params = exact.init(KEY)
    jax.tree.map(np.testing.assert_array_equal, params, half.init(KEY))
    timestep = specs.zeros(specs.timestep_struct(env_spec), 5)
    rng = np.random.default_rng(0)
    timestep = timestep._replace(
        observation=jax.tree.map(
            lambda x: rng.integers(0, 255, x.shape).astype(x.dtype), timestep.observation
        )
    )

    def value(network, params):
        return jnp.sum(network.step(params, timestep, ())[1])

    assert "bf16[5," in str(jax.make_jaxpr(lambda p: value(half, p))(params))
    assert "bf16[" not in str(jax.make_jaxpr(lambda p: value(exact, p))(params))
    (exact_value, exact_grads), (half_value, half_grads) = (
        jax.jit(jax.value_and_grad(lambda p, n=network: value(n, p)))(params)
        for network in (exact, half)
    )
    assert half_value.dtype == jnp.float32 and half_value != exact_value
    np.testing.assert_allclose(half_value, exact_value, rtol=0.05, atol=0.05)
    for one, other in zip(*map(jax.tree.leaves, (exact_grads, half_grads)), strict=True):
        assert other.dtype == jnp.float32
        # Of five rows; a relu's gradient is another where its input is near 0.
        assert np.linalg.norm(one - other) <= 0.3 * np.linalg.norm(one)


@pytest.mark.parametrize(
    ("observation", "torso"), [(VECTOR, "auto"), (pixels(size=7), "mlp"), ({"a": VECTOR}, "auto")]
)
def test_a_dtype_of_cnns_is_refused_where_there_is_none(observation, torso):
    config = NetworkConfig(torso=torso, cnn_dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"network.cnn_dtype=bfloat16: there is no CNN for"):
        make_network(config, EnvironmentSpec(observation, DISCRETE))


def test_a_dtype_of_cnns_is_refused_with_a_torso_of_ones_own():
    with pytest.raises(ConfigError, match=r"network.cnn_dtype=bfloat16: a torso of your own"):
        NetworkConfig(torso=lambda x: x, cnn_dtype="bfloat16")


def test_pixels_are_scaled_and_their_channels_moved_last():
    frames = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    out = to_nhwc(dm_specs.Array((3, 4, 5), np.uint8), frames, "auto", True)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, np.moveaxis(frames, 1, 3) / 255, rtol=1e-6)


def test_a_nest_of_vectors_is_concatenated_and_discrete_leaves_are_one_hot():
    observation = {
        "angle": dm_specs.Array((), np.float32),
        "place": dm_specs.DiscreteArray(5, np.int32),
        "speed": VECTOR,
    }
    env_spec = EnvironmentSpec(observation, DISCRETE)
    network = make_network(NetworkConfig(), env_spec)
    params = network.init(KEY)
    assert shapes(params)["torso/~/linear_0/w"] == (1 + 5 + 4, 64)
    timestep = specs.zeros(specs.timestep_struct(env_spec), 2)
    policy, value, _ = network.step(params, timestep, ())
    assert (policy.shape, value.shape) == ((2, 3), (2,))


@pytest.mark.parametrize(
    ("config", "observation"),
    [
        ({}, {}),
        ({}, dm_specs.Array((2, 3, 8, 8), np.float32)),
        ({"torso": "mlp"}, {"image": pixels(), "speed": VECTOR}),
        ({"torso": "mlp"}, pixels()),
        ({"torso": "nature_cnn"}, VECTOR),
        ({"torso": "nature_cnn"}, pixels(size=20)),
        ({"torso": "impala_resnet", "image_layout": "chw"}, dm_specs.Array((64, 64, 3), np.uint8)),
    ],
)
def test_observations_that_do_not_fit_are_refused_in_one_line(config, observation):
    with pytest.raises(ConfigError, match=r"network.torso: .* takes .* observation") as error:
        make_network(NetworkConfig(**config), EnvironmentSpec(observation, DISCRETE))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        {"torso": "resnet"},
        {"activation": "gelu"},
        {"core": "gru"},
        {"core_size": 0},
        {"core_size": 64.0},
        {"hidden_sizes": (64, -1)},
        {"hidden_sizes": 64},
        {"image_layout": "nhwc"},
        {"cnn_dtype": "float16"},
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(setting):
    (field,) = setting
    with pytest.raises(ConfigError, match=f"network.{field}: expected .* got") as error:
        NetworkConfig(**setting)
    assert "\n" not in str(error.value)


def test_a_core_that_counts_its_steps_since_the_reset():
    """Over every offset of a stream with episodes of 1 to 5 steps, and one without an end."""
    lengths = [3, 1, 5, 2, 1, 1, 4, 9]
    is_first = np.concatenate([np.arange(n) == 0 for n in lengths])
    count = np.concatenate([np.arange(n) for n in lengths])  # before the step, since its reset

    def core(x, state):
        return state, state + 1

    length = 6
    offsets = range(1, len(count) - length)
    first = np.stack([is_first[o : o + length] for o in offsets], axis=1)
    want = np.stack([count[o : o + length] for o in offsets], axis=1)
    before = np.array([count[o - 1] + 1 for o in offsets])
    zeros = np.zeros_like(before)
    inputs = np.zeros(first.shape)
    unroll = jax.jit(lambda state: reset_unroll(core, inputs, first, state, zeros))
    outputs, after = unroll(before)
    np.testing.assert_array_equal(outputs, want)
    np.testing.assert_array_equal(after, want[-1] + 1)
    outputs, _ = unroll(before + 1)  # a state one step off is seen in every window
    wrong = np.any(np.asarray(outputs) != want, axis=0)
    np.testing.assert_array_equal(wrong, ~first[0])


LENGTH, STREAMS, WINDOW = 24, 3, 7


@pytest.fixture(scope="module")
def played():
    """A recurrent agent steps by hand through episodes, each stream at its own pace."""
    env_spec = EnvironmentSpec(VECTOR, DISCRETE)
    agent = IMPALAConfig(network=NetworkConfig(core="lstm", core_size=8)).make(env_spec)
    rng = np.random.default_rng(0)
    params = jax.tree.map(  # no weight is small: what is lost is seen
        lambda w: rng.normal(size=w.shape).astype(np.float32) / 2, agent.initial_params(KEY)
    )
    types = np.ones((LENGTH, STREAMS), np.int8)
    for b, lengths in enumerate(([1, 2, 3, 4, 5], [6, 2, 2, 5], [2, 11, 2])):
        start = b  # the first steps belong to an episode that began before
        for n in lengths:
            if start + n < LENGTH:
                types[start, b], types[start + n, b] = FIRST, LAST
            start += n + 1
    assert all((types == t).any(axis=0).all() for t in (FIRST, LAST))
    reward = np.where(types == FIRST, 0, rng.normal(size=types.shape)).astype(np.float32)
    action = rng.integers(3, size=types.shape).astype(np.int32)
    timestep = TimeStep(
        step_type=types,
        reward=reward,
        discount=np.ones_like(reward),
        observation=rng.normal(size=(*types.shape, 4)).astype(np.float32),
        prev_action=np.where(types == FIRST, 0, action),
    )
    states, policies, values = [], [], []
    state, initial = agent.initial_state(STREAMS), agent.initial_state(STREAMS)
    actor_step, step = jax.jit(agent.actor_step), jax.jit(agent.network.step)
    for t in range(LENGTH):
        now = jax.tree.map(lambda x: x[t], timestep)  # noqa: B023
        first = (now.step_type == FIRST)[:, None]
        states.append(state)
        given = jax.tree.map(lambda i, s: np.where(first, i, s), initial, state)  # noqa: B023
        policy, value, after = step(params, now, given)
        _, state = actor_step(KEY, params, now, given)
        jax.tree.map(np.testing.assert_array_equal, state, after)
        policies.append(policy)
        values.append(value)
    unroll = jax.jit(agent.network.unroll)
    return unroll, params, timestep, states, np.stack(policies), np.stack(values)


@pytest.mark.parametrize("offset", range(LENGTH - WINDOW))
def test_the_unroll_equals_steps_by_hand_at_every_offset(played, offset):
    unroll, params, timestep, states, policies, values = played
    window = jax.tree.map(lambda x: x[offset : offset + WINDOW], timestep)
    policy, value, state = unroll(params, window, states[offset])
    np.testing.assert_allclose(policy, policies[offset : offset + WINDOW], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, values[offset : offset + WINDOW], rtol=1e-4, atol=1e-5)
    # `states` are from before the reset: after the last step, so is the unroll's.
    for got, want in zip(state, states[offset + WINDOW], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mutation", ["state shifted", "no reset", "wrong streams"])
def test_the_comparison_notices_a_mistake(played, mutation):
    unroll, params, timestep, states, _, values = played
    worst = 0.0
    for offset in range(1, LENGTH - WINDOW):
        window = jax.tree.map(lambda x: x[offset : offset + WINDOW], timestep)  # noqa: B023
        state = states[offset]
        if mutation == "state shifted":
            state = states[offset - 1]
        elif mutation == "no reset":
            window = window._replace(step_type=np.ones_like(window.step_type))
        else:
            state = jax.tree.map(lambda s: np.roll(s, 1, axis=0), state)
        _, value, _ = unroll(params, window, state)
        worst = max(worst, float(np.abs(value - values[offset : offset + WINDOW]).max()))
    assert worst > 0.05


def test_the_core_sees_previous_action_and_reward_only_where_asked():
    env_spec = EnvironmentSpec(VECTOR, DISCRETE)
    timestep = specs.zeros(specs.timestep_struct(env_spec), 1)
    changed = timestep._replace(
        prev_action=np.array([1], np.int32), reward=np.array([0.5], np.float32)
    )
    for asked in (True, False):
        config = NetworkConfig(core="lstm", core_inputs_prev_action_reward=asked)
        network = make_network(config, env_spec)
        params, state = network.init(KEY), network.initial_state(1)
        step = jax.jit(network.step)
        before, after = (step(params, t, state)[1] for t in (timestep, changed))
        assert (before != after).all() == asked


def relu(x):
    return np.maximum(x, 0)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_dueling_network_has_two_streams(core):
    """By hand: each stream has a hidden layer of its own, the advantages' mean is taken off."""
    env_spec = EnvironmentSpec(VECTOR, DISCRETE)
    config = NetworkConfig(hidden_sizes=(8, 6), activation="relu", core=core, core_size=5)
    actions = distributions.Categorical(3, np.dtype(np.int32))
    streams, heads, plain = (
        make_q_network(config, env_spec, actions, kind) for kind in ("streams", "heads", False)
    )
    params = {
        name: {k: np.asarray(w) for k, w in layer.items()}
        for name, layer in streams.init(KEY).items()
    }
    hidden = {name: params[f"{name}_stream"] for name in ("advantage", "value")}
    timestep = specs.zeros(specs.timestep_struct(env_spec), 7)
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    timestep = timestep._replace(observation=x)
    state = streams.initial_state(7)
    got, after = streams.step(params, timestep, state)
    if core == "none":
        assert "torso/~/linear_1" not in params  # the streams are in its place
        features = relu(x @ params["torso/~/linear_0"]["w"] + params["torso/~/linear_0"]["b"])
    else:
        features = np.asarray(after.hidden)
    size = 6 if core == "none" else 5
    assert {layer["w"].shape for layer in hidden.values()} == {(features.shape[1], size)}
    advantage, value = (
        relu(features @ hidden[name]["w"] + hidden[name]["b"]) @ params[head]["w"]
        + params[head]["b"]
        for name, head in (("advantage", "q_head"), ("value", "value_head"))
    )
    want = value + advantage - advantage.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    # The networks of before, and without dueling: the torso's layers, and heads on them.
    for network in (heads, plain):
        names = set(network.init(KEY))
        assert "torso/~/linear_1" in names
        assert not any("stream" in name for name in names)


@pytest.mark.parametrize(
    ("torso", "features"), [("nature_cnn", 512), ("shallow_cnn", 256), ("impala_resnet", 256)]
)
def test_the_streams_of_pixels_take_the_place_of_the_last_layer(torso, features):
    env_spec = EnvironmentSpec(pixels(), DISCRETE)
    actions = distributions.Categorical(3, np.dtype(np.int32))
    of = {
        kind: shapes(
            jax.eval_shape(
                make_q_network(NetworkConfig(torso=torso), env_spec, actions, kind).init, KEY
            )
        )
        for kind in ("streams", "heads")
    }
    streams, heads = of["streams"], of["heads"]
    assert streams["advantage_stream/w"] == streams["value_stream/w"]
    assert streams["value_stream/w"][1] == features
    assert streams["value_stream/w"] in heads.values()
    assert len(streams) == len(heads) + 2
    for head, size in (("q_head/w", 3), ("value_head/w", 1)):
        assert streams[head] == heads[head] == (features, size)
