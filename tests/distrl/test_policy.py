"""A policy's actions are within the spec, whatever its agent samples."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.errors import ConfigError, SpecError
from distrl.policy import Policy
from distrl.random_keys import root
from distrl.specs import EnvironmentSpec
from distrl.testing import CheckingAgent
from distrl.types import AgentOutput

BOUNDS = np.array([1.0, 0.25], np.float32)
SPEC = EnvironmentSpec(
    dm_specs.Array((3,), np.float32), dm_specs.BoundedArray((2,), np.float32, -BOUNDS, BOUNDS)
)


@pytest.mark.parametrize("greedy", [True, False])
def test_actions_are_within_the_spec(greedy):
    agent = A2CConfig(NetworkConfig(hidden_sizes=(8,))).make(SPEC)
    params = agent.initial_params(root(0))
    params["policy"]["log_std"] += 1.5  # most samples are outside
    (head,) = (leaves for name, leaves in params.items() if name.endswith("policy_head"))
    head["b"] += jnp.array([0.0, 3.0])  # and so is one mode
    policy = Policy(agent, 0, params, batch_size=50, greedy=greedy)
    actions = np.array([policy(np.zeros((50, 3), np.float32)) for _ in range(4)])
    assert actions.dtype == np.float32
    for action in actions.reshape(-1, 2):
        SPEC.action.validate(action)
    assert np.mean(actions[..., 1] == BOUNDS[1]) > 0.5
    assert greedy or np.mean(np.abs(actions[..., 0]) == 1) > 0.1


class Remembering(CheckingAgent):
    """Acts by its previous action."""

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        before = timestep.prev_action
        return AgentOutput(jnp.where(before == 0, 1.5, before - 1), ()), state


def test_the_agent_sees_its_own_action_before_the_clip():
    agent = Remembering(SPEC._replace(observation=dm_specs.Array((4,), np.float32)), False)
    policy = Policy(agent, 0, {"version": np.int32(0)})
    observation = np.zeros(4, np.float32)
    np.testing.assert_array_equal(policy(observation), [1, 0.25])  # 1.5 in both elements
    np.testing.assert_array_equal(policy(observation), [0.5, 0.25])
    policy.reset()
    np.testing.assert_array_equal(policy(observation), [1, 0.25])


class Echo(CheckingAgent):
    """Acts by its observation, a number from 0 on."""

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        return AgentOutput(timestep.observation % 2, ()), state


def test_numbers_count_from_the_start_of_their_spaces():
    spec = EnvironmentSpec(
        dm_specs.DiscreteArray(4, np.int32, "observation"),
        dm_specs.DiscreteArray(2, np.int32, "action"),
        observation_start=10,
        action_start=1,
    )
    policy = Policy(Echo(spec, False), 0, {"version": np.int32(0)})
    assert [int(policy(number)) for number in (10, 11, 13)] == [1, 2, 2]
    np.testing.assert_array_equal(policy([10, 11]), [1, 2])
    assert [int(policy.in_pool(number)) for number in (0, 3)] == [0, 1]
    with pytest.raises(SpecError, match=r"observation: expected one of 4 numbers.* number -10$"):
        policy(0)


class EchoChoice(CheckingAgent):
    """Acts by the parts of its observation."""

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        seen = timestep.observation
        return AgentOutput({"move": (seen["pair"][0] + seen["pair"][1], seen["count"])}, ()), state


def test_an_observation_may_have_other_containers_than_its_spec():
    """dm_control gives ordered dicts; gymnasium's Tuple spaces take lists as well."""

    def number(name):
        return dm_specs.DiscreteArray(9, np.int32, name)

    spec = EnvironmentSpec(
        {"count": number("count"), "pair": (number("a"), number("b"))},
        {"move": (number("sum"), number("same"))},
        observation_start={"count": 5, "pair": (0, 1)},
    )
    policy = Policy(EchoChoice(spec, False), 0, {"version": np.int32(0)})
    seen = collections.OrderedDict(pair=[2, 4], count=7)
    assert jax.tree.map(int, policy(seen)) == {"move": (5, 2)}
    with pytest.raises(SpecError, match="expected the structure"):
        policy(collections.OrderedDict(pair=[2, 4, 6], count=7))


