"""V-trace over windows that hold the ends of episodes, against a recursion written out in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.impala import IMPALAConfig, vtrace
from distrl.types import StepType

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
CONFIG = IMPALAConfig(discount=0.9, vtrace_lambda=0.8, clip_rho=1.2, clip_pg_rho=0.9)


def piece_by_hand(reward, discount, value, rho, config=CONFIG):
    """Targets and advantages of n transitions of one episode: a window without a boundary.

    reward, discount and value have n + 1 elements, rho n. Equations 1 and 2 of the paper, with the
    remark on lambda: v_s = V(s) + delta_s + gamma c_s (v_s+1 - V(s+1)).
    """
    n = len(rho)
    target = np.array(value, np.float64)  # the last one is what the others bootstrap from
    advantage = np.zeros(n)
    for t in reversed(range(n)):
        gamma = config.discount * discount[t + 1]
        delta = min(config.clip_rho, rho[t]) * (reward[t + 1] + gamma * value[t + 1] - value[t])
        c = config.vtrace_lambda * min(1.0, rho[t])
        target[t] = value[t] + delta + gamma * c * (target[t + 1] - value[t + 1])
        lambda_ = config.vtrace_lambda
        future = lambda_ * target[t + 1] + (1 - lambda_) * value[t + 1]
        q = reward[t + 1] + gamma * future
        advantage[t] = min(config.clip_pg_rho, rho[t]) * (q - value[t])
    return target[:n], advantage


def episodes(lengths, true_ends):
    """The step types and discounts of episodes one after the other; a length is of transitions."""
    types, discounts = [], []
    for length, true_end in zip(lengths, true_ends, strict=True):
        types += [FIRST] + [MID] * (length - 1) + [LAST]
        discounts += [1.0] * length + [0.0 if true_end else 1.0]
    return np.array(types, np.int8), np.array(discounts, np.float32)


def by_hand(step_type, reward, discount, value, rho, config=CONFIG):
    """Cuts a window [T + 1] at its boundaries and treats every piece alone."""
    length = len(rho)
    target, advantage = np.full(length, np.nan), np.zeros(length)
    ends = [t for t in range(length + 1) if step_type[t] == LAST or t == length]
    start = 0
    for end in ends:
        if end > start:
            s = slice(start, end + 1)
            target[start:end], advantage[start:end] = piece_by_hand(
                reward[s], discount[s], value[s], rho[start:end], config
            )
        start = end + 1
    return target, advantage


def windows(unroll_length=7):
    """Every offset into episodes of lengths 1 to 5, each ended truly and by a time limit."""
    columns = []
    for lengths in ([1, 2, 3, 4, 5, 1, 1, 2], [5, 4, 3, 2, 1, 5, 3], [1] * 12):
        for first_end in (True, False):
            ends = [first_end ^ (k % 2 == 1) for k in range(len(lengths))]
            types, discounts = episodes(lengths, ends)
            for offset in range(len(types) - unroll_length):
                window = slice(offset, offset + unroll_length + 1)
                columns.append((types[window], discounts[window]))
    return (np.stack(x, axis=1) for x in zip(*columns, strict=True))


def random_batch(seed=0):
    rng = np.random.default_rng(seed)
    step_type, discount = windows()
    reward = np.where(step_type == FIRST, 0, rng.normal(size=step_type.shape)).astype(np.float32)
    value = rng.normal(size=step_type.shape).astype(np.float32)
    log_rho = rng.normal(size=value[:-1].shape).astype(np.float32)
    return step_type, reward, discount, value, log_rho


def test_every_kind_of_boundary_lies_at_every_place_of_the_windows():
    step_type, discount = windows()
    for t in range(len(step_type)):
        assert set(step_type[t].tolist()) == {FIRST, MID, LAST}
        assert set(discount[t, step_type[t] == LAST].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("jit", [False, True])
def test_packed_windows_equal_their_pieces_alone(jit):
    step_type, reward, discount, value, log_rho = random_batch()
    function = lambda *args: vtrace(CONFIG, *args)  # noqa: E731
    out = (jax.jit(function) if jit else function)(step_type, reward, discount, value, log_rho)
    real = step_type[:-1] != LAST
    for b in range(step_type.shape[1]):
        target, advantage = by_hand(
            step_type[:, b], reward[:, b], discount[:, b], value[:, b], np.exp(log_rho[:, b])
        )
        where = real[:, b]
        np.testing.assert_allclose(out.target[where, b], target[where], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out.advantage[:, b], advantage, rtol=1e-5, atol=1e-6)
        error = np.where(where, target - value[:-1, b], 0)
        np.testing.assert_allclose(out.error[:, b], error, rtol=1e-5, atol=2e-6)


def test_nothing_after_a_boundary_reaches_anything_before_it():
    """Whatever is changed from FIRST on, targets before it do not change by a bit."""
    step_type, reward, discount, value, log_rho = random_batch(seed=1)
    before = vtrace(CONFIG, step_type, reward, discount, value, log_rho)
    for cut in range(1, len(step_type)):
        columns = np.flatnonzero(step_type[cut] == FIRST)
        reward2, value2, log_rho2 = reward.copy(), value.copy(), log_rho.copy()
        for array in (reward2[cut:], value2[cut:], log_rho2[cut - 1 :]):
            array[:, columns] += 1e6 if array is not log_rho2 else 50
        after = vtrace(CONFIG, step_type, reward2, discount, value2, log_rho2)
        for x, y in zip(before, after, strict=True):
            np.testing.assert_array_equal(x[: cut - 1, columns], y[: cut - 1, columns])


def test_ends_by_hand():
    """Two transitions, on policy, gamma 0.9, rewards 1, a final value of 10."""
    config = IMPALAConfig(discount=0.9)
    step_type = np.array([[FIRST] * 2, [MID] * 2, [LAST] * 2], np.int8)
    reward = np.array([[0, 0], [1, 1], [1, 1]], np.float32)
    discount = np.array([[1, 1], [1, 1], [0, 1]], np.float32)  # a true end, a time limit
    value = np.array([[5, 5], [7, 7], [10, 10]], np.float32)
    out = vtrace(config, step_type, reward, discount, value, np.zeros((2, 2), np.float32))
    # True end: 1 and 1 + 0.9. Time limit: 1 + 0.9 * 10 = 10, and 1 + 0.9 * 10.
    np.testing.assert_allclose(out.target, [[1.9, 10.0], [1.0, 10.0]], rtol=1e-6)
    np.testing.assert_allclose(out.advantage, [[-3.1, 5.0], [-6.0, 3.0]], rtol=1e-6)


def test_an_endless_episode_of_reward_one_is_worth_its_geometric_sum():
    config = IMPALAConfig(discount=0.9)
    shape = (6, 1)
    worth = np.full(shape, 1 / (1 - 0.9), np.float32)
    ones, on_policy = np.ones(shape, np.float32), np.zeros((5, 1), np.float32)
    out = vtrace(config, np.full(shape, MID, np.int8), ones, ones, worth, on_policy)
    np.testing.assert_allclose(out.target, worth[:-1], rtol=1e-6)
    np.testing.assert_allclose(out.error, 0, atol=2e-6)


@pytest.mark.parametrize("junk", [np.inf, -np.inf, np.nan, 1e30])
def test_what_is_stored_for_an_action_that_nobody_took_does_not_matter(junk):
    step_type, reward, discount, value, log_rho = random_batch(seed=2)
    clean = vtrace(CONFIG, step_type, reward, discount, value, log_rho)
    log_rho = np.where(step_type[:-1] == LAST, junk, log_rho).astype(np.float32)
    for x, y in zip(
        clean, vtrace(CONFIG, step_type, reward, discount, value, log_rho), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_gradients_flow_through_the_value_that_is_learned_and_nowhere_else():
    step_type, reward, discount, value, log_rho = random_batch(seed=3)
    real = step_type[:-1] != LAST

    def total(value, log_rho, field):
        return jnp.sum(getattr(vtrace(CONFIG, step_type, reward, discount, value, log_rho), field))

    for field, want in (("error", -1.0), ("target", 0.0), ("advantage", 0.0)):
        by_value, by_rho = jax.grad(total, (0, 1))(value, log_rho, field)
        if field == "error":
            # At LAST the error is 0 by cancelling, and its gradient is masked in the loss.
            np.testing.assert_array_equal(by_value[:-1][real], want)
        else:
            np.testing.assert_array_equal(by_value[:-1], want)
        np.testing.assert_array_equal(by_value[-1], 0)
        np.testing.assert_array_equal(by_rho, 0)


@pytest.mark.parametrize("mutation", ["discount at LAST", "mask", "reward row", "bootstrap"])
def test_the_comparison_notices_a_mistake(mutation):
    """The values by hand are far from those of each mistake that is easily made."""
    step_type, reward, discount, value, log_rho = random_batch(seed=4)
    types, rewards, discounts, values = (x.copy() for x in (step_type, reward, discount, value))
    if mutation == "discount at LAST":  # a time limit taken for a true end
        discounts[types == LAST] = 0
    elif mutation == "mask":  # LAST to FIRST taken for a transition
        types[types == LAST] = MID
    elif mutation == "reward row":
        rewards = np.roll(rewards, -1, axis=0)
    else:  # the reset observation's value in the place of the final one's
        last = np.flatnonzero(types[:-1] == LAST)
        values[:-1].reshape(-1)[last] = values[1:].reshape(-1)[last]
    out = vtrace(CONFIG, types, rewards, discounts, values, log_rho)
    worst = 0.0
    for b, t in itertools.product(range(step_type.shape[1]), range(len(log_rho))):
        if t == 0:
            _, advantage = by_hand(
                step_type[:, b], reward[:, b], discount[:, b], value[:, b], np.exp(log_rho[:, b])
            )
        worst = max(worst, abs(float(out.advantage[t, b]) - advantage[t]))
    assert worst > 0.1
