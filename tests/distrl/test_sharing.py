"""Tasks that share parameters: exact updates, by hand arithmetic."""

import numpy as np
import optax
import pytest
from dm_env import specs as dm_specs

from distrl.agents.a2c import A2CConfig
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.td3 import TD3Config
from distrl.errors import ConfigError
from distrl.learner import Learner
from distrl.learning.random_batches import NoReplay
from distrl.sharing.config import Shared, check_shared, groups_of, key_in, update_order
from distrl.sharing.learner import Sharing, SharingLearner
from distrl.specs import EnvironmentSpec
from distrl.transforms import RewardScale, TransformedAgent
from distrl.types import Sample
from tests.support.product_agent import ProductAgent, ProductConfig, batch_of

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
KEYS = np.arange(2, dtype=np.uint64)


AGENTS = {"a": ProductConfig(0.125, 1.0).make(SPEC), "b": ProductConfig(0.25, 2.0).make(SPEC)}


def make(shared, agents=AGENTS):
    """Returns learners of two agents that start at 1 and 2, by task."""
    sharing = Sharing(shared, {name: (agent, 0) for name, agent in agents.items()})
    learners = {}
    for name, agent in agents.items():
        if sharing.shares(name):
            learners[name] = SharingLearner(agent, NoReplay(), seed=0, task=name, sharing=sharing)
        else:
            learners[name] = Learner(agent, NoReplay(), seed=0)
    return learners


def update(learner, agent, target):
    learner.update(Sample(batch_of(agent, target), KEYS))


def numbers(learner):
    """Returns torso and head."""
    params = learner.state().params
    return float(params["torso/~/linear_0"]["w"][0]), float(params["head"]["w"][0])


def test_the_sum_of_both_gradients_moves_the_torso():
    learners = make({"torso": Shared(("a", "b"))})
    assert (numbers(learners["a"]), numbers(learners["b"])) == ((1, 1), (1, 2))
    # b predicts 2 * 1; target 4: error -2, gradients -2 * 2 of the torso and -2 * 1 of the head.
    update(learners["b"], AGENTS["b"], 4.0)
    assert (numbers(learners["a"]), numbers(learners["b"])) == ((1, 1), (1, 2.5))
    # b again, 2.5 of 4: error -1.5; the torso's gradient -3.75; the mean of the two is -3.875.
    update(learners["b"], AGENTS["b"], 4.0)
    assert numbers(learners["b"]) == (1, 2.5 + 0.25 * 1.5)
    # a predicts 1, target 2: error -1, both gradients -1. The torso moves by (1 + 3.875) / 8.
    update(learners["a"], AGENTS["a"], 2.0)
    torso = 1 + 4.875 / 8
    assert (numbers(learners["a"]), numbers(learners["b"])) == ((torso, 1.125), (torso, 2.875))
    # No gradient is used twice.
    update(learners["a"], AGENTS["a"], torso * 1.125)
    assert numbers(learners["a"]) == (torso, 1.125)
    assert (learners["a"].version, learners["b"].version) == (2, 2)
    # b's last published version is the one that its own update made.
    version, params = learners["b"].variables
    assert (version, float(params["torso/~/linear_0"]["w"][0])) == (2, 1)
    update(learners["b"], AGENTS["b"], 0.0)
    assert float(learners["b"].variables[1]["torso/~/linear_0"]["w"][0]) == torso


def test_weights_multiply_the_gradients():
    learners = make({"torso": Shared(("a", "b"), weights=(2.0, 0.5))})
    update(learners["b"], AGENTS["b"], 4.0)  # -4
    update(learners["a"], AGENTS["a"], 2.0)  # -1
    assert numbers(learners["a"]) == (1 + (2 * 1 + 0.5 * 4) / 8, 1.125)


class Clipping(ProductAgent):
    """Clips its gradients to a global norm of 1."""

    def apply_gradients(self, params, learner_state, grads):
        clipped, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
        return super().apply_gradients(params, learner_state, clipped)


@pytest.mark.parametrize("weight", [0.0, 1e6])
def test_a_gradient_for_another_task_is_not_clipped_with_ones_own(weight):
    agents = {**AGENTS, "b": Clipping(ProductConfig(0.25, 2.0), SPEC)}
    learners = make({"torso": Shared(("a", "b"), weights=(1.0, weight))}, agents)
    update(learners["b"], agents["b"], 4.0)  # the head's gradient is -2, and clipped -1
    assert numbers(learners["b"]) == (1, 2.25)


def test_in_turns_each_optimiser_moves_the_torso():
    learners = make({"torso": Shared(("a", "b"), update="turns")})
    update(learners["b"], AGENTS["b"], 4.0)
    assert numbers(learners["b"]) == (2.0, 2.5)  # 1 + 4 / 4
    assert numbers(learners["a"]) == (2.0, 1.0)
    update(learners["a"], AGENTS["a"], 4.0)  # error -2; the gradient of its head -2 * 2
    assert numbers(learners["a"]) == (2.0 + 2 / 8, 1.0 + 4 / 8)
    assert numbers(learners["b"])[0] == 2.25