class Drawing(CheckingAgent):
    """Acts by a random number; counts how often it is traced."""

    traces = 0

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        Drawing.traces += 1
        drawn = jax.random.uniform(rng, timestep.reward.shape)
        return AgentOutput(jnp.stack([drawn, drawn], axis=-1) / 4, ()), state


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_number_of_observations_changes_without_repeating_draws(recurrent):
    agent = Drawing(SPEC, recurrent)
    policy = Policy(agent, 0, {"version": np.int32(0)}, greedy=False, seed=3)
    sizes = (1, 2, 1, 2, 5, 1)
    batches = [policy(np.zeros((size, 3), np.float32)) for size in sizes]
    draws = [float(number) for batch in batches for number in batch[:, 0]]
    assert len(set(draws)) == sum(sizes)
    alone = Policy(agent, 0, {"version": np.int32(0)}, greedy=False, seed=3)
    for at in range(6):  # a call's numbers depend on how many calls were before it
        single = alone(np.zeros((1, 3), np.float32))
        if sizes[at] == 1:
            np.testing.assert_array_equal(single, batches[at])
    before = Drawing.traces
    policy(np.zeros((2, 3), np.float32))
    policy(np.zeros((5, 3), np.float32))
    assert Drawing.traces == before  # compiled once for each number


class Counting(CheckingAgent):
    """Acts by its number of steps."""

    def initial_state(self, batch_size):
        return jnp.zeros(batch_size, jnp.float32)

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        return AgentOutput(jnp.stack([state, state], axis=-1) / 8, ()), state + 1


def test_memory_begins_where_the_number_of_observations_changes():
    policy = Policy(Counting(SPEC, True), 0, {"version": np.int32(0)})

    def steps(size):
        return (policy(np.zeros((size, 3), np.float32))[:, 0] * 8).tolist()

    assert [steps(1), steps(1), steps(2), steps(2), steps(1)] == [[0], [1], [0, 0], [1, 1], [0]]


def test_a_mask_of_environments_before_the_first_batch():
    policy = Policy(Counting(SPEC, True), 0, {"version": np.int32(0)})

    def steps(size):
        return (policy(np.zeros((size, 3), np.float32))[:, 0] * 8).tolist()

    policy.reset(np.ones(4, bool))
    assert [steps(4), steps(4)] == [[0] * 4, [1] * 4]
    policy.reset(np.array([True, False, False, True]))
    assert steps(4) == [0, 2, 2, 0]
    policy.reset([1, 3])
    assert steps(4) == [1, 0, 3, 0]
    policy.reset([False, True])  # of two now
    assert [steps(2), steps(2)] == [[0, 0], [1, 1]]
    policy.reset()
    assert steps(2) == [0, 0]


@pytest.mark.parametrize(
    ("batch_size", "which"), [(None, 4), (None, [0, 4]), (2, np.ones(4, bool)), (2, [2])]
)
def test_resets_of_environments_that_do_not_exist(batch_size, which):
    policy = Policy(Counting(SPEC, True), 0, {"version": np.int32(0)}, batch_size=batch_size)
    count = batch_size or 1
    with pytest.raises(ConfigError, match=f"^Policy.reset: got .* for {count} environments; give"):
        policy.reset(which)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy_of_large_images(dtype):
    pixels = dm_specs.BoundedArray((36, 36), np.uint8, 0, 255)
    network = NetworkConfig(torso="small_cnn", cnn_dtype=dtype)
    agent = A2CConfig(network).make(SPEC._replace(observation=pixels))
    policy = Policy(agent, 1, agent.initial_params(root(0)))
    action = policy(np.zeros((3, 36, 36), np.uint8))
    assert action.shape == (3, 2)
    assert policy.act(np.zeros((3, 36, 36), np.uint8), action=action).log_prob.shape == (3,)
