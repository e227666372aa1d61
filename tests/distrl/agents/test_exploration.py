"""Exploration per stream: shares by hand, and each stream's own epsilon wherever it acts."""

import threading

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule, stream_shares
from distrl.agents.networks import NetworkConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer, RemoteInferencer
from distrl.inferencer import Inferencer
from distrl.specs import EnvironmentSpec
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.frame_stack import FrameStack
from distrl.variables.client import VariableClient
from tests.support.selection import full

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
APE_X = EpsilonSchedule(0.4, 0.4, spread=7)
SPREAD = EpsilonSchedule(0.4, 0.4, spread=3)
SHARES = [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]  # of the ids 0 to 7
NETWORK = NetworkConfig(hidden_sizes=(8,))
LSTM = NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4)


def test_shares_by_hand():
    ids = np.array([0, 1, 2, 3, 4, 5, 6, 7, 2**23, 2**24 - 1, 2**24 + 1], np.int32)
    want = [*SHARES, 2.0**-24, 1 - 2.0**-24, 0.5]
    shares = jax.jit(stream_shares)(ids)
    assert shares.dtype == np.float32
    np.testing.assert_array_equal(shares, want)
    np.testing.assert_array_equal(stream_shares(ids.reshape(1, 11)), [want])
    np.testing.assert_array_equal(stream_shares(6), 3 / 8)


@pytest.mark.parametrize("first", [0, 5, 96, 12345])
def test_any_run_of_ids_is_spread_evenly(first):
    for count in (2, 8, 64):
        shares = np.sort(stream_shares(np.arange(first, first + count)))
        np.testing.assert_array_equal(np.floor(shares * count), np.arange(count))


def test_epsilons_by_hand():
    ids = np.array([3, 0, 1], np.int32)
    of_streams = jax.jit(APE_X.of_streams)
    want = [0.4**6.25, 0.4, 0.4**4.5]
    np.testing.assert_allclose(of_streams(np.float32(0.4), ids), want, rtol=1e-5)
    for extreme in (0.0, 1.0):
        np.testing.assert_array_equal(of_streams(np.float32(extreme), ids), [extreme] * 3)
    alike = np.float32(0.3)
    assert EpsilonSchedule().of_streams(alike, ()) is alike


@pytest.mark.parametrize("spread", [-0.5, float("inf"), None])
def test_spreads_that_cannot_work_are_refused(spread):
    with pytest.raises(ConfigError, match=r"agent\.epsilon\.spread: expected .* at least 0, got"):
        EpsilonSchedule(spread=spread)


def agents():
    stacks = (FrameStack(2),)
    dqn = DQNConfig(NETWORK, epsilon=SPREAD)
    seen = FrameStack(2).spec(SPEC)
    return {
        "dqn": dqn.make(SPEC),
        "r2d2": R2D2Config(LSTM, epsilon=SPREAD).make(SPEC),
        "behind_transforms": TransformedAgent(dqn.make(seen), stacks, SPEC),
    }


class Fixed:
    """A source of one version."""

    def __init__(self, params):
        self._params = params

    def get_variables(self, newer_than):
        return None if newer_than >= 0 else (0, self._params)


def make(agent, **options):
    variables = VariableClient(Fixed(agent.initial_params(np.array([0, 7], np.uint32))))
    return Inferencer(agent, variables, seed=3, max_streams=8, **options)


def test_after_2_to_the_31_calls_others_numbers_are_drawn():
    """Of a policy that acts at random only, each call's actions are its own."""
    agent = DQNConfig(NETWORK, epsilon=EpsilonSchedule(1.0, 1.0)).make(SPEC)
    ids, step = np.arange(256, dtype=np.int32), first_step(256)
    inferencer = make(agent, batch_sizes=(256,))
    seen = [inferencer.inference(ids, step).action.tobytes() for _ in range(3)]
    inferencer._calls = 2**31 - 4
    seen += [inferencer.inference(ids, step).action.tobytes() for _ in range(6)]
    assert len(set(seen)) == 9


