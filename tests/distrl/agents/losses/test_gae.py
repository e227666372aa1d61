"""Generalised advantages over windows that hold the ends of episodes, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.losses.means import mean_over, normalize
from distrl.agents.losses.returns import gae
from distrl.types import StepType

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
GAMMA = 0.9


@pytest.fixture
def data(windows):
    rng = np.random.default_rng(0)
    step_type, discount = windows(rng, 9, 60)
    reward = np.where(step_type == FIRST, 0, rng.normal(size=step_type.shape)).astype(np.float32)
    value = rng.normal(size=step_type.shape).astype(np.float32)
    return step_type, reward, discount, value


def function(lambda_):
    return lambda kinds, reward, discount, value: gae(
        kinds, reward, GAMMA * discount, value, lambda_
    )


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_advantages_equal_numpys(data, gae_by_hand, lambda_):
    want = gae_by_hand(*data, GAMMA, lambda_)
    real = np.isfinite(want)
    np.testing.assert_array_equal(real, data[0][:-1] != LAST)
    got = np.asarray(jax.jit(function(lambda_))(*data))
    np.testing.assert_allclose(got[real], want[real], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[~real], 0)
    split = lambda x: np.stack(np.split(x, 3, axis=1))  # noqa: E731
    mapped = jax.vmap(function(lambda_))(*map(split, data))
    np.testing.assert_allclose(mapped, split(got), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mutation", ["limits are ends", "ends are limits", "glued", "reward row"])
def test_the_comparison_notices_a_mistake(data, gae_by_hand, mutation):
    step_type, reward, discount, value = data
    want = gae_by_hand(*data, GAMMA, 0.8)
    real = np.isfinite(want)
    if mutation == "limits are ends":
        discount = np.where(step_type == LAST, 0, discount)
    elif mutation == "ends are limits":
        discount = np.ones_like(discount)
    elif mutation == "glued":
        step_type = np.full_like(step_type, MID)
    else:
        reward = np.roll(reward, -1, axis=0)
    got = np.asarray(function(0.8)(step_type, reward, discount, value))
    wrong = np.abs(got - want)[real] > 1e-2
    assert wrong.mean() > 0.2


def test_ends_by_hand():
    """Gamma 0.5, lambda 0.5; the value is 10 at every step."""
    #            F    M    L(limit) F    L(true) F   M
    step_type = [FIRST, MID, LAST, FIRST, LAST, FIRST, MID]
    reward = [0, 1, 2, 0, 3, 0, 4]
    discount = [1, 1, 1, 1, 0, 1, 1]
    columns = [np.array(x, np.float32)[:, None] for x in (step_type, reward, discount)]
    value = np.full((7, 1), 10, np.float32)
    out = gae(columns[0], columns[1], 0.5 * columns[2], value, 0.5)[:, 0]
    # Differences: 1 + 5 - 10 = -4, 2 + 5 - 10 = -3, 3 + 0 - 10 = -7, 4 + 5 - 10 = -1.
    np.testing.assert_allclose(out, [-4 + 0.25 * -3, -3, 0, -7, 0, -1], rtol=1e-6)


def test_nothing_after_a_boundary_reaches_anything_before_it(data):
    step_type, reward, discount, value = data
    before = function(0.8)(*data)
    for cut in range(1, len(step_type)):
        columns = np.flatnonzero(step_type[cut] == FIRST)
        changed_reward, changed_value = reward.copy(), value.copy()
        for array in (changed_reward[cut:], changed_value[cut:]):
            array[:, columns] += 1e6
        after = function(0.8)(step_type, changed_reward, discount, changed_value)
        np.testing.assert_array_equal(before[: cut - 1, columns], after[: cut - 1, columns])


def test_no_gradient_flows(data):
    step_type, reward, discount, value = data
    total = lambda value: jnp.sum(function(0.8)(step_type, reward, discount, value))  # noqa: E731
    assert not np.any(jax.grad(total)(value))


def test_means_and_normalisation_are_over_real_transitions():
    x = jnp.array([[1.0, 2.0, np.nan], [3.0, np.inf, 6.0]])
    real = np.array([[True, True, False], [True, False, True]])
    assert float(mean_over(real)(x)) == 3
    assert float(mean_over(np.zeros_like(real))(x)) == 0
    spread = np.std([1, 2, 3, 6])
    want = np.array([[-2, -1, 0], [0, 0, 3]]) / spread
    np.testing.assert_allclose(normalize(x, x, real), want, rtol=1e-5)
    assert not np.any(normalize(x, x, np.zeros_like(real)))


@pytest.mark.parametrize("value", [-1e-3, 10.0, 1e6])
def test_normalisation_does_not_scale_errors_of_the_values_up(value):
    rng = np.random.default_rng(0)
    target = np.full((64, 16), value, np.float32)
    real = np.ones(target.shape, bool)
    rounding = target - (target - target * np.float32(0.99)) / np.float32(0.01)
    rounding = rounding + np.spacing(target) * rng.integers(-8, 9, target.shape)
    assert 0 < np.std(rounding) < 1e-5 * abs(value)
    assert np.std(normalize(rounding, target, real)) < 1e-3
    errors = 1e-3 * value * rng.normal(size=target.shape)  # of fit: a thousandth of the values
    np.testing.assert_allclose(np.std(normalize(errors, target, real)), 0.1, rtol=0.1)
    signal = 0.1 * value * rng.normal(size=target.shape)
    np.testing.assert_allclose(np.std(normalize(signal, target, real)), 1, rtol=1e-3)