def test_sharing_nothing_changes_no_bit():
    alone = {name: Learner(agent, NoReplay(), seed=0) for name, agent in AGENTS.items()}
    one, other = make({}), make({"torso": Shared(("a", "b"), weights=(1.0, 0.0))})
    for target in (0.3, 7.7, -1.1):
        for name, agent in AGENTS.items():
            for learners in (alone, one, other):
                update(learners[name], agent, target)
    for name in AGENTS:
        assert numbers(alone[name]) == numbers(one[name])
    # Gradients with weight 0 leave the owner as it is alone.
    assert numbers(alone["a"]) == numbers(other["a"])


def test_a_restored_state_brings_the_shared_parameters():
    learners = make({"torso": Shared(("a", "b"))})
    update(learners["a"], AGENTS["a"], 2.0)
    again = make({"torso": Shared(("a", "b"))})
    for name in ("b", "a"):
        again[name].restore(learners[name].state())
    assert {name: numbers(x) for name, x in again.items()} == {
        name: numbers(x) for name, x in learners.items()
    }
    assert numbers(again["b"])[0] == 1.125


def test_names_are_parts_of_paths():
    assert key_in("torso", "network/torso/linear_0/w") == "torso/linear_0/w"
    assert key_in("policy/torso", "policy/torso/linear_0/w") == "policy/torso/linear_0/w"
    assert key_in("conv2_d*", "conv2_d_1/w") == "conv2_d_1/w"
    assert key_in("tor", "torso/linear_0/w") is None


def test_groups_and_order():
    shared = {
        "x": Shared(("c", "a")),
        "y": Shared(("a", "d")),
        "z": Shared(("e", "b"), None, "turns"),
    }
    assert groups_of(shared, tuple("abcdef")) == (("a", "c", "d"), ("b", "e"), ("f",))
    assert update_order(shared, tuple("abcdef")) == ["b", "d", "e", "f", "a", "c"]
    assert groups_of({}, ("a", "b")) == (("a",), ("b",))


SMALL = NetworkConfig(hidden_sizes=(8,))
REFUSED = {
    "two names": (lambda: Shared(("a",)), "two tasks or more, got ('a',)"),
    "update": (lambda: Shared(("a", "b"), update="all"), "update: expected one of sum, turns"),
    "weights": (lambda: Shared(("a", "b"), (1.0,)), "a weight of 0 or more for each of"),
    "weights in turns": (lambda: Shared(("a", "b"), (1, 1), "turns"), "nothing is summed"),
    "unknown": (lambda: check({"torso": Shared(("a", "c"))}), "['c'] are no policies that learn"),
    "no such name": (lambda: check({"core": Shared(("a", "b"))}), "'a' has no parameters of this"),
    "twice": (
        lambda: check({"torso": Shared(("a", "b")), "linear_0": Shared(("a", "b"))}),
        "torso/linear_0/b of 'a' is in shared['torso'] already",
    ),
    "other shapes": (
        lambda: check({"torso": Shared(("a", "b"))}, b=NetworkConfig(hidden_sizes=(9,))),
        "'a' has torso/linear_0/b [8], torso/linear_0/w [4, 8], and 'b' has torso/linear_0/b [9]",
    ),
    "several updates": (
        lambda: check_shared(
            {"torso": Shared(("a", "b"))},
            {"a": A2CConfig(SMALL).make(SPEC), "b": PPOConfig(SMALL).make(SPEC)},
        ),
        "'b' makes several updates from a batch",
    ),
    "a delayed policy": (
        lambda: check_td3(Shared(("a", "b"))),
        "policy/torso/linear_0/b of 'b' changes once in agent.policy_delay=2 updates",
    ),
}  # fmt: skip


def check(shared, b=SMALL):
    check_shared(shared, {"a": A2CConfig(SMALL).make(SPEC), "b": A2CConfig(b).make(SPEC)})


def check_td3(shared, delay=2, name="policy/torso"):
    spec = SPEC._replace(action=dm_specs.BoundedArray((2,), np.float32, -1.0, 1.0))
    delayed = TD3Config((8,), policy_delay=delay).make(spec)
    transformed = TransformedAgent(delayed, (RewardScale(0.1),), spec)
    check_shared({name: shared}, {"a": DDPGConfig((8,)).make(spec), "b": transformed})


def test_a_delayed_policy_is_shared_in_turns_and_critics_in_any_way():
    check_td3(Shared(("a", "b"), update="turns"))
    check_td3(Shared(("a", "b")), delay=1)
    check_td3(Shared(("a", "b")), name="critics/critic_0")


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_is_refused(case):
    made, message = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        made()
    assert message in str(error.value)


def test_one_torso_serves_two_algorithms_behind_transforms():
    agents = {
        "a": A2CConfig(SMALL).make(SPEC),
        "b": TransformedAgent(DQNConfig(SMALL).make(SPEC), (RewardScale(0.1),), SPEC),
        "c": PPOConfig(SMALL).make(SPEC),
    }
    check_shared({"torso": Shared(("a", "b"))}, agents)
    check_shared({"torso": Shared(("a", "b", "c"), update="turns")}, agents)