def first_step(n):
    """The same step of n streams, their first, so that the greedy action is always the same."""
    step = specs.zeros(specs.timestep_struct(SPEC), n)
    ids = np.full(n, 5, np.int32)  # slots of a pool, which are not for the agent
    return step._replace(observation=step.observation + 1, env_id=ids, env_info={"x": ids})


def greedy_action(agent):
    """What every stream does in evaluation."""
    ids = np.arange(8, dtype=np.int32)
    inferencer = make(agent, evaluation=True)
    actions = np.concatenate([inferencer.inference(ids, first_step(8)).action for _ in range(20)])
    assert len(set(actions.tolist())) == 1
    return actions[0]


def explore(infer, ids, calls, seed, greedy, counts):
    """Counts each stream's actions, and those not greedy, over random subsets in random orders."""
    rng = np.random.default_rng(seed)
    for _ in range(calls):
        streams = rng.permutation(ids)[: rng.integers(1, len(ids) + 1)].astype(np.int32)
        action = infer(streams, first_step(len(streams))).action
        counts[streams, 0] += 1
        counts[streams, 1] += action != greedy


def chi_square(counts, epsilons):
    """Returns chi-square, with one degree of freedom per stream."""
    chance = np.array(epsilons) * 2 / 3  # one of three random actions is the greedy one
    expected = counts[:, 0] * chance
    return np.sum((counts[:, 1] - expected) ** 2 / (expected * (1 - chance)))


def check(counts):
    expected = 0.4 ** (1 + 3 * np.array(SHARES))
    # Eight degrees of freedom exceed 35 once in 40,000 times.
    assert chi_square(counts, expected) < 35
    # What a mistake would give is not what we give: by place in the actor, by halves, all alike.
    for wrong in (
        expected[[0, 1, 2, 3] * 2],
        expected[::-1],
        np.full(8, 0.4),
        np.full(8, expected.mean()),
    ):
        assert chi_square(counts, wrong) > 70


@pytest.mark.parametrize(
    ("name", "batch_sizes"),
    [
        full("dqn", ()),
        full("dqn", (4, 16)),
        full("r2d2", (4, 16)),
        full("behind_transforms", (4, 16)),
    ],
)
def test_each_stream_has_its_own_epsilon(name, batch_sizes):
    agent = agents()[name]
    inferencer, greedy = make(agent, batch_sizes=batch_sizes), greedy_action(agent)
    inferencer.warm_up()
    counts = np.zeros((8, 2))
    for actor in range(2):
        ids = np.arange(4) + 4 * actor
        explore(inferencer.inference, ids, 4_000, actor, greedy, counts)
    check(counts)


@pytest.mark.parametrize("name", [full("dqn"), full("r2d2")])
def test_each_stream_has_its_own_epsilon_from_a_service(name):
    agent = agents()[name]
    messages, greedy = InferenceMessages(agent), greedy_action(agent)
    inferencer = make(agent, batch_sizes=(4, 16), codec=messages)
    inferencer.warm_up()
    remote = RemoteInferencer(InferenceServer(inferencer, messages, 16, 20.0), messages)
    counts = np.zeros((8, 2))
    actors = [
        threading.Thread(
            target=explore,
            args=(remote.inference, np.arange(4) + 4 * i, 4_000, i, greedy, counts),
        )
        for i in range(2)
    ]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join(60)
    assert counts[:, 0].sum() > 16_000
    check(counts)


def test_policies_explore_by_stream_too():
    """With so great a spread stream 0 alone does anything but its policy's action."""
    spec = SPEC._replace(action=dm_specs.BoundedArray((1,), np.float32, -1, 1))
    epsilon = EpsilonSchedule(0.5, 0.5, spread=1e4)
    agent = TD3Config((8,), exploration_noise=0.0, epsilon=epsilon).make(spec)
    ids = np.arange(8, dtype=np.int32)
    inferencer, step = make(agent), specs.zeros(specs.timestep_struct(spec), 8)
    actions = np.stack([inferencer.inference(ids, step).action[:, 0] for _ in range(40)])
    assert len(np.unique(actions[:, 1:])) == 1
    assert 8 < (actions[:, 0] != actions[:, 1]).sum() < 32
