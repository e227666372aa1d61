"""Policies' log-probabilities, entropies and samples against SciPy's."""

import jax
import numpy as np
import pytest
import scipy.stats
from dm_env import specs as dm_specs

from distrl.agents.modules import distributions
from distrl.agents.modules.normals import NormalParams, SquashedNormal
from distrl.errors import ConfigError

KEY = np.array([3, 4], np.uint32)


@pytest.fixture
def normal():
    low, high = np.array([[-1.0, 0.0, -3.0]]), np.array([[1.0, 10.0, -2.0]])
    spec = dm_specs.BoundedArray((1, 3), np.float32, low, high)
    rng = np.random.default_rng(0)
    mean, log_std = (rng.normal(size=(4, 5, 3)).astype(np.float32) / 2 for _ in range(2))
    centre, half = (low + high) / 2, (high - low) / 2
    scipy_normal = scipy.stats.norm(centre + half * mean, half * np.exp(log_std))
    return distributions.for_action(spec), NormalParams(mean, log_std), scipy_normal


def test_normal_log_prob_and_entropy_are_in_the_actions_units(normal):
    distribution, params, scipy_normal = normal
    action = scipy_normal.rvs(random_state=1).reshape(4, 5, 1, 3).astype(np.float32)
    want = scipy_normal.logpdf(action.reshape(4, 5, 3)).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(params, action), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        distribution.entropy(params), scipy_normal.entropy().sum(-1), rtol=1e-5
    )


def test_normal_samples_come_with_their_log_prob_and_are_not_clipped(normal):
    distribution, params, _ = normal
    action, log_prob = jax.jit(distribution.sample_with_log_prob)(KEY, params)
    assert action.shape == (4, 5, 1, 3)
    assert action.dtype == np.float32
    again = distribution.log_prob(params, action)
    np.testing.assert_allclose(log_prob, again, rtol=1e-3, atol=1e-3)
    assert (np.asarray(action)[..., 0] > 1).any()


def test_normal_samples_have_the_right_mean_and_deviation():
    distribution = distributions.for_action(dm_specs.BoundedArray((), np.float32, 0.0, 4.0))
    n = 20_000
    params = NormalParams(np.full((n, 1), 0.5, np.float32), np.full((n, 1), -1.0, np.float32))
    action, _ = distribution.sample_with_log_prob(KEY, params)
    assert action.shape == (n,)
    np.testing.assert_allclose(np.mean(action), 3.0, atol=0.03)
    np.testing.assert_allclose(np.std(action), 2 * np.exp(-1.0), atol=0.03)
    np.testing.assert_allclose(distribution.mode(params), 3.0)


def test_categorical():
    distribution = distributions.for_action(dm_specs.DiscreteArray(3, np.int32))
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5, 3)).astype(np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    action = rng.integers(3, size=(4, 5)).astype(np.int32)
    want = np.log(np.take_along_axis(probs, action[..., None], -1))[..., 0]
    np.testing.assert_allclose(distribution.log_prob(logits, action), want, rtol=1e-5)
    want = scipy.stats.entropy(probs, axis=-1)
    np.testing.assert_allclose(distribution.entropy(logits), want, rtol=1e-5)
    np.testing.assert_array_equal(distribution.mode(logits), probs.argmax(-1))
    many = np.broadcast_to(logits[0, 0], (20_000, 3))
    action, log_prob = distribution.sample_with_log_prob(KEY, many)
    assert action.dtype == np.int32
    np.testing.assert_allclose(np.bincount(action) / len(action), probs[0, 0], atol=0.015)
    np.testing.assert_allclose(log_prob, distribution.log_prob(many, action), rtol=1e-6)


CHOICES = dm_specs.BoundedArray((2, 2), np.int8, np.array([[-1, 0], [0, 5]]), [[1, 1], [3, 5]])
"""Of 3, 2, 4 and 1 values."""


def test_several_choices_are_as_many_categoricals():
    distribution = distributions.for_action(CHOICES)
    assert distribution.params_shape == (10,)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5, 10)).astype(np.float32)
    parts = np.split(logits, [3, 5, 9], axis=-1)
    ones = [distributions.Categorical(n) for n in (3, 2, 4, 1)]
    index = [rng.integers(n, size=(4, 5)) for n in (3, 2, 4, 1)]
    first = np.array([[-1, 0], [0, 5]])
    action = (np.stack(index, -1).reshape(4, 5, 2, 2) + first).astype(np.int8)
    want = sum(one.log_prob(*args) for one, *args in zip(ones, parts, index, strict=True))
    np.testing.assert_allclose(distribution.log_prob(logits, action), want, rtol=1e-5)
    want = sum(one.entropy(part) for one, part in zip(ones, parts, strict=True))
    np.testing.assert_allclose(distribution.entropy(logits), want, rtol=1e-5)
    want = np.stack([part.argmax(-1) for part in parts], -1).reshape(4, 5, 2, 2) + first
    np.testing.assert_array_equal(distribution.mode(logits), want)
    want = np.concatenate([one.encode(i) for one, i in zip(ones, index, strict=True)], -1)
    np.testing.assert_array_equal(distribution.encode(action), want)
    (named,) = distribution.named_parameters(logits).values()
    want = np.concatenate([jax.nn.log_softmax(part) for part in parts], -1)
    np.testing.assert_allclose(named, want, rtol=1e-5)
    gradient = jax.grad(lambda x: distribution.log_prob(x, action).sum())(logits)
    assert np.isfinite(gradient).all()
    many = np.broadcast_to(logits[0, 0], (20_000, 10))
    action, log_prob = jax.jit(distribution.sample_with_log_prob)(KEY, many)
    assert (action.shape, action.dtype) == ((20_000, 2, 2), np.int8)
    np.testing.assert_allclose(log_prob, distribution.log_prob(many, action), rtol=1e-5)
    counted = np.asarray(action, int).reshape(-1, 4) - first.reshape(-1)
    for i, part in enumerate(parts):
        share = np.bincount(counted[:, i], minlength=part.shape[-1]) / 20_000
        np.testing.assert_allclose(share, jax.nn.softmax(part[0, 0]), atol=0.015)
    assert abs(np.corrcoef(counted[:, 0], counted[:, 2])[0, 1]) < 0.03


