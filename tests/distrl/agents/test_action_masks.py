"""Masks of actions: never an illegal one, no gradient through it, and nothing without a mask."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.a2c import A2CConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule, epsilon_greedy, explore_legal
from distrl.agents.impala import IMPALAConfig
from distrl.agents.modules.inputs import make_inputs, masked
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.errors import ConfigError
from distrl.learning.random_batches import random_windows
from distrl.random_keys import root
from distrl.rules import RandomPolicy
from distrl.specs import EnvironmentSpec
from distrl.types import StepType, Trajectory

MASK = dm_specs.BoundedArray((4,), np.int8, 0, 1)
DISCRETE = dm_specs.DiscreteArray(4, np.int32)
OBSERVATION = {"action_mask": MASK, "board": dm_specs.Array((3,), np.float32)}
SPEC = EnvironmentSpec(OBSERVATION, DISCRETE)
SMALL = NetworkConfig(hidden_sizes=(8,))
VALUES = [DQNConfig(network=SMALL), R2D2Config(network=dataclasses.replace(SMALL, core="lstm"))]
POLICIES = [config(network=SMALL) for config in (IMPALAConfig, A2CConfig, PPOConfig)]


def make_batch(agent, seed=0, length=5, batch_size=6):
    """Random windows; at LAST no action is legal. Actions are legal where one is."""
    rng = np.random.default_rng(seed)
    step_type, discount = random_windows(rng, length, batch_size)
    shape = step_type.shape
    mask = rng.integers(0, 2, (*shape, 4)).astype(np.int8)
    mask[..., 2] |= ~mask.any(axis=-1)
    mask[step_type == StepType.LAST] = 0
    noise = rng.random((*shape, 4))
    legal = (mask != 0) | ~mask.any(axis=-1, keepdims=True)
    timestep = specs.zeros(specs.timestep_struct(SPEC), *shape)._replace(
        step_type=step_type,
        discount=discount,
        reward=rng.normal(size=shape).astype(np.float32),
        observation={
            "action_mask": mask,
            "board": rng.normal(size=(*shape, 3)).astype(np.float32),
        },
    )
    return Trajectory(
        timestep=timestep,
        action=np.where(legal, noise, -1).argmax(-1).astype(np.int32),
        extras={"log_prob": np.full(shape, -1.0, np.float32)},
        version=np.zeros(shape, np.int32),
        state=agent.initial_state(batch_size),
        stream_id=np.arange(batch_size, dtype=np.int32),
        life=np.zeros(batch_size, np.int32),
        probability=np.ones(batch_size, np.float32),
    ), legal


@pytest.mark.parametrize("config", [*POLICIES[:1], *VALUES[:1]], ids=lambda c: type(c).__name__)
def test_no_illegal_action_is_ever_taken(config):
    if isinstance(config, DQNConfig):
        config = dataclasses.replace(config, epsilon=EpsilonSchedule(0.5, 0.5))
    agent = config.make(SPEC)
    params = agent.initial_params(root(1))
    mask = np.array([[(n >> i) & 1 for i in range(4)] for n in range(16)], np.int8)
    timestep = specs.zeros(specs.acting_struct(SPEC), 16)
    timestep.observation["action_mask"][:] = mask
    state = agent.initial_state(16)

    @jax.jit
    def act(key):
        return agent.actor_step(key, params, timestep, state)[0].action

    taken = np.asarray(jax.vmap(act)(jax.random.split(root(2), 400)))
    counts = np.stack([(taken == action).sum(axis=0) for action in range(4)], axis=1)
    assert (counts[1:][mask[1:] == 0] == 0).all()
    assert (counts[0] > 0).all()  # none is legal: all are
    assert (counts[1:][mask[1:] != 0] > 0).all()
    greedy = agent.actor_step(root(3), params, timestep, state, evaluation=True)[0].action
    assert (mask[np.arange(16), greedy][1:] == 1).all()


def test_a_mask_may_have_a_row_for_each_element():
    """Which elements must have as many values for: the logits are those of the flat mask."""
    choices = dm_specs.BoundedArray((2,), np.int32, 0, 2)
    rows = np.array([[[1, 0, 0], [0, 1, 1]], [[0, 0, 0], [1, 0, 1]]], np.int8)
    taken = []
    for mask in (rows, rows.reshape(2, 6)):
        part = dm_specs.BoundedArray(mask.shape[1:], np.int8, 0, 1)
        spec = EnvironmentSpec({**OBSERVATION, "action_mask": part}, choices)
        agent = PPOConfig().make(spec)
        timestep = specs.zeros(specs.acting_struct(spec), 2)
        timestep.observation["action_mask"][:] = mask
        params, state = agent.initial_params(root(1)), agent.initial_state(2)
        act = jax.vmap(lambda key, a=(agent, params, timestep, state): a[0].actor_step(key, *a[1:]))
        taken.append(np.asarray(act(jax.random.split(root(2), 100))[0].action))
        rule = RandomPolicy().make_source(spec, 2, 0)
        drawn = rule.inference(np.arange(2, dtype=np.int32), timestep).action
        assert (drawn[0] == [0, 1]).sum() + (drawn[0] == [0, 2]).sum() >= 2 and drawn[1, 1] != 1
    np.testing.assert_array_equal(*taken)
    assert (taken[0][:, 0, 0] == 0).all() and (taken[0][:, 0, 1] > 0).all()
    assert set(taken[0][:, 1, 0]) == {0, 1, 2} and set(taken[0][:, 1, 1]) == {0, 2}
    spec = spec._replace(action=dm_specs.BoundedArray((2,), np.int32, 0, np.array([2, 3])))
    with pytest.raises(ConfigError, match=r"of shape \[7\], one for each action, got int8\[6\]"):
        PPOConfig().make(spec)


@pytest.mark.parametrize("config", POLICIES, ids=lambda c: type(c).__name__)
def test_each_element_of_several_choices_has_its_own_mask(config):
    """Choices among 3 and 2 values: 32 masks; an element without a legal one may be anything."""
    choices = dm_specs.BoundedArray((2,), np.int32, np.array([5, 0]), np.array([7, 1]))
    observation = {**OBSERVATION, "action_mask": dm_specs.BoundedArray((5,), np.int8, 0, 1)}
    spec = EnvironmentSpec(observation, choices)
    agent = config.make(spec)
    params = agent.initial_params(root(1))
    mask = np.array([[(n >> i) & 1 for i in range(5)] for n in range(32)], np.int8)
    timestep = specs.zeros(specs.acting_struct(spec), 32)
    timestep.observation["action_mask"][:] = mask

    @jax.jit
    def act(key):
        return agent.actor_step(key, params, timestep, agent.initial_state(32))[0].action

    taken = np.asarray(jax.vmap(act)(jax.random.split(root(2), 400))) - [5, 0]
    for element, part in enumerate((mask[:, :3], mask[:, 3:])):
        legal = part | ~part.any(axis=1, keepdims=True)
        counts = np.stack([(taken[..., element] == i).sum(axis=0) for i in range(part.shape[1])], 1)
        assert ((counts > 0) == (legal != 0)).all()


@pytest.mark.parametrize("config", POLICIES, ids=lambda c: type(c).__name__)
def test_illegal_logits_are_in_no_loss(config):
    """The gradients of the policy head are those of the legal logits only, and finite."""
    agent = config.make(SPEC)
    params = agent.initial_params(root(1))
    batch, _ = make_batch(agent)
    batch.timestep.observation["action_mask"][..., 3] = 0  # never legal, but where none is
    batch.timestep.observation["action_mask"][..., 0] = 1
    batch = batch._replace(action=np.minimum(batch.action, 2) * 0)
    state = agent.initial_learner_state(params)
    grads, logs = jax.jit(agent.compute_gradients)(params, state, batch)
    head = np.asarray(grads["policy_head"]["w"])
    assert (head[:, 3] == 0).all()
    assert grads["policy_head"]["b"][3] == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((grads, logs)))
    assert (head[:, :3] != 0).any()


def test_the_loss_is_that_of_an_environment_without_the_illegal_actions():
    """Logits of illegal actions change neither log-probabilities, entropy nor gradients."""
    logits = jnp.array([0.3, -1.0, 2.0, 0.5])
    legal = np.array([True, False, True, False])
    log_probs = jax.nn.log_softmax(masked(logits, legal))
    np.testing.assert_allclose(log_probs[legal], jax.nn.log_softmax(logits[legal]), rtol=1e-6)
    assert (np.exp(log_probs[~legal]) == 0).all()
    distribution = IMPALAConfig(network=SMALL).make(SPEC).network.distribution

    def entropy(x):
        return distribution.entropy(masked(x, legal))

    few = jax.nn.log_softmax(logits[legal])
    np.testing.assert_allclose(entropy(logits), -(jnp.exp(few) * few).sum(), rtol=1e-6)
    assert (jax.grad(entropy)(logits)[~legal] == 0).all()


@pytest.mark.parametrize("double", [True, False])
def test_targets_bootstrap_from_legal_actions(double):
    config = DQNConfig(network=SMALL, double=double, huber_delta=None, discount=0.5)
    agent = config.make(SPEC)
    params, target = (agent.initial_params(root(i))["network"] for i in (1, 2))
    batch, legal = make_batch(agent)
    _, logs = jax.jit(agent.loss)(params, target, batch)
    values, frozen = (
        np.asarray(agent.network.unroll(p, batch.timestep, ())[0]) for p in (params, target)
    )
    chooser = np.where(legal, values if double else frozen, -np.inf)
    best = np.take_along_axis(frozen, chooser.argmax(-1)[..., None], axis=-1)[..., 0]
    step = batch.timestep
    want = step.reward[1:] + 0.5 * step.discount[1:] * best[1:]
    real = step.step_type[:-1] != StepType.LAST
    assert (chooser.argmax(-1) != (values if double else frozen).argmax(-1)).any()
    np.testing.assert_allclose(logs["target"], want[real].mean(), rtol=1e-5)


def test_random_actions_are_uniform_over_the_legal_ones():
    legal = np.array([True, False, True, True])
    values = jnp.array([1.0, 5.0, 2.0, 0.0])
    keys = jax.random.split(root(0), 3000)
    taken = jax.vmap(lambda key: epsilon_greedy(key, values, 1.0, legal))(keys)
    counts = np.bincount(taken, minlength=4)
    assert counts[1] == 0
    assert abs(counts[legal] - 1000).max() < 120
    assert epsilon_greedy(root(0), values, 0.0, legal) == 2
    for own, want in [(0, 0), (1, 2), (3, 3)]:  # an exploration of the user's own
        explore = lambda *_, own=own: jnp.asarray(own)  # noqa: E731
        assert explore_legal(explore, root(0), values, 0.0, legal) == want


def test_the_torso_does_not_see_the_mask_unless_it_is_asked_to():
    assert set(make_inputs(SPEC).spec) == {"board"}
    assert set(make_inputs(SPEC, ("action_mask", "board")).spec) == {"action_mask", "board"}
    only = make_inputs(SPEC, ("action_mask",))
    assert set(only.spec) == {"action_mask"}
    assert only.legal is not None
    ignored = make_inputs(SPEC, mask_actions=False)
    assert (set(ignored.spec), ignored.legal) == ({"action_mask", "board"}, None)


def test_inputs_are_chosen_by_name():
    leaf = dm_specs.Array((2,), np.float32)
    spec = EnvironmentSpec({"arm": {"angle": leaf, "speed": leaf}, "eyes": (leaf, leaf)}, DISCRETE)
    value = jax.tree.map(lambda _: np.zeros((5, 2)), specs.struct(spec.observation))
    for names, want in [
        (("arm",), {"arm": {"angle": 0, "speed": 0}}),
        (("arm.speed", "eyes.1"), {"arm": {"speed": 0}, "eyes": (0,)}),
    ]:
        inputs = make_inputs(spec, names)
        assert jax.tree.structure(inputs.take(value)) == jax.tree.structure(want)
        assert jax.tree.structure(inputs.spec) == jax.tree.structure(want)
    with pytest.raises(ConfigError, match=r"no .hand. in the observation; there is arm\.angle, "):
        make_inputs(spec, ("hand",))


@pytest.mark.parametrize(
    ("mask", "action", "message"),
    [
        (dm_specs.Array((3,), np.int8), DISCRETE, r"expected int8 or bool of shape \[4\], .*\[3\]"),
        (
            MASK,
            dm_specs.BoundedArray((4,), np.float32, -1, 1),
            "only one DiscreteArray or BoundedArray of int",
        ),
        ({"a": MASK}, DISCRETE, "got a nest"),
    ],
)
def test_masks_that_do_not_fit_are_refused_in_one_line(mask, action, message):
    spec = EnvironmentSpec({**OBSERVATION, "action_mask": mask}, action)
    with pytest.raises(ConfigError, match=message) as error:
        IMPALAConfig().make(spec)
    assert "\n" not in str(error.value)