def test_a_nest_is_the_product_of_its_parts():
    spec = {
        "aim": dm_specs.BoundedArray((2,), np.float32, -2, 2),
        "keys": (CHOICES, dm_specs.DiscreteArray(3, np.int32)),
    }
    distribution = distributions.for_action(spec)
    assert distribution.names == ("aim", "keys.0", "keys.1")
    rng = np.random.default_rng(0)
    draw = lambda n: rng.normal(size=(6, n)).astype(np.float32)  # noqa: E731
    params = (NormalParams(draw(2), draw(2)), draw(10), draw(3))
    assert jax.tree.map(lambda x: x.shape[1:], params) == distribution.params_shape
    action, log_prob = jax.jit(distribution.sample_with_log_prob)(KEY, params)
    assert action["aim"].shape == (6, 2)
    assert action["keys"][0].dtype == np.int8
    ones = [distributions.for_action(s) for s in (spec["aim"], *spec["keys"])]
    flat = [action["aim"], *action["keys"]]
    each = list(zip(ones, params, flat, strict=True))
    want = sum(one.log_prob(own, x) for one, own, x in each)
    np.testing.assert_allclose(distribution.log_prob(params, action), want, rtol=1e-5)
    np.testing.assert_allclose(log_prob, want, rtol=1e-3, atol=1e-3)
    want = sum(one.entropy(own) for one, own, _ in each)
    np.testing.assert_allclose(distribution.entropy(params), want, rtol=1e-5)
    mode = distribution.mode(params)
    np.testing.assert_array_equal(mode["keys"][1], params[2].argmax(-1))
    assert distribution.encode(action).shape == (6, 15)
    names = {"aim.mean", "aim.std", "keys.0.logits", "keys.1.logits"}
    assert set(distribution.named_parameters(params)) == names


def test_without_bounds_the_unit_is_one():
    distribution = distributions.for_action(dm_specs.Array((2,), np.float32))
    params = NormalParams(np.array([[3.0, -7.0]], "f4"), np.zeros((1, 2), "f4"))
    np.testing.assert_allclose(distribution.mode(params), [[3, -7]])
    want = scipy.stats.norm().logpdf([1, -2]).sum()
    action = np.array([[4.0, -9.0]], "f4")
    np.testing.assert_allclose(distribution.log_prob(params, action), [want], rtol=1e-5)


def test_each_element_has_the_bounds_that_it_has():
    """Both: half the range is 1 and 5; one: it is a unit from the centre; none: the centre is 0."""
    low, high = [-1, 0, -np.inf, 0, -np.inf, 1e6], [1, 10, np.inf, np.inf, 3, np.inf]
    distribution = distributions.for_action(dm_specs.BoundedArray((6,), np.float32, low, high))
    zero, one = (NormalParams(np.full(6, x, "f4"), np.full(6, 0.0, "f4")) for x in (0.0, 1.0))
    np.testing.assert_array_equal(distribution.mode(zero), np.array([0, 5, 0, 1, 2, 1e6 + 1], "f4"))
    np.testing.assert_array_equal(distribution.mode(one), np.array([1, 10, 1, 2, 3, 1e6 + 2], "f4"))
    actions = np.array([0.5, 2.5, -3.0, 0.25, 2.5, 1e6], "f4")
    encoded = np.array([0.5, -0.5, -3.0, -0.75, 0.5, -1.0], "f4")
    np.testing.assert_array_equal(distribution.encode(actions), encoded)
    want = scipy.stats.norm().logpdf(encoded).sum() - np.log(5)
    np.testing.assert_allclose(distribution.log_prob(zero, actions), want, rtol=1e-6)
    np.testing.assert_array_equal(
        distribution.named_parameters(zero)["std"], np.array([1, 5, 1, 1, 1, 1], "f4")
    )


@pytest.mark.parametrize(
    "spec",
    [
        dm_specs.BoundedArray((2,), np.float32, [-np.inf, 1.0], [np.inf, 1.0]),
        dm_specs.BoundedArray((2,), np.float32, 1.0, 1.0),
        dm_specs.BoundedArray((2,), np.int32, 0, 2**30),
        dm_specs.Array((2,), np.int32),
        {"a": dm_specs.DiscreteArray(2), "b": dm_specs.Array((2,), np.int32)},
        {"a.b": dm_specs.DiscreteArray(2), "a": {"b": dm_specs.DiscreteArray(2)}},
        {},
    ],
)
def test_actions_that_it_cannot_take_are_refused_in_one_line(spec):
    with pytest.raises(ConfigError, match=r"^action(\.b)?: ") as error:
        distributions.for_action(spec)
    assert "\n" not in str(error.value)


def test_an_action_of_booleans_is_told_what_to_be_instead():
    with pytest.raises(ConfigError, match=r"BoundedArray of integers .*, got .*'bool'"):
        distributions.for_action(dm_specs.BoundedArray((2,), bool, False, True))


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (1.5, -1.0), (-0.5, 0.7)])
def test_squashed_normals_density_is_the_one_of_its_samples(mean, log_std):
    """In the action's units: it integrates to 1, is SciPy's, and says how often samples come."""
    distribution = SquashedNormal(dm_specs.BoundedArray((), np.float32, -1.0, 5.0))
    n = 40_000
    params = NormalParams(np.full((n, 1), mean, "f4"), np.full((n, 1), log_std, "f4"))
    action, log_prob = jax.jit(distribution.sample_with_log_prob)(KEY, params)
    order = np.argsort(action)
    action, density = np.asarray(action, float)[order], np.exp(np.asarray(log_prob, float)[order])
    assert action.shape == (n,)
    assert -1 <= action[0] < action[-1] <= 5
    area = np.sum((density[1:] + density[:-1]) / 2 * np.diff(action))
    np.testing.assert_allclose(area, 1, atol=0.01)
    normal = scipy.stats.norm(mean, np.exp(log_std))
    inside = (np.abs(action - 2) < 2.99).nonzero()[0]
    unit = (action[inside] - 2) / 3
    want = normal.pdf(np.arctanh(unit)) / (1 - unit**2) / 3
    np.testing.assert_allclose(density[inside], want, rtol=2e-3)
    for point in (0.0, 2.0, 3.5):
        share = normal.cdf(np.arctanh((point - 2) / 3))
        assert np.mean(action < point) == pytest.approx(share, abs=0.01)
    np.testing.assert_allclose(distribution.mode(params)[0], 2 + 3 * np.tanh(mean), rtol=1e-5)


def test_squashed_normal_of_several_elements_and_far_out():
    low, high = np.array([[-1.0, 0.0, -3.0]]), np.array([[1.0, 10.0, -2.0]])
    distribution = SquashedNormal(dm_specs.BoundedArray((1, 3), np.float32, low, high))
    rng = np.random.default_rng(0)
    mean, log_std = (rng.normal(size=(4, 5, 3)).astype(np.float32) / 2 for _ in range(2))
    action, log_prob = distribution.sample_with_log_prob(KEY, NormalParams(mean, log_std))
    assert action.shape == (4, 5, 1, 3)
    assert log_prob.shape == (4, 5)
    unit = np.asarray(distribution.encode(action), float)
    want = scipy.stats.norm(mean, np.exp(log_std)).logpdf(np.arctanh(unit))
    want = want - np.log(1 - unit**2) - np.log((high - low) / 2)
    np.testing.assert_allclose(log_prob, want.sum(-1), rtol=1e-3, atol=1e-3)

    def mean_log_prob(mean):
        params = NormalParams(mean, 0 * mean)
        return distribution.sample_with_log_prob(KEY, params)[1].mean()

    far = np.array([[100.0, -100.0, 30.0]], np.float32)  # tanh is 1 there in float32
    assert np.isfinite(mean_log_prob(far))
    gradient = jax.grad(mean_log_prob)(far)
    np.testing.assert_allclose(gradient, 2 * np.sign(far), rtol=1e-4)
